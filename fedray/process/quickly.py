"""Starting and ending in less time: imports without the garbage collector, and an exit without Python's tear-down.

Example:
    >>> with import_quickly():
    ...     import json
    >>> gc.isenabled()
    True
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_TIDY = ["ray", "wandb", "mlflow", "tensorboard"]  # libraries that end what they began while Python is torn down


@contextmanager
def import_quickly() -> Iterator[None]:
    """Keeps the garbage collector from looking through what is imported in the block, then and later.

    Modules, classes and functions stay until the process ends. The collector would look through all of them again and
    again while they are made (0.4 s of the import of torch).
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():  # once in a process: what a second call froze would include garbage
            gc.freeze()
            atexit.register(gc.unfreeze)  # an ordinary tear-down frees them: otherwise nanobind says that they leaked
        if before:
            gc.enable()


def leave_untidy(library: str) -> None:
    """Lets the process end without a library that waits for something that is gone."""
    if library in _TIDY:
        _TIDY.remove(library)


def exit_quickly(status: int) -> None:
    """Ends the process at once after what was registered for its end: tearing torch down takes 0.7 s.

    It returns, and does nothing, where something may still be at work: Ray, a logger of runs, or a thread that Python
    would wait for.

    Args:
        status: of the process.
    """
    waited_for = [thread for thread in threading.enumerate() if not thread.daemon]
    if waited_for != [threading.main_thread()] or any(name in sys.modules for name in _TIDY):
        return
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # the process was started without it
            with suppress(OSError, ValueError):  # the reader of the output is gone
                stream.flush()
    ctypes.CDLL(None).fflush(None)  # what C libraries have printed
    os._exit(status)
