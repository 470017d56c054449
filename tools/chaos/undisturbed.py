"""What a command comes to when nothing disturbs it: its results to compare with, and how long it takes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import yaml
from processes import watch

SCENARIO: dict[str, Any] = {
    "rounds": 30,
    "runtime": "inline",
    "data": {"name": "digits", "limit": 240},
    "model": {"name": "mlp", "hidden": [8]},
    "method": {"name": "feddyn"},
    "clients": {"number": 6},
    "local": {"lr": 0.05, "batch_size": 8, "epochs": 1},
    "checkpoint": {"every": 2, "keep": 3},
    "evaluate": {"every": 5},
    "report": True,
}
SLOWER = 1.05  # after each signal that came in time; the machine may have more to do than before


class Bench:
    """Undisturbed results to compare with, and fresh copies of what a command needs.

    Attributes:
        folder: Where everything is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._number = folder, 0
        self._known: dict[tuple[str, str, bool], tuple[Any, float]] = {}

    def prepare(self, command: str, runtime: str) -> tuple[list[str], Path]:
        """Returns the words of a command in a fresh directory, and the directory of its results."""
        self._number += 1
        out = self.folder / f"{self._number:04d}"
        out.mkdir()
        keys = {**SCENARIO, "runtime": runtime, **({"clients": {"number": 6, "actors": 2}} if runtime == "ray" else {})}
        file, run = out / "scenario.yaml", out / "out"
        if command == "table":
            keys["table"] = [{"name": "a"}, {"name": "b", "overrides": {"method.name": "fedavg"}}]
            keys["report"] = False
        if command == "resume":
            keys["report"] = False
        if command == "tune":
            sweep = {"scenario": {**keys, "report": False}, "space": {"local.lr": [0.05, 0.1]}, "sampler": "grid"}
            file.write_text(yaml.safe_dump({**sweep, "objectives": ["accuracy"]}))
            return ["fedray", "tune", str(file), "--out", str(run)], run
        file.write_text(yaml.safe_dump(keys))
        if command in ("resume", "report"):
            shutil.copytree(self._begin(file, command), run)
            if command == "report":
                return ["fedray", "report", str(run)], run
            text = (run / "scenario.yaml").read_text()
            (run / "scenario.yaml").write_text(text.replace("runtime: inline", f"runtime: {runtime}"))
            return ["fedray", "resume", str(run), "--rounds", "30"], run
        return ["fedray", command, str(file), "--out", str(run)], run

    def _begin(self, file: Path, command: str) -> Path:
        """Makes once the run directory that a command continues, and returns it."""
        run = self.folder / f"for-{command}"
        if not run.exists():
            rounds = [] if command == "report" else ["rounds=10"]
            said = watch(["fedray", "run", str(file), "runtime=inline", "report=false", *rounds, "--out", str(run)])
            assert said.status == 0, said.lines
        return run

    def expect(self, command: str, runtime: str, *, fork: bool) -> tuple[Any, float]:
        """Returns the results of an undisturbed command, and the seconds that it takes now."""
        key = (command, runtime, fork)
        if key not in self._known:
            words, out = self.prepare(command, runtime)
            said = watch(words, fork=fork)
            assert said.status == 0, said.lines
            self._known[key] = (read_results(out), said.seconds)
        return self._known[key]

    def learn_seconds(self, command: str, runtime: str, seconds: float | None, *, fork: bool) -> None:
        """Stores how long an undisturbed command takes now. If `seconds` is None, the last value is raised a little."""
        key = (command, runtime, fork)
        want, before = self._known[key]
        self._known[key] = (want, before * SLOWER if seconds is None else seconds)


def read_results(out: Path) -> Any:
    """Returns the hashes of all runs in a directory, and whether its page exists."""
    found = {}
    for path in sorted(out.rglob("summary.json")):
        summary = json.loads(path.read_text())
        found[str(path.relative_to(out))] = (summary.get("model_hash"), summary.get("state_hash"))
    return found, (out / "report.html").is_file()
