"""Handles signals, child processes, output streams and warnings of the process that runs a command."""

import atexit
import ctypes
import gc
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from fedray.core.errors import FedrayWarning

# ---------------------------------------------------------------------------------------------------------------------
# How a command ends when it gets a signal.
#
# A signal may arrive while a module is imported, in a destructor, or in a long call into a library. An exception raised
# there may be swallowed, or end as a traceback. So a separate thread handles the signal and ends the process. Nothing
# is lost, because every file of a run directory is written atomically.

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN = "type the command again"
SHOW_CURSOR = "\x1b[?25h"  # a live display hides the cursor


def list_signals() -> list[signal.Signals]:
    """Returns the signals that end a command.

    They are INT, TERM and HUP. HUP is left out if this process ignores it (`nohup`).
    """
    return [number for number in SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]


class Ending:
    """Holds what to do when a signal ends this process: advice to print, and functions to call.

    Attributes:
        hooks: Functions that stop what the process has started. They are called in reverse order, and must be quick.
        is_over: Whether a signal is ending this process.
    """

    def __init__(self) -> None:
        self._advice, self._needs, self.is_over = AGAIN, Path("/"), False
        self.hooks: list[Callable[[], object]] = []

    def advise(self, advice: str, needs: Path = Path("/")) -> None:
        """Sets the advice that the user gets when a signal ends this process.

        If the file or directory `needs` does not exist at that time, the user is told to run the command again.
        """
        self._advice, self._needs = advice, needs

    @contextmanager
    def call(self, hook: Callable[[], object]) -> Iterator[None]:
        """Calls a function at the end of the `with` block, or when a signal ends this process in the block."""
        self.hooks.append(hook)
        try:
            yield
        finally:
            hook()
            self.hooks.remove(hook)

    def wait_if_over(self, seconds: float = 0.0) -> None:
        """Never returns if a signal is ending this process. Waits at most `seconds` for the thread that ends it."""
        deadline = time.monotonic() + seconds
        while not self.is_over and time.monotonic() < deadline:
            time.sleep(0.01)
        if self.is_over:
            threading.Event().wait()

    def read_advice(self) -> str:
        """Returns the advice that tells the user how to continue."""
        return self._advice if self._needs.exists() else AGAIN


_CURRENT: ContextVar[Ending | None] = ContextVar("_CURRENT", default=None)


def current_ending() -> Ending:
    """Returns the `Ending` (advice and hooks) of the command that this process runs.

    If fedray is used as a library, returns a new `Ending` without effect.
    """
    return _CURRENT.get() or Ending()


@contextmanager
def end_on_signals() -> Iterator[Ending]:
    """Ends the process with one printed line if INT, TERM or HUP arrives during the `with` block.

    Call this in the main thread, because Python handles signals only there. A further thread waits for signals.

    Example:
        >>> with end_on_signals() as ending:
        ...     ending.advise("`fedray resume runs/example` goes on")
        ...     ending.read_advice()
        '`fedray resume runs/example` goes on'
    """
    ending = Ending()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    over = threading.Event()

    def take(number: int, _frame: Any) -> None:
        # Python also writes the number, unless a library has replaced the wakeup descriptor; a second write is harmless
        os.write(writer, bytes([number]))

    before = {number: signal.signal(number, take) for number in list_signals()}
    before_wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    token = _CURRENT.set(ending)
    thread = threading.Thread(target=_take_signals, args=(reader, ending, over), daemon=True)
    thread.start()
    try:
        yield ending
    finally:
        _CURRENT.reset(token)
        over.set()
        os.write(writer, b"\0")  # 0 is no signal: it only wakes the thread, which then ends
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
    """Ends this process because of a signal.

    Prints one line that names the signal and says how to continue. Calls the hooks of `ending`. The exit status is 128
    plus the number of the signal.
    """
    ending.is_over = True
    cursor = SHOW_CURSOR + "\n" if os.isatty(2) else ""
    with suppress(OSError, ValueError):
        line = f"{cursor}fedray: ended by {signal.Signals(number).name}; {ending.read_advice()}\n".encode()
        errors, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        for output in (1, 2):  # other threads still run: nothing that they print shall follow the line
            os.dup2(nowhere, output)
        if select.select([], [errors], [], 1.0)[1]:  # a full pipe whose reader stands still must not keep the process
            os.write(errors, line)
    for hook in reversed(ending.hooks):
        with suppress(Exception):
            hook()
    os._exit(128 + number)


# ---------------------------------------------------------------------------------------------------------------------
# The command `fedray` as a child process that ends when its parent ends.
#
# On Linux the kernel sends the child SIGTERM when its parent dies for any reason (`prctl`). On other systems the child
# keeps running if its parent is killed.

PR_SET_PDEATHSIG = 1  # linux/prctl.h
STOP_SECONDS = 10.0  # time for children to end by themselves before they are killed


