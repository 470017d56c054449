"""Evaluation: scores of new and known clients and of stacks, and the data of the report's pictures."""
