"""Runs the experiments that a user starts: one run, a table of runs, or a check of a scenario."""
