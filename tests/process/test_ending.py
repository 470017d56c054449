"""A command ends with one line and its status wherever a signal arrives, and loses nothing where it ends quickly."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fedray.process import AGAIN, current_ending, end_on_signals

STARTED = """from fedray.process import *
import hashlib, os, signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup`, which a test run may be started by, hands it on as ignored
"""


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", STARTED + textwrap.dedent(code)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


SLEEPING = "time.sleep(30)"
IN_C = "hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)"  # one call into C, for whose end Python's handlers wait
SWALLOWING = "class A:\n        def __del__(self): time.sleep(30)\n    A()"  # where exceptions are swallowed


@pytest.mark.parametrize(
    ("name", "status", "where"),
    [("SIGHUP", 129, SLEEPING), ("SIGTERM", 143, IN_C), ("SIGINT", 130, SWALLOWING)],
    ids=["HUP", "in C", "in a destructor"],
)
def test_a_signal_was_a_traceback_or_swallowed(name: str, status: int, where: str) -> None:
    done = run_python(f"""
with end_on_signals() as ending:
    import threading
    ending.advise("`fedray resume runs/x` goes on")
    threading.Timer(0.3, os.kill, (os.getpid(), signal.{name})).start()
    {where}
""")
    assert done.returncode == status
    assert done.stderr == f"fedray: ended by {name}; `fedray resume runs/x` goes on\n"


def test_a_second_signal_was_a_traceback() -> None:
    """The first one ends the process; its hooks run once, also where the second one comes meanwhile."""
    done = run_python("""
with end_on_signals() as ending:
    output = os.dup(1)
    ending.hooks.append(lambda: (os.write(output, b"stopped\\n"), os.kill(os.getpid(), signal.SIGINT), time.sleep(0.3)))
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(30)
""")
    assert (done.returncode, done.stdout) == (130, "stopped\n")
    assert done.stderr == f"fedray: ended by SIGINT; {AGAIN}\n"


def test_a_full_pipe_that_nobody_reads_kept_the_process() -> None:
    _, full = os.pipe()
    os.set_blocking(full, False)
    os.write(full, bytes(10**7))  # as much as it holds
    os.set_blocking(full, True)
    code = "with end_on_signals():\n    os.kill(os.getpid(), signal.SIGTERM)\n    time.sleep(30)"
    words = [sys.executable, "-c", STARTED + code]
    assert subprocess.run(words, stderr=full, timeout=20, check=False).returncode == 143


def test_what_other_threads_said_meanwhile_came_after_the_line() -> None:
    """The cells of a table that a signal ended were called failed, and the main thread ended in a traceback."""
    done = run_python("""
with end_on_signals() as ending:
    ending.hooks.append(lambda: time.sleep(0.5))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)
    print("cell a failed", flush=True)
    raise RuntimeError("what this thread uses is gone")
""")
    assert (done.returncode, done.stdout) == (143, "")
    assert done.stderr == f"fedray: ended by SIGTERM; {AGAIN}\n"


@pytest.mark.slow  # it imports Ray
def test_a_handler_of_ray_took_the_signals() -> None:
    """Its C++ parts install one for SIGTERM when it starts and when it ends, which prints a stack."""
    done = run_python("""
import ctypes
from fedray.runtime.ray.connection import keep_quiet
with end_on_signals():
    with keep_quiet():
        ctypes.CDLL(None).signal(signal.SIGTERM, 0)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)
""")
    assert done.returncode == 143
    assert done.stderr.count("\n") == 1


def test_a_command_under_nohup_goes_on() -> None:
    done = run_python("""
signal.signal(signal.SIGHUP, signal.SIG_IGN)
with end_on_signals():
    os.kill(os.getpid(), signal.SIGHUP)
    print(signal.SIGHUP in list_signals())
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


def test_what_was_there_before_is_there_afterwards() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with end_on_signals() as ending:
        assert current_ending() is ending
        ending.advise("`fedray resume x` goes on", needs=Path("/nowhere"))
        assert ending.read_advice() == AGAIN
    assert current_ending() is not ending
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted by Linux")
def test_a_table_that_was_read_leaves_no_thread_that_has_its_bytes_when_python_ends(tmp_path: Path) -> None:
    """One that gives them back while Python is torn down aborts the process (apache/arrow issue 50482)."""
    done = run_python(f"""
import pyarrow as pa, pyarrow.parquet as pq
from fedray.files.run_files import read_parquet_file
path = Path({str(tmp_path)!r}) / "table.parquet"
pq.write_table(pa.table({{"a": range(99), "b": ["x"] * 99, "c": [[0.5, 1.0]] * 99}}), path)
before = os.listdir("/proc/self/task")
print(read_parquet_file(path).num_rows, os.listdir("/proc/self/task") == before)
""")
    assert (done.stdout, done.stderr) == ("99 True\n", "")


END = "print('last'); exit_quickly(3); print('went on')"
START = "import atexit, sys, threading; from fedray.process import exit_quickly; "


def python(code: str) -> tuple[int, list[str]]:
    done = subprocess.run([sys.executable, "-c", START + code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_output_and_registered_functions_come_before_the_end() -> None:
    assert python("atexit.register(print, 'registered'); " + END) == (3, ["last", "registered"])


@pytest.mark.parametrize(
    "work", ["threading.Timer(0.1, print, ['worked']).start(); ", "sys.modules['ray'] = None; print('worked'); "]
)
def test_whatever_may_still_work_is_waited_for(work: str) -> None:
    """A thread that Python waits for, and libraries that end what they began."""
    status, lines = python(work + END)
    assert (status, sorted(lines)) == (0, ["last", "went on", "worked"])
