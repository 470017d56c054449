"""Damages of every file of a real run directory, and what each command then does: the right bits, or one line.

    python tools/hostile/damage.py [DAMAGES [SEED]]

makes a run, damages a copy of it as often as told (all combinations without a number), and prints the outcomes by kind.
Nothing is mocked. For modes root becomes another user, for whom they mean something.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fedray
from fedray.core.errors import DamageWarning, FedrayError
from fedray.report import read

BOUND = 120.0  # seconds for one command on a busy machine; undisturbed the slowest takes less than one
NOBODY = 65534
CLOCK = "wall_seconds"
COMMANDS = ("load", "predict", "export", "report", "resume")
SCENARIO: dict[str, Any] = {
    "rounds": 4,
    "runtime": "inline",
    "report": False,
    "data": {"name": "digits", "limit": 120, "partition": {"name": "dirichlet", "alpha": 1.0}},
    "model": {"name": "mlp", "hidden": [4]},
    "method": {"name": "fed_ensemble", "models": 2},
    "clients": {"number": 4},
    "local": {"lr": 0.05, "batch_size": 8, "epochs": 1},
    "checkpoint": {"every": 2, "keep": 2},
    "evaluate": {"every": 1},
}


class Damage(NamedTuple):
    """What is done to which file before which command."""

    kind: str
    file: str
    command: str
    seed: int


class Outcome(NamedTuple):
    """What a command came to.

    Attributes:
        kind: "right bits", "one line", or what must not be: "wrong bits", "traceback", "advice to delete", "slow".
        text: The line, or the traceback's last line.
    """

    kind: str
    text: str

    @property
    def is_good(self) -> bool:
        """Returns whether this outcome is allowed."""
        return self.kind in ("right bits", "one line")


def flip(path: Path, chance: random.Random) -> None:
    """Flips one random bit."""
    data = bytearray(path.read_bytes())
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def truncate(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: chance.randrange(max(1, len(data)))])


def scramble(path: Path, chance: random.Random) -> None:
    """Replaces the content by as many random bytes, as a crash of some file systems does."""
    path.write_bytes(chance.randbytes(path.stat().st_size))


def empty(path: Path, _chance: random.Random) -> None:
    path.write_bytes(b"")


def delete(path: Path, _chance: random.Random) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def swap(path: Path, chance: random.Random) -> None:
    """Swaps the contents of the file and another file of the run."""
    root = next(above for above in path.parents if (above / "scenario.yaml").exists())
    others = [one for one in sorted(root.rglob("*")) if one.is_file() and one != path]
    other = chance.choice([one for one in others if one.suffix == path.suffix] or others)
    one, two = path.read_bytes(), other.read_bytes()
    path.write_bytes(two)
    other.write_bytes(one)


def forbid(path: Path, _chance: random.Random) -> None:
    """Takes away the right to read or write the file."""
    path.chmod(0)


OF_FILES: dict[str, Callable[[Path, random.Random], None]] = {
    "bit flip": flip,
    "truncation": truncate,
    "other bytes": scramble,
    "emptied": empty,
    "deleted": delete,
    "swapped with another": swap,
    "mode 0000": forbid,
}
OF_FOLDERS: dict[str, Callable[[Path, random.Random], None]] = {
    "deleted": delete,
    "mode 0000": forbid,
}


class Bench:
    """An undamaged run, what every command says of it, and copies to damage."""

    def __init__(self, place: Path) -> None:
        """Trains the run.

        Args:
            place: An empty directory that other users may enter.
        """
        self.place = place
        self.original = fedray.run(SCENARIO, out=place / "original").path
        self.x = np.random.default_rng(0).integers(0, 16, (3, 1, 8, 8)).astype(np.uint8)
        inside = [path.relative_to(self.original) for path in sorted(self.original.rglob("*"))]
        self.files = [str(path) for path in inside if (self.original / path).is_file()]
        self.folders = [str(path) for path in inside if (self.original / path).is_dir()]
        self.right: dict[str, Any] = {}
        for command in COMMANDS:  # imports everything, as the same user
            copy = self.copy(command)
            self.right[command] = self.answer(command, copy)
        self.may_drop = os.geteuid() == 0

    def list_damages(self, seed: int = 0) -> list[Damage]:
        """Returns every kind of damage of every file and folder, before every command."""
        files = itertools.product(OF_FILES, self.files, COMMANDS)
        folders = itertools.product(OF_FOLDERS, self.folders, COMMANDS)
        return [Damage(*one, seed + number) for number, one in enumerate([*files, *folders])]

    def copy(self, name: str) -> Path:
        """Copies the run that is to be damaged."""
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.place))
        folder.chmod(0o755)
        shutil.copytree(self.original, folder / "run")
        return folder / "run"

    def answer(self, command: str, out: Path) -> Any:
        """Returns what a command says, in a form that can be compared."""
        if command == "resume":
            run = fedray.resume(out)
            return self.answer("load", run.path)
        run = fedray.load(out)
        if command == "load":
            tables = [[_plain(row) for row in table.to_pylist()] for table in (run.rounds, run.clients, run.drift)]
            summary = run.summary
            return [summary["metrics"], summary["model_hash"], summary["state_hash"], summary["rounds"], tables]
        if command == "predict":
            return run.predict(self.x).mean.tolist()
        if command == "export":
            return [path.read_bytes() for path in run.export(out.parent / "export")]
        page = read.read_run(out)
        arrays = {**page.rounds, **page.pictures}
        arrays.pop(CLOCK)
        jobs = page.clients.to_pylist() if page.clients is not None else []
        metrics = page.summary.get("metrics") or self.right["report"][0]  # without a summary a run is not finished
        return [metrics, page.scenario, jobs, {key: value.tolist() for key, value in arrays.items()}]

    def judge(self, damage: Damage) -> Outcome:
        """Damages a copy and looks at what its command does."""
        out = self.copy("damaged")
        chance = random.Random(damage.seed)
        kinds = OF_FILES if damage.file in self.files else OF_FOLDERS
        try:
            kinds[damage.kind](out / damage.file, chance)
            with _as_nobody(out) if damage.kind == "mode 0000" and self.may_drop else _as_oneself():
                return self._watch(damage.command, out)
        finally:
            if damage.kind == "mode 0000" and (out / damage.file).exists():
                (out / damage.file).chmod(0o755)
            shutil.rmtree(out.parent)

    def _watch(self, command: str, out: Path) -> Outcome:
        began = time.monotonic()
        try:
            with _no_longer_than(BOUND), warnings.catch_warnings():
                warnings.simplefilter("error")
                warnings.simplefilter("ignore", DamageWarning)
                found = self.answer(command, out)
        except TimeoutError:
            return Outcome("slow", f"over {BOUND} s")
        except FedrayError as error:
            line = str(error)
            if any(word in line for word in ("remove ", "delete ", "rm ")):
                return Outcome("advice to delete", line)
            return Outcome("one line" if line and len(line.splitlines()) == 1 else "traceback", line)
        except Exception as error:
            return Outcome("traceback", f"{type(error).__name__}: {error}")
        took = time.monotonic() - began
        if repr(found) != repr(self.right[command]):
            return Outcome("wrong bits", f"{took:.1f} s")
        return Outcome("right bits", "")


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != CLOCK}


@contextmanager
def _no_longer_than(seconds: float) -> Iterator[None]:
    """Raises `TimeoutError` in the middle of whatever waits."""

    def act(_signal: int, _frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, act)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _as_nobody(out: Path) -> Iterator[None]:
    """As a user for whom permissions mean something, who owns the directory."""
    for path in [out.parent, *out.parent.rglob("*")]:
        os.chown(path, NOBODY, -1, follow_symlinks=False)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def _as_oneself() -> Iterator[None]:
    yield


@contextmanager
def make_bench() -> Iterator[Bench]:
    """Makes a bench in a directory of its own, which is removed afterwards."""
    place = Path(tempfile.mkdtemp(prefix="fedray-damage-"))
    place.chmod(0o755)
    try:
        yield Bench(place)
    finally:
        shutil.rmtree(place)


def main(number: int | None = None, seed: int = 0) -> None:
    """Prints a table for docs/explanation/reliability_tests.md, and every outcome that must not be."""
    table: dict[str, Counter[str]] = {}
    with make_bench() as bench:
        damages = bench.list_damages(seed)
        if number is not None:
            damages = random.Random(seed).sample(damages, min(number, len(damages)))
        for damage in damages:
            outcome = bench.judge(damage)
            table.setdefault(damage.kind, Counter())[outcome.kind] += 1
            if not outcome.is_good:
                print(f"{outcome.kind}: {damage}: {outcome.text}", flush=True)
    names = list(dict.fromkeys(["right bits", "one line", *(name for row in table.values() for name in row)]))
    print("| damage | " + " | ".join(names) + " |\n| --- |" + " --- |" * len(names))
    for kind, row in table.items():
        print(f"| {kind} | " + " | ".join(str(row[name]) for name in names) + " |")
    print(f"| {len(damages)} in all | " + " | ".join(str(sum(row[n] for row in table.values())) for n in names) + " |")
    sys.exit(names != ["right bits", "one line"])


if __name__ == "__main__":
    main(*(int(value) for value in sys.argv[1:]))
