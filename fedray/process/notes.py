"""Warnings for a user as one plain line, instead of Python's format.

Example:
    >>> import warnings
    >>> from fedray.core.errors import ScenarioWarning
    >>> with show_notes(print):
    ...     warnings.warn("predict.gamma cannot act", ScenarioWarning)
    fedray: note: predict.gamma cannot act
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fedray.core.errors import FedrayWarning

NOTE = "fedray: note: "  # begins the line


@contextmanager
def show_notes(say: Callable[[str], object]) -> Iterator[None]:
    """Says each `FedrayWarning` of the block once, as a line; other warnings look as usual.

    Args:
        say: prints a line.
    """
    with warnings.catch_warnings():
        say_notes(say)
        yield


def say_notes(say: Callable[[str], object]) -> None:
    """Says each `FedrayWarning` once from now on, as `show_notes` does; for a process that does nothing else.

    Args:
        say: prints a line.
    """
    said: set[str] = set()
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if not issubclass(category, FedrayWarning):
            usual(message, category, *place, **more)
        elif str(message) not in said:
            said.add(str(message))
            say(f"{NOTE}{message}")

    warnings.simplefilter("always", FedrayWarning)
    warnings.showwarning = show
