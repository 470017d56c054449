"""Runs jobs on Ray: the coordinator actor, the client actors, and how actors that die are replaced.

Only this folder imports Ray.
"""

from fedray.process import import_quickly

with import_quickly():  # with torch: the process of an actor begins here
    from fedray.runtime import session  # noqa: F401
