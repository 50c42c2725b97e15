"""Readers: one module a file format, from bytes to columns."""
