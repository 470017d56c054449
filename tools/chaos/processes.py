"""Commands as processes of their own, watched: what they write, how long they are silent, and how they end.

Most are forked from a process that has imported everything: a start of Python takes longer than a small scenario.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import IO, NamedTuple

import fedray.tuning.tune  # noqa: F401
from fedray.__main__ import main

MOST_SECONDS = 900.0  # of a command: then it hangs


class Said(NamedTuple):
    """What a command wrote and how it ended."""

    status: int
    lines: list[str]
    silence: float
    seconds: float


class Forked:
    """A command in a process that was forked from this one, which has imported what it needs already.

    Attributes:
        pid: The process id.
        returncode: The status, negative for a signal; None while it runs.
    """

    def __init__(self, words: list[str], output: IO[bytes]) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.setpgid(0, 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            run_as_program(words)

    def poll(self) -> int | None:
        """Returns the exit status, or None if the process has not ended."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, if it goes on."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self) -> None:
        """Waits for the end."""
        while self.poll() is None:
            time.sleep(0.02)


def run_as_program(words: list[str]) -> None:
    """Runs a command in this process as if it had just been started, and ends it."""
    atexit._clear()  # what this file registered is not the child's to do
    sys.argv, status = words, 0
    try:
        main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


Process = Forked | subprocess.Popen[bytes]


def watch(words: list[str], disturb: Callable[[Process, float], bool] | None = None, *, fork: bool = True) -> Said:
    """Runs a command, and lets `disturb` see it every 20 ms until it says that it has done its work."""
    began = spoke = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process: Process
        if fork:
            process = Forked(words, output)
        else:
            command = [sys.executable, "-m", *words]
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, process_group=0)
        silence, size, done = 0.0, 0, disturb is None
        while process.poll() is None and time.monotonic() - began < MOST_SECONDS:
            time.sleep(0.02)
            if os.fstat(output.fileno()).st_size != size:
                size, spoke = os.fstat(output.fileno()).st_size, time.monotonic()
            silence = max(silence, time.monotonic() - spoke)
            if not done and disturb is not None:
                done = disturb(process, time.monotonic() - began)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        lines = output.read().decode(errors="replace").splitlines()
    return Said(process.returncode or 0, lines, silence, time.monotonic() - began)
