"""Standard streams that are closed, on a full disk, or read by nobody.

Example:
    >>> open_streams()  # all are open already
"""

from __future__ import annotations

import os
import sys


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
