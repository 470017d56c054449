"""Errors that a person reads: one line that says what is wrong and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


class FedrayError(Exception):
    """Something failed while running; the message is one line that says what and what to do (exit status 1)."""


class BadInput(FedrayError):
    """The user's input cannot be used; one line: key, value, remedy (exit status 2)."""


class Lost(FedrayError):
    """Private client state went with a worker: the run goes back to its newest checkpoint and replays."""


class Diverged(FedrayError):
    """A client's training ended in NaN, infinite or huge weights."""


class Overflow(FedrayError):
    """Rows that cannot be summed: NaN, infinite or above 2**28."""

    def __init__(self, rows: list[int]) -> None:
        FedrayError.__init__(self, rows)
        self.rows = rows

    def __str__(self) -> str:
        return f"rows {self.rows} hold NaN, infinity or numbers above 2.7e8"
