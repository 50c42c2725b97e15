"""Commands of the command line that are long enough for a module of their own."""
