"""A process that skips the tear-down of Python loses nothing: what it said, what was registered, and its status."""

from __future__ import annotations

import subprocess
import sys

import pytest
from small import run_command

END = "print('last'); exit_quickly(3); print('went on')"
START = "import atexit, sys, threading; from fedray.process.session import exit_quickly; "


def python(code: str) -> tuple[int, list[str]]:
    done = subprocess.run([sys.executable, "-c", START + code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_output_and_registered_functions_come_before_the_end() -> None:
    assert python("atexit.register(print, 'registered'); " + END) == (3, ["last", "registered"])


def test_a_closed_output_was_a_traceback_at_the_end() -> None:
    """A command that was started without its streams; no file that it opens gets their numbers."""
    assert python("sys.stdout = sys.stderr = None; exit_quickly(3)")[0] == 3
    look = "import fedray.__main__, os; fedray.__main__.main(); os._exit(9)"
    line = f"exec {sys.executable} -c '{look}' list partitions <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", line], check=False).returncode == 0
    look = "from fedray.process.session import open_streams as o; o(); o(); import os; os._exit(os.open('/', 0))"
    line = f'exec {sys.executable} -c "{look}" <&- >&- 2>&-'
    assert subprocess.run(["sh", "-c", line], check=False).returncode == 3


@pytest.mark.parametrize(
    "work", ["threading.Timer(0.1, print, ['worked']).start(); ", "sys.modules['ray'] = None; print('worked'); "]
)
def test_whatever_may_still_work_is_waited_for(work: str) -> None:
    """A thread that Python waits for, and libraries that end what they began."""
    status, lines = python(work + END)
    assert (status, sorted(lines)) == (0, ["last", "went on", "worked"])


def test_the_command_says_all_and_keeps_its_status() -> None:
    command = [sys.executable, "-m", "fedray"]
    done = subprocess.run([*command, "list"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, run_command("list").out)
    wrong = subprocess.run([*command, "list", "nothing"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, len(wrong.stderr.splitlines())) == (2, 1)


def test_what_a_program_leaves_between_two_imports_is_collected() -> None:
    """A second call froze everything that was alive, garbage too."""
    code = (
        "import gc, weakref; from fedray.process.session import import_quickly\n"
        "class Circle: pass\n"
        "with import_quickly(): pass\n"
        "it = Circle(); it.me = it; left = weakref.ref(it); gc.disable(); del it\n"
        "with import_quickly(): pass\n"
        "gc.collect(); print(left() is None)"
    )
    assert python(code) == (0, ["True"])
