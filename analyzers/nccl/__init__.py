"""What a communication log, a topology or a flight-recorder dump says is wrong: pure functions."""
