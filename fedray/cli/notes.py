"""What a scenario does less than its author may think, as one plain line instead of Python's form of a warning.

Example:
    >>> import warnings
    >>> with show_notes(print):
    ...     warnings.warn("predict.gamma cannot act", ScenarioWarning)
    fedray: note: predict.gamma cannot act
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fedray.core.errors import DamageWarning, ScenarioWarning


@contextmanager
def show_notes(say: Callable[[str], object]) -> Iterator[None]:
    """Says each `ScenarioWarning` and `DamageWarning` of the block once, as a line; other warnings look as usual.

    Args:
        say: prints a line.
    """
    said: set[str] = set()
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if not issubclass(category, ScenarioWarning | DamageWarning):
                usual(message, category, *place, **more)
            elif str(message) not in said:
                said.add(str(message))
                say(f"fedray: note: {message}")

        warnings.simplefilter("always", ScenarioWarning)
        warnings.simplefilter("always", DamageWarning)
        warnings.showwarning = show
        yield
