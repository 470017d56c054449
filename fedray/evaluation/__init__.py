"""Scores the models of a run for its clients and for new clients, and computes the data of the report's pictures."""
