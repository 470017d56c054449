"""`kill -9` of the driver at random moments, then `fedray resume`: the bits of an undisturbed run.

    python tools/chaos/kill.py [KILLS [SEED [KINDS]]]

runs each scenario of KINDS (by default `inline,private,stack,ray`) undisturbed, and once more while its process is
killed again and again; it prints how often, and whether hashes and tables agree.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from fedray.storage import checkpoint as record

EVERY = 10  # rounds, a checkpoint
SCENARIO: dict[str, Any] = {
    "method": {"models": 3},
    "data": {"name": "synthetic", "samples": 24, "features": 16, "classes": 4, "test": 200},
    "clients": {"number": 12},
    "model": {"hidden": [8]},
    "local": {"lr": 0.05, "batch_size": 8, "epochs": 10},
    "participation": {"fraction": 0.5},
    "checkpoint": {"every": EVERY},
    "evaluate": {"every": 25},
    "report": False,
}
INLINE: dict[str, Any] = {"runtime": "inline", "rounds": 800}
CHANGES: dict[str, dict[str, Any]] = {
    "inline": INLINE,
    "private": {**INLINE, "compress": {"kind": "topk", "error_feedback": True}},
    "stack": {  # bases for the first half of the rounds, then the meta model
        **INLINE,
        "rounds": 120,
        "method": {
            "name": "stacking",
            "folds": "within",
            "bases": [{"name": "mlp", "hidden": [8]}, {"name": "linear"}],
        },
        "model": {},
        "clients": {"number": 6},
    },
    "ray": {"runtime": "ray", "rounds": 300, "clients": {"number": 12, "actors": 1}},
}


class Results(NamedTuple):
    """What a run leaves: its hashes, and the rows of its tables but for their wall time."""

    hashes: tuple[str, str]
    rounds: list[dict[str, Any]]
    clients: list[dict[str, Any]]


def fedray(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fedray", *map(str, arguments)]
    pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, start_new_session=True, **pipes)


def newest_round(out: Path) -> int:
    """Returns the round of the newest checkpoint, or 0 if there is none."""
    return max((int(path.name[6:]) for path in (out / "checkpoints").glob("round-[0-9]*")), default=0)


def kill_after(process: subprocess.Popen[str], out: Path, checkpoints: int, seconds: float) -> bool:
    """Kills a run some time after its n-th new checkpoint; False if it had ended by then."""
    at, deadline = newest_round(out) + checkpoints * EVERY, time.monotonic() + 240
    while process.poll() is None and time.monotonic() < deadline:
        if newest_round(out) >= at if checkpoints else (out / "scenario.yaml").exists():
            break
        time.sleep(0.005)
    time.sleep(seconds)
    alive = process.poll() is None
    if alive:
        os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    return alive


def read_results(process: subprocess.Popen[str], out: Path) -> Results:
    _, said = process.communicate()
    assert process.returncode == 0, said
    summary, tables = json.loads((out / "summary.json").read_text()), []
    for name in ("rounds", "clients"):
        table = record.read_table(out, name)
        kept = [column for column in table.column_names if column != "wall_seconds"]
        tables.append(sorted(table.select(kept).to_pylist(), key=repr))
    return Results((summary["model_hash"], summary["state_hash"]), *tables)


def run_with_kills(change: dict[str, Any], number: int, dice: random.Random, folder: Path) -> tuple[int, bool]:
    """Returns how often a run was killed, and whether its results equal those of an undisturbed run."""
    file, out, whole = folder / "scenario.yaml", folder / "killed", folder / "whole"
    rounds = change["rounds"] * max(1, number // 10)  # long enough for the kills
    file.write_text(yaml.safe_dump({**SCENARIO, **change, "rounds": rounds}))
    want = read_results(fedray("run", file, "runtime=inline", "--out", whole), whole)
    process, kills = fedray("run", file, "--out", out), 0
    for _ in range(number):
        kills += kill_after(process, out, dice.randint(0, 5), dice.uniform(0.0, 0.1))
        process = fedray("resume", out)
    return kills, read_results(process, out) == want


def main(number: int, seed: int, kinds: list[str]) -> int:
    dice, wrong = random.Random(seed), 0
    for kind in kinds:
        with tempfile.TemporaryDirectory() as folder:
            kills, same = run_with_kills(CHANGES[kind], number, dice, Path(folder))
        print(f"{kind}: {kills} kills of the driver, {'the same bits' if same and kills else 'OTHER BITS OR NO KILL'}")
        wrong += not (same and kills)
    return wrong


if __name__ == "__main__":
    kills, seed, kinds = sys.argv[1:] + ["10", "0", "inline,private,stack,ray"][len(sys.argv) - 1 :]
    sys.exit(main(int(kills), int(seed), kinds.split(",")))
