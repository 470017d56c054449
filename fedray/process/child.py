"""The command `fedray` as a child process that ends when its parent does, however the parent ends.

On Linux the kernel sends the child SIGTERM when its parent dies (`prctl`). Elsewhere a child is ended by a parent that
ends in order, but not by one that is killed.

Example:
    >>> child = start_child(["--version"])
    >>> child.communicate()[0].startswith("fedray, version ")
    True
    >>> follow_child(start_child(["list", "nothing"]), lambda line: print(line[:15]))
    fedray: Invalid
    2
    >>> stop_children([child])  # nothing is left to stop
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

PR_SET_PDEATHSIG = 1  # linux/prctl.h
STOP_SECONDS = 10.0  # for children to end in order, before they are killed


def start_child(
    arguments: Sequence[str], keep: Collection[int] = (), variables: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Starts `fedray ARGUMENTS` in a process group of its own, and collects what it writes.

    Args:
        arguments: of the command.
        keep: open file descriptors that the child holds too.
        variables: of its environment, beside those of this process.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "fedray.process.child", str(os.getpid()), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        pass_fds=tuple(keep),
        process_group=0,
        env={**os.environ, **(variables or {})},
    )


def follow_child(child: subprocess.Popen[str], hear: Callable[[str], object]) -> int:
    """Waits for a child to end, and returns its exit status; what it writes to stdout is dropped.

    Args:
        child: of `start_child`.
        hear: called with each line that the child writes to stderr, as soon as it is written.
    """
    assert child.stdout is not None and child.stderr is not None  # `start_child` opens both
    with child, ThreadPoolExecutor(1) as pool:
        pool.submit(child.stdout.read)  # a full pipe would hold the child up
        for line in child.stderr:
            hear(line.rstrip("\n"))
    return child.returncode


def stop_children(children: Collection[subprocess.Popen[str]]) -> None:
    """Ends children and what they started: asks them first, and kills those that have not ended in ten seconds."""
    for number, patience in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, 1.0)):
        alive = [child for child in children if child.poll() is None]
        for child in alive:
            with suppress(OSError):
                os.killpg(child.pid, number)
        deadline = time.monotonic() + patience
        while any(child.poll() is None for child in alive) and time.monotonic() < deadline:
            time.sleep(0.02)


def follow_parent(parent: int) -> None:
    """Makes this process end when its parent does, and at once if the parent has ended already.

    Args:
        parent: its process id.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    follow_parent(int(sys.argv.pop(1)))
    runpy.run_module("fedray", run_name="__main__", alter_sys=True)
