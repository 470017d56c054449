"""The errors that people read: one line that says what is wrong and what to do.

Example:
    >>> try:
    ...     raise BadInput("rounds = -1: it must be at least 0")
    ... except FedrayError as error:
    ...     print(error)
    rounds = -1: it must be at least 0
"""

from __future__ import annotations

import sys
import warnings
from types import FrameType


class FedrayError(Exception):
    """Something failed while running. The command line prints the message and ends with exit status 1."""


class BadInput(FedrayError):
    """The user's input cannot be used. The message names key, value and remedy; the exit status is 2."""


class FedrayWarning(UserWarning):
    """Something that a user should know, and that stops nothing. The command line prints it as one line."""


class ScenarioWarning(FedrayWarning):
    """Something in a scenario does less than its author may think."""


def warn_user(text: str, category: type[FedrayWarning] = ScenarioWarning) -> None:
    """Warns of something that stops nothing; Python names the line of the user's program that led to it.

    Args:
        text: what a user should know, in one line.
        category: of the warning.

    Example:
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     warn_user("predict.gamma cannot act")
        >>> caught[0].category.__name__, str(caught[0].message)
        ('ScenarioWarning', 'predict.gamma cannot act')
    """
    level = 2
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("fedray."):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


class Unwritable(FedrayError):
    """A file cannot be written, or its directory is gone: the machine's fault, and the same work may succeed later."""


class Lost(FedrayError):
    """State that only a worker held was lost with it.

    This is private state of clients, or a model of a random walk. The session catches the error and continues from the
    newest checkpoint.
    """


class Damaged(FedrayError):
    """A file of a run directory is missing, or is not what the run wrote; other reasons not to read it are not this.

    Attributes:
        reason: What is wrong with which file.
        remedy: What to do.
    """

    def __init__(self, reason: str, remedy: str) -> None:
        FedrayError.__init__(self, reason, remedy)
        self.reason, self.remedy = reason, remedy

    def __str__(self) -> str:
        return f"{self.reason}: {self.remedy}"


class DamageWarning(FedrayWarning):
    """A file of a run directory was damaged and set aside."""


class Diverged(FedrayError):
    """A client's local training ended in parameters that are NaN, infinite or too large to be added."""


class Overflow(FedrayError):
    """Rows of parameters that cannot be added exactly: NaN, infinite, or above 2**28 in magnitude.

    Attributes:
        rows: Indices of the first such rows, at most five.
    """

    def __init__(self, rows: list[int]) -> None:
        FedrayError.__init__(self, rows)
        self.rows = rows

    def __str__(self) -> str:
        return f"rows {self.rows} hold NaN, infinity or numbers above 2.7e8"
