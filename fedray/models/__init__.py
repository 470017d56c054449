"""Defines networks and their losses, and the order of a model's parameters in a vector."""
