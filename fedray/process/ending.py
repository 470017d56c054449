"""How a command ends when a signal asks it to: one line that says what goes on, and 128 + the number of the signal.

A signal may arrive anywhere: while a module is imported, in a destructor, in a long call into a library. An exception
raised there may be swallowed, or end as a traceback. So a thread of its own takes the signal, stops what the command
started and ends the process. Nothing is lost, because everything in a run directory is written atomically.

Example:
    >>> with end_on_signals() as ending:
    ...     ending.advise("`fedray resume runs/example` goes on")
    ...     describe_end(signal.SIGTERM, ending.read_advice())
    'fedray: ended by SIGTERM; `fedray resume runs/example` goes on'
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN = "type the command again"
SHOW_CURSOR = "\x1b[?25h"  # a live display hides it


def list_signals() -> list[signal.Signals]:
    """The signals that end a command: not HUP where it is ignored, which `nohup` does."""
    return [number for number in SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]


class Ending:
    """What is said and done when a signal ends this process.

    Attributes:
        hooks: Called before the process ends, the last one first; they stop what it started, quickly.
    """

    def __init__(self) -> None:
        self._advice, self._needs = AGAIN, Path("/")
        self.hooks: list[Callable[[], object]] = []

    def advise(self, advice: str, needs: Path = Path("/")) -> None:
        """Sets what the user does to go on; it is said where the file or directory `needs` is there."""
        self._advice, self._needs = advice, needs

    def read_advice(self) -> str:
        """What the user does to go on."""
        return self._advice if self._needs.exists() else AGAIN


_CURRENT: ContextVar[Ending | None] = ContextVar("_CURRENT", default=None)


def current_ending() -> Ending:
    """The ending of the command that runs here; one that nobody reads where fedray is used as a library."""
    return _CURRENT.get() or Ending()


def describe_end(number: int, advice: str) -> str:
    """The line that a signal leaves."""
    return f"fedray: ended by {signal.Signals(number).name}; {advice}"


@contextmanager
def end_on_signals() -> Iterator[Ending]:
    """Ends the process with one line on INT, TERM and HUP while the block runs; nothing outside of the main thread."""
    ending = Ending()
    token = _CURRENT.set(ending)
    try:
        if threading.current_thread() is not threading.main_thread():
            yield ending
            return
        with _watch_signals(ending):
            yield ending
    finally:
        _CURRENT.reset(token)


@contextmanager
def _watch_signals(ending: Ending) -> Iterator[None]:
    """Installs the handlers, and the thread that takes the signals."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    over = threading.Event()

    def take(number: int, _frame: Any) -> None:
        os.write(writer, bytes([number]))  # again: a library may have taken the wakeup descriptor

    def forget() -> None:  # in a process that is forked from this one: its signals are its own
        if not over.is_set():
            signal.set_wakeup_fd(-1)
            for number in list_signals():
                signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, take) for number in list_signals()}
    before_wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=_take_signals, args=(reader, ending, over), daemon=True)
    thread.start()
    os.register_at_fork(after_in_child=forget)
    try:
        yield
    finally:
        over.set()
        os.write(writer, b"\0")  # no signal: the thread ends
        thread.join()
        signal.set_wakeup_fd(before_wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


def _take_signals(reader: int, ending: Ending, over: threading.Event) -> None:
    """Waits for a signal and ends the process."""
    while not over.is_set():
        for number in os.read(reader, 64):
            if number in SIGNALS:
                end_process(number, ending)


def _silence() -> None:
    """Lets nobody say anything more: other threads go on meanwhile, and see what they use disappear."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for output in (1, 2):
            os.dup2(nowhere, output)


def end_process(number: int, ending: Ending) -> None:
    """Says the line, calls the hooks, and ends this process with status 128 + the number of the signal."""
    cursor = SHOW_CURSOR + "\n" if os.isatty(2) else ""
    with suppress(OSError):
        os.write(2, f"{cursor}{describe_end(number, ending.read_advice())}\n".encode())
    _silence()
    for hook in reversed(ending.hooks):
        with suppress(Exception):
            hook()
    os._exit(128 + number)
