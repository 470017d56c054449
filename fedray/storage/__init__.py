"""The run directory: checkpoints, tables, drift scores, summary and manifest; and loggers."""
