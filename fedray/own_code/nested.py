"""What an object consists of: the functions and the objects that can be called which its fields hold.

Example:
    >>> from functools import partial
    >>> class Both:
    ...     def __init__(self, *steps):
    ...         self.steps = steps
    ...     def __call__(self, x):
    ...         return [step(x) for step in self.steps]
    >>> both = Both(abs, partial(round, ndigits=1))
    >>> [part is one for part, one in zip(list_nested(both), (both, abs))]
    [True, True]
    >>> len(list_nested(both))
    4
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

MOST_PARTS = 1_000


def list_nested(thing: Any) -> list[Any]:
    """An object and what it calls by its fields, directly or through lists, tables and partials; without classes.

    Args:
        thing: a function, a partial, or an object that can be called, such as a chain of transforms.
    """
    found: list[Any] = []
    seen, waiting = set[int](), [thing]
    while waiting and len(seen) < MOST_PARTS:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, list | tuple | set | frozenset):
            waiting += one
        elif isinstance(one, dict):
            waiting += one.values()
        elif callable(one) and not inspect.isclass(one):
            found.append(one)
            inner = [one.func, *one.args, one.keywords] if isinstance(one, partial) else []
            waiting += [*inner, *getattr(one, "__dict__", {}).values()]
    return found
