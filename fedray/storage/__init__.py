"""The run directory: checkpoints, tables, summary, loggers."""