def start_child(
    arguments: Sequence[str], keep: Collection[int] = (), variables: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Starts `fedray ARGUMENTS` as a child process in its own process group, with a pipe for its stderr.

    The child's output to stdout is dropped.

    Args:
        arguments: The arguments of the command.
        keep: Open file descriptors that the child inherits.
        variables: Environment variables that the child gets in addition to the variables of this process.

    Example:
        >>> child = start_child(["list", "nothing"])
        >>> follow_child(child, lambda line: print(line[:15]))
        fedray: Invalid
        2
        >>> stop_children([child])  # nothing is left to stop
    """
    return subprocess.Popen(
        [sys.executable, "-m", "fedray.process", str(os.getpid()), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        pass_fds=tuple(keep),
        process_group=0,
        env={**os.environ, **(variables or {})},
    )


def follow_child(child: subprocess.Popen[str], hear: Callable[[str], object]) -> int:
    """Waits for a child to end, and returns its exit status.

    Args:
        child: The child, from `start_child`.
        hear: A function that is called with each line of the child's stderr, as soon as the line is written.
    """
    assert child.stderr is not None  # `start_child` opens it
    with child:
        for line in child.stderr:
            hear(line.rstrip("\n"))
    return child.returncode


def stop_children(children: Collection[subprocess.Popen[str]]) -> None:
    """Ends child processes and the processes that they started.

    All of these processes get SIGTERM. Children that are still alive after 10 seconds get SIGKILL.
    """
    for number, patience in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, 1.0)):
        alive = [child for child in children if child.poll() is None]
        for child in alive:
            with suppress(OSError):
                os.killpg(child.pid, number)
        deadline = time.monotonic() + patience
        while any(child.poll() is None for child in alive) and time.monotonic() < deadline:
            time.sleep(0.02)


def follow_parent(parent: int) -> None:
    """Ends this process as soon as its parent process with the id `parent` has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    follow_parent(int(sys.argv.pop(1)))
    runpy.run_module("fedray", run_name="__main__", alter_sys=True)


# ---------------------------------------------------------------------------------------------------------------------
# Warnings for a user as one plain line, instead of Python's format.

NOTE = "fedray: note: "  # the beginning of each such line


def say_notes(say: Callable[[str], object]) -> None:
    """Calls `say` with each later `FedrayWarning` of this process, as one line. Repeated messages are left out.

    Warnings of other classes keep Python's format. Call this only in processes that run nothing but fedray, or within
    `warnings.catch_warnings`.

    Example:
        >>> import warnings
        >>> from fedray.core.errors import ScenarioWarning
        >>> with warnings.catch_warnings():
        ...     say_notes(print)
        ...     warnings.warn("predict.gamma cannot act", ScenarioWarning)
        fedray: note: predict.gamma cannot act
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

_NEED_TEARDOWN = {"ray", "wandb", "mlflow", "tensorboard"}  # libraries that finish their work while Python is torn down


@contextmanager
def import_quickly() -> Iterator[None]:
    """Keeps the garbage collector from ever scanning the modules that a `with` block imports.

    Such modules stay until the process ends. Scanning them would make the import of torch 0.4 s longer.

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
        if not gc.get_freeze_count():  # only once in a process, because a second freeze would also keep garbage
            gc.freeze()
            atexit.register(gc.unfreeze)  # nanobind reports objects that stay frozen as leaks
        if before:
            gc.enable()


def skip_teardown(library: str) -> None:
    """Tells `exit_quickly` that it may skip the tear-down of a library."""
    _NEED_TEARDOWN.discard(library)


def exit_quickly(status: int) -> None:
    """Ends the process with `status`. Functions of `atexit` are called, but Python's tear-down is skipped.

    The tear-down of torch would take 0.7 s. Does nothing if Ray, a logger (wandb, mlflow, tensorboard), or a thread
    that Python waits for may still be at work.
    """
    waited_for = [thread for thread in threading.enumerate() if not thread.daemon]
    if waited_for != [threading.main_thread()] or any(name in sys.modules for name in _NEED_TEARDOWN):
        return
    atexit._run_exitfuncs()
    flush_streams()
    ctypes.CDLL(None).fflush(None)  # flushes the output of C libraries
    os._exit(status)


# ---------------------------------------------------------------------------------------------------------------------
# Output streams that are closed, that nobody reads, or whose disk is full. A training goes on in all of these cases.


class _Tolerant:
    """Wraps a text stream, and drops text that the stream cannot write."""

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
    """In a `with` block, drops text that stderr cannot write, for example because the reader of stderr has ended.

    Example:
        >>> reader, writer = os.pipe()
        >>> os.close(reader)
        >>> with open(writer, "w") as pipe, redirect_stderr(pipe), tolerate_stderr():
        ...     print("round 5/20", file=sys.stderr, flush=True)
        ...     silence(pipe)
    """
    with Path(os.devnull).open("w") as nowhere:  # for a process that was started without this stream
        stream: Any = _Tolerant(nowhere if sys.stderr is None else sys.stderr)
        with redirect_stderr(stream):
            yield


def silence(stream: Any) -> None:
    """Discards the output of a stream from now on.

    Otherwise Python would fail when it flushes the stream at the end of the process.
    """
    with suppress(OSError):  # the stream has no file descriptor of this process
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def flush_streams() -> None:
    """Flushes stdout and stderr of a process that is about to end. Text that cannot be written is dropped."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:  # None means that the process was started without this stream
            try:
                stream.flush()
            except OSError:
                silence(stream)
