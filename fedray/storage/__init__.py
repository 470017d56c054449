"""Writes and reads checkpoints, tables, drift scores, summary and manifest of a run directory, and makes loggers."""
