"""Recorders: one module a source. They record and never judge; torch is imported late."""
