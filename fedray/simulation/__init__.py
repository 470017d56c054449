"""Holds the parts of one simulated run: the round loop, the study, virtual time, and the parts of a stack."""
