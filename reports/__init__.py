"""Outputs, one module each: from a Diagnosis (and its traces) to a file or a screen."""
