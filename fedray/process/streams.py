"""Standard streams that are closed, on a full disk, or read by nobody: no training ends because of them.

Example:
    >>> reader, writer = os.pipe()
    >>> os.close(reader)
    >>> with open(writer, "w") as pipe, redirect_stderr(pipe), tolerate_stderr():
    ...     print("round 5/20", file=sys.stderr, flush=True)
    ...     silence(pipe)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from typing import Any


class _Tolerant:
    """A text stream that drops what cannot be written; all else is that of the stream."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


@contextmanager
def tolerate_stderr() -> Iterator[None]:
    """Drops what cannot be written to the standard error stream while the block runs: its reader is gone, say."""
    stream: Any = _Tolerant(sys.stderr)
    with redirect_stderr(stream):
        yield


def silence(stream: Any) -> None:
    """Lets a stream go nowhere from now on: Python writes what is left in it when it ends, and would fail again."""
    with suppress(OSError):  # it is none of the process
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def settle_streams() -> None:
    """Writes what is left in the output streams, for a process that ends; what cannot be written is dropped."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            silence(stream)


def open_streams() -> None:
    """Opens the standard streams that the process was started without (`>&-`), on nothing.

    Else the next files and pipes would get their numbers, and what C libraries and child processes say would be
    written there.
    """
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)
    os.close(handle)
    sys.stdin = sys.stdin or open(0)  # noqa: SIM115 - it stays open
    sys.stdout = sys.stdout or open(1, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w")  # noqa: SIM115
