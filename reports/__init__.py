"""Outputs: one module each, from a Diagnosis (and the run it was made from) to a file or a screen."""
