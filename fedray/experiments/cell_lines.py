"""The lines that the processes of a table's cells write while they train, shortened for a person.

Example:
    >>> lines = CellLines(print, clock=iter([0.0, 2.0, 15.0]).__next__)
    >>> for second in (1, 3, 16):
    ...     lines.hear("iid", f"round {second}/20  accuracy 0.9000")
    cell iid: round 16/20  accuracy 0.9000
    >>> lines.newest("iid"), lines.newest("path")
    ('round 16/20  accuracy 0.9000', '')
"""

from __future__ import annotations

import time
from collections.abc import Callable

from fedray.core.errors import FedrayWarning, warn_user
from fedray.experiments.phases import SILENCE, STILL
from fedray.process.notes import NOTE

EVERY = SILENCE - 1  # seconds between two lines of a cell: less than what makes the command say that it still works


class CellLines:
    """The lines of all cells: now and then how far a cell is; a note of a cell is a warning here.

    That a cell still works is not said: the table says so, and a cell's next round would be kept back.

    Args:
        say: prints a line.
        clock: the time in seconds.
    """

    def __init__(self, say: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._newest: dict[str, str] = {}
        self._spoke: dict[str, float] = {}

    def hear(self, cell: str, line: str) -> None:
        """The process of a cell has written a line."""
        if line.startswith(NOTE):
            warn_user(line.removeprefix(NOTE), FedrayWarning)
        elif line.strip() and not line.startswith(STILL):
            now = self._clock()
            self._newest[cell] = line.strip()
            if now - self._spoke.setdefault(cell, now) >= EVERY:
                self._spoke[cell] = now
                self._say(f"cell {cell}: {line}")

    def newest(self, cell: str) -> str:
        """The last line of a cell that is no note; empty before the first."""
        return self._newest.get(cell, "")
