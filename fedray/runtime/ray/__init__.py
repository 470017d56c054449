"""Runs jobs on Ray, in a coordinator actor and client actors, and replaces actors that die.

Only this folder imports Ray.
"""

from fedray.process import import_quickly

with import_quickly():  # with torch: the process of an actor begins here
    from fedray.runtime import session  # noqa: F401
