"""How a command begins and ends: signals, children, streams, and warnings as plain lines."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from fedray.core.errors import FedrayWarning

# ---------------------------------------------------------------------------------------------------------------------
# How a command ends when a signal asks it to: one line that says what goes on, and 128 + the number of the signal.
#
# A signal may arrive anywhere: while a module is imported, in a destructor, in a long call into a library. An
# exception raised there may be swallowed, or end as a traceback. So a thread of its own takes the signal, stops what
# the command started and ends the process. Nothing is lost, because everything in a run directory is written
# atomically.

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
    """Ends the process with one line on INT, TERM and HUP while the block runs; nothing outside of the main thread.

    Example:
        >>> with end_on_signals() as ending:
        ...     ending.advise("`fedray resume runs/example` goes on")
        ...     describe_end(signal.SIGTERM, ending.read_advice())
        'fedray: ended by SIGTERM; `fedray resume runs/example` goes on'
    """
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

    before = {number: signal.signal(number, take) for number in list_signals()}
    before_wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=_take_signals, args=(reader, ending, over), daemon=True)
    thread.start()
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


def end_process(number: int, ending: Ending) -> None:
    """Says the line, calls the hooks, and ends this process with status 128 + the number of the signal."""
    cursor = SHOW_CURSOR + "\n" if os.isatty(2) else ""
    with suppress(OSError):
        os.write(2, f"{cursor}{describe_end(number, ending.read_advice())}\n".encode())
    with suppress(OSError):  # other threads go on meanwhile, and see what they use disappear
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for output in (1, 2):
            os.dup2(nowhere, output)
    for hook in reversed(ending.hooks):
        with suppress(Exception):
            hook()
    os._exit(128 + number)


# ---------------------------------------------------------------------------------------------------------------------
# The command `fedray` as a child process that ends when its parent does, however the parent ends.
#
# On Linux the kernel sends the child SIGTERM when its parent dies (`prctl`). Elsewhere a child is ended by a parent
# that ends in order, but not by one that is killed.

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

    Example:
        >>> child = start_child(["--version"])
        >>> child.communicate()[0].startswith("fedray, version ")
        True
        >>> follow_child(start_child(["list", "nothing"]), lambda line: print(line[:15]))
        fedray: Invalid
        2
        >>> stop_children([child])  # nothing is left to stop
    """
    return subprocess.Popen(
        [sys.executable, "-m", "fedray.process", str(os.getpid()), *arguments],
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


# ---------------------------------------------------------------------------------------------------------------------
# Warnings for a user as one plain line, instead of Python's format.

NOTE = "fedray: note: "  # begins the line


@contextmanager
def show_notes(say: Callable[[str], object]) -> Iterator[None]:
    """Says each `FedrayWarning` of the block once, as a line; other warnings look as usual.

    Args:
        say: prints a line.

    Example:
        >>> import warnings
        >>> from fedray.core.errors import ScenarioWarning
        >>> with show_notes(print):
        ...     warnings.warn("predict.gamma cannot act", ScenarioWarning)
        fedray: note: predict.gamma cannot act
    """
    with warnings.catch_warnings():
        say_notes(say)
        yield


def say_notes(say: Callable[[str], object]) -> None:
    """Says each `FedrayWarning` once from now on, as `show_notes` does; for a process that does nothing else.

    Args:
        say: prints a line.
    """
    said: set[str] = set()
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if not issubclass(category, FedrayWarning):
            usual(message, category, *place, **more)
        elif str(message) not in said:
            said.add(str(message))
            say(f"{NOTE}{message}")

    warnings.simplefilter("always", FedrayWarning)
    warnings.showwarning = show


# ---------------------------------------------------------------------------------------------------------------------
# Starting and ending in less time: imports without the garbage collector, and an exit without Python's tear-down.

_TIDY = ["ray", "wandb", "mlflow", "tensorboard"]  # libraries that end what they began while Python is torn down


@contextmanager
def import_quickly() -> Iterator[None]:
    """Keeps the garbage collector from looking through what is imported in the block, then and later.

    Modules, classes and functions stay until the process ends. The collector would look through all of them again and
    again while they are made (0.4 s of the import of torch).

    Example:
        >>> with import_quickly():
        ...     import json
        >>> gc.isenabled()
        True
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


# ---------------------------------------------------------------------------------------------------------------------
# Standard streams that are closed, on a full disk, or read by nobody: no training ends because of them.


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
    """Drops what cannot be written to the standard error stream while the block runs: its reader is gone, say.

    Example:
        >>> reader, writer = os.pipe()
        >>> os.close(reader)
        >>> with open(writer, "w") as pipe, redirect_stderr(pipe), tolerate_stderr():
        ...     print("round 5/20", file=sys.stderr, flush=True)
        ...     silence(pipe)
    """
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
