"""Runs jobs in this process (`inline`) or in the actors of a Ray cluster (`ray`)."""
