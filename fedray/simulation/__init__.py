"""Simulates a run.

The package defines the study (the objects of a run), the round loop, virtual time, and stacks of networks.
"""
