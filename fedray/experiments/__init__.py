"""The experiments that a user starts: one run, a table of runs, a check of a scenario."""
