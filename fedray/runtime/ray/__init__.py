"""The Ray runtime: the coordinator actor, the client actors, and how they are replaced.

Only this folder imports Ray.
"""
