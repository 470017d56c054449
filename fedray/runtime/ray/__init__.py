"""Runs jobs on Ray: the coordinator actor, the client actors, and how actors that die are replaced.

Only this folder imports Ray.
"""
