"""Computes scores of new clients, known clients and stacks, and the data of the report's pictures."""
