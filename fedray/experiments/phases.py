"""Messages about the phase that a command is in, and now and then that it still works.

The phases are messages of the logger `fedray` (Python's `logging`), so that a program that uses fedray as a library can
show them too. A phase is shown when it has lasted for two seconds.

Example:
    >>> with show_phases(print) as heard:
    ...     logging.getLogger("fedray").info("reading the data")
    ...     heard.phase
    'reading the data'
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedray.core.text import format_seconds

log = logging.getLogger("fedray")
SOON = 2.0  # seconds that a phase lasts before it is said
SILENCE = 15.0  # seconds after which a line says that the command still works; half as many more after each such line
MOST_SILENCE = 25.0
STILL = "still "  # how such a line begins


class Heard:
    """The phase that a command is in.

    Attributes:
        phase: what it does; empty before the first phase.
        began: when the phase began, by `time.monotonic`.
        spoke: when the last line was written.
        said: whether the phase was said.
        pause: how many seconds may pass without a line.
        shown: whether a live display shows the phase, so that no line is needed.
        tell: called with each new phase, by a display that does not look itself.
    """

    def __init__(self) -> None:
        self.phase, self.began, self.said = "", time.monotonic(), True
        self.spoke, self.pause, self.shown = self.began, SILENCE, False
        self.tell: Callable[[str], object] = lambda _phase: None

    def begin(self, phase: str) -> None:
        """Another phase begins."""
        self.phase, self.began, self.said, self.pause = phase, time.monotonic(), False, SILENCE
        self.tell(phase)

    def speak(self) -> None:
        """A line is written by somebody else, so that the next one can wait."""
        self.spoke, self.pause, self.said = time.monotonic(), SILENCE, True


def next_line(heard: Heard, now: float) -> str | None:
    """The line that is due, or None.

    Args:
        heard: the phase; changed where a line is due.
        now: the time, by `time.monotonic`.
    """
    if not heard.said and now - heard.began >= SOON:
        heard.said, heard.spoke = True, now
        return heard.phase
    if heard.said and heard.phase and now - max(heard.began, heard.spoke) >= heard.pause:
        heard.spoke, heard.pause = now, min(1.5 * heard.pause, MOST_SILENCE)
        return f"{STILL}{heard.phase} ({format_seconds(now - heard.began)})"
    return None


@contextmanager
def show_phases(say: Callable[[str], object]) -> Iterator[Heard]:
    """Says the phases of the block, unless the logger `fedray` is set to warnings only (`--quiet`).

    Args:
        say: prints a line.
    """
    heard, over, level = Heard(), threading.Event(), log.level

    def hear(record: logging.LogRecord) -> bool:
        heard.begin(record.getMessage())
        return True

    def speak() -> None:
        while not over.wait(0.1):
            line = next_line(heard, time.monotonic())
            if line is not None and not heard.shown and log.isEnabledFor(logging.INFO):
                say(line)

    log.addFilter(hear)
    log.setLevel(logging.INFO)
    thread = threading.Thread(target=speak, daemon=True)
    thread.start()
    try:
        yield heard
    finally:
        over.set()
        thread.join()
        log.removeFilter(hear)
        log.setLevel(level)
