"""Judges: pure functions from tables to a Diagnosis. Nothing here prints, plots or writes."""
