"""Run directories that somebody made in order to harm whoever opens them, and the commands that open them.

`python tools/hostile/directories.py [NAME ...]` tries each directory with each command, every one in a process of its
own with little memory, and prints a line for each directory. Every command has to end with at most one line, within a
minute of processor time, and without a script in the page; somebody has to name the file.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "helpers"))

from hostile_files import CASES, HostileCase
from reports import remove_scripts
from small import run_command, scenario

import fedray
from fedray.core.errors import FedrayError
from fedray.files.bounded import SEAL, seal_entries
from fedray.files.plain import write_json

MOST_MEMORY = 1_500 << 20  # bytes of address space that a command may take beyond what its process had
MOST_SECONDS = 60  # of processor time


class Opened(NamedTuple):
    """What became of one command on one directory.

    Attributes:
        command: its name.
        status: exit status; negative where a signal ended it.
        err: what it wrote to standard error.
        seconds: processor time.
        memory: bytes by which its resident memory grew.
        pages: names of the pages that hold what they must not, such as a script.
    """

    command: str
    status: int
    err: str
    seconds: float
    memory: int
    pages: list[str]

    @property
    def complaint(self) -> str | None:
        """What is wrong with how it ended; None where nothing is."""
        lines = [line for line in self.err.splitlines() if line.startswith("fedray: ")]
        lines = [line for line in lines if not line.startswith("fedray: note")]
        if "Traceback" in self.err or self.status not in (0, 1, 2):
            return f"status {self.status}: {self.err[-300:]}"
        if self.status and len(lines) != 1:
            return f"{len(lines)} lines: {self.err[-300:]}"
        if self.seconds > MOST_SECONDS:
            return f"took {self.seconds:.0f} s"
        return f"{self.pages[0]} holds a script" if self.pages else None


def make_run(folder: Path) -> Path:
    """A small finished run without any checksums, as somebody would send it who had changed it."""
    out = folder / "run"
    fedray.run(scenario({"rounds": 2, "report": False, "evaluate": {"personal": True}}), out=out)
    for name in ("summary.json", "identity.json"):
        kept = json.loads((out / name).read_text())
        write_json(out / name, {key: value for key, value in kept.items() if key not in (SEAL, "files")})
    for path in out.glob("checkpoints/*/progress.json"):
        kept = json.loads(path.read_text())
        kept = {key: value for key, value in kept.items() if key not in (SEAL, "files")}
        path.write_text(json.dumps({**kept, SEAL: seal_entries(kept)}))
    return out


def _ask_api(out: Path) -> int:
    """Reads everything of a run that the Python interface gives."""
    try:
        run = fedray.load(out)
        assert run.summary and run.rounds.num_rows and run.clients.num_rows and run.drift.num_rows
    except FedrayError as error:
        print(f"fedray: {error}", file=sys.stderr)
        return 2
    return 0


def _predict(out: Path) -> int:
    try:
        run = fedray.load(out)
        run.predict(run.study.shards.data.test.x[:3], client=1)
    except FedrayError as error:
        print(f"fedray: {error}", file=sys.stderr)
        return 2
    return 0


def _command(*arguments: str | Path) -> int:
    done = run_command(*arguments)
    sys.stderr.write(done.err)
    return done.status


COMMANDS: dict[str, Callable[[Path, Path], int]] = {
    "report": lambda bad, _: _command("report", bad, "--out", bad.parent / "page.html"),
    "report with another": lambda bad, good: _command("report", good, bad, "--out", bad.parent / "pages.html"),
    "load": lambda bad, _: _ask_api(bad),
    "predict": lambda bad, _: _predict(bad),
    "export": lambda bad, _: _command("export", bad, "--out", bad.parent / "export"),
    "resume": lambda bad, _: _command("resume", bad),
}


def open_in_child(case: HostileCase, command: str, good: Path, folder: Path) -> Opened:
    """Makes a hostile directory, and opens it in a child of this process that may take little memory.

    Args:
        case: what is done to the directory.
        command: one of `COMMANDS`.
        good: a run directory that is as it should be.
        folder: where the copy goes.
    """
    bad = folder / "run"
    shutil.copytree(good, bad)
    case.harm(bad)
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if not child:
            os._exit(_run_child(lambda: COMMANDS[command](bad, good), said.fileno()))
        _, status, used = os.wait4(child, 0)
        said.seek(0)
        grown, _, err = said.read().decode(errors="replace").partition("\n")
    pages = [path.name for path in folder.glob("*.html") if not _has_own_scripts(path)]
    seconds = used.ru_utime + used.ru_stime
    return Opened(command, os.waitstatus_to_exitcode(status), err, seconds, int(grown or 0), pages)


def _has_own_scripts(page: Path) -> bool:
    """Whether a page has no other scripts than those of every page."""
    try:
        remove_scripts(page.read_text(encoding="utf-8"))
    except AssertionError:
        return False
    return True


def _read_memory(name: str) -> int:
    """Bytes of resident memory of this process: now (`VmRSS`), or at most until now (`VmHWM`)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def _run_child(work: Callable[[], int], said: int) -> int:
    """The exit status of the work; the memory it took, and what it wrote to standard error, go to the file `said`."""
    began = _read_memory("VmRSS")
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MOST_MEMORY, size + MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (3 * MOST_SECONDS, 3 * MOST_SECONDS))
    status, err = 3, io.StringIO()
    try:
        with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
            status = work()
    except BaseException:
        err.write(traceback.format_exc())
    grown = _read_memory("VmHWM") - began
    os.write(said, f"{grown}\n{err.getvalue()[-100_000:]}".encode(errors="replace"))
    return status


def open_directories(names: list[str], commands: list[str], say: Callable[[str], Any] = print) -> list[str]:
    """Tries hostile directories with commands, and returns what went wrong, a line each.

    Args:
        names: of the cases.
        commands: of `COMMANDS`.
        say: called with a line about each directory.
    """
    import fedray.report.page  # so that the children need not import it

    assert fedray.report.page.__name__
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="hostile-") as place:
        good, began = make_run(Path(place) / "good"), time.monotonic()
        worst = (0.0, 0)
        for number, name in enumerate(names):
            found = []
            for command in commands:
                folder = Path(place) / f"{number}-{command.replace(' ', '-')}"
                found.append(open_in_child(CASES[name], command, good, folder))
                shutil.rmtree(folder)
            wrong += [f"{name}, {one.command}: {one.complaint}" for one in found if one.complaint]
            refused = [one for one in found if one.status]
            if CASES[name].file and not any(CASES[name].file in one.err for one in refused):
                wrong.append(f"{name}: nobody names {CASES[name].file}: {[one.err[-200:] for one in found]}")
            slowest, largest = max(one.seconds for one in found), max(one.memory for one in found)
            worst = max(worst[0], slowest), max(worst[1], largest)
            say(f"{name:45} {len(refused)} of {len(found)} refuse, {slowest:5.1f} s, +{largest >> 20} MB")
        say(
            f"{len(names)} directories, {len(names) * len(commands)} commands, {len(wrong)} wrong, "
            f"at most {worst[0]:.1f} s of processor time and {worst[1] >> 20} MB more, {time.monotonic() - began:.0f} s"
        )
    return wrong


if __name__ == "__main__":
    asked = sys.argv[1:] or list(CASES)
    faults = open_directories(asked, list(COMMANDS))
    print(*faults, sep="\n")
    sys.exit(bool(faults))
