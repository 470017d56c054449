"""Measures training and what lies around it: `python bench/around.py [--repeat 5] [--out table.md]`.

Prints a table with the median and the range of several repetitions. Ratios of the first rows are to the lean loop, on
one core. Every row of `fedray bench` and every command runs in a process of its own. Takes about 20 minutes on a quiet
machine with two free cores, and needs FashionMNIST (`FEDRAY_DATA`).
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import more_rows

from fedray.bench import rows

SCENARIO = Path(__file__).parents[1] / "scenarios" / "quickstart.yaml"
KNOWN = ("data.name=fashion_mnist", "data.limit=4000", "rounds=10", "replicates=3", "local.epochs=1", "local.lr=0.1")
SHORT = ("rounds=1", "local.epochs=1", "evaluate.every=1")
RESNET = """
import resource, sys
from fedray.bench import rows, works
from fedray.models.nets import resnet18
from fedray.runtime.environment import use_one_thread
rows.pin_to_one_core()
use_one_thread()
keys = works.fedavg_scenario(20, 10, batch_size=16)
make = lambda: resnet18((3, 32, 32), 10, norm="group")
data = works.noise(20 * 64, (3, 32, 32))
work = works.BenchWork(works.read_scenario(keys), works.UserObjects(data=data, model=make), make)
study = work.study()
fedray = works.simulate(study)[0]
if len(sys.argv) > 1:
    fedray(1)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)
else:
    lean, cost = rows.take_turns([(works.make_plain_laps(study, work, run=works.lean_round), 1), (fedray, 1)], 1)
    print(cost.cpu / lean.cpu)
"""


def python(*arguments: str) -> tuple[str, float]:
    """Runs Python; returns what it prints, and its CPU seconds with those of its children."""
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done.stdout, ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime


def bench(row: str, which: int = 0) -> float:
    """Measures a row of `fedray bench` or of `more_rows.py`, of which result `which` counts."""
    return float(rows.measure_row((rows.ROWS | more_rows.ROWS)[row], True)[which].measured)


def run(*keys: str, report: bool = False) -> tuple[Path, float]:
    """Runs the quick start with other keys; returns its directory and its CPU seconds."""
    out = Path(tempfile.mkdtemp()) / "run"
    more = () if report else ("report=false",)
    return out, python("-m", "fedray", "run", str(SCENARIO), *keys, *more, "--out", str(out))[1]


def evaluation(*keys: str) -> float:
    """Measures the seconds of evaluation, divided by those of training."""
    record = json.loads((run("runtime=inline", *keys)[0] / "manifest.json").read_text())["timings"]
    return float(record["evaluation_seconds"] / record["training_seconds"])


def report() -> float:
    """Measures the CPU seconds that the report of the quick start adds to the run."""
    return run("runtime=inline", report=True)[1] - run("runtime=inline")[1]


def beside_torch(command: Callable[[], float]) -> float:
    """Measures the CPU seconds of a command, minus those of `import torch`."""
    return command() - python("-c", "import torch")[1]


def start_on_ray() -> float:
    """Measures the wall seconds of a run of one short round on Ray with two actors, from the command to its end."""
    began = time.perf_counter()
    run("runtime=ray", "clients.actors=2", *SHORT)
    return time.perf_counter() - began


ROWS: dict[str, tuple[str, str, Callable[[], float]]] = {  # work -> unit, goal, measurement
    "1,000 clients of 20 samples, 100 a round, MLP of 4,810 parameters": ("x", "0.035", lambda: bench("thousand", 1)),
    "10,000 clients, 1,000 a round": ("x", "0.03", lambda: bench("ten_thousand", 1)),
    "CNN, 10 and 20 channels": ("x", "0.13", lambda: bench("cnn", 1)),
    "CNN, 32 and 64 channels": ("x", "0.45", lambda: bench("wide_cnn", 1)),
    "ResNet-18 with GroupNorm, 10 clients of 64 images": ("x", "1.00", lambda: float(python("-c", RESNET)[0])),
    "its peak memory": ("GB", "1.0", lambda: float(python("-c", RESNET, "memory")[0])),
    "quick start: evaluation / training": ("x", "0.3", evaluation),
    "three seeds on 28 x 28 with known clients: evaluation / training": ("x", "0.5", lambda: evaluation(*KNOWN)),
    "report of the quick start": ("s", "1.0", report),
    "start-up of a run beside `import torch`": (
        "s", "0.3", lambda: beside_torch(lambda: run("runtime=inline", *SHORT)[1]),
    ),
    "`fedray check` beside `import torch`": (
        "s", "0.2", lambda: beside_torch(lambda: python("-m", "fedray", "check", str(SCENARIO))[1]),
    ),
    "a run of one short round on Ray, two actors, from command to end": ("s", "9", start_on_ray),
    "a round on Ray, above inline": ("ms", "1.5", lambda: bench("ray")),
    "one actor / two actors": ("x", "1.8", lambda: bench("scaling")),
    "a job without rounds / in rounds": ("x", "1.3", lambda: bench("buffered")),
    "twenty folds / one": ("x", "4", lambda: bench("folds")),
}  # fmt: skip


def main() -> None:
    """Prints the table, one row after the other."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="words of the rows that are measured")
    asked = parser.parse_args()
    lines = [rows.describe_machine(), "", "| work | median | range | goal |", "| --- | --- | --- | --- |"]
    print("\n".join(lines), flush=True)
    with tempfile.TemporaryDirectory() as tempfile.tempdir:  # of all runs
        for what, (unit, goal, measure) in ROWS.items():
            if asked.only in what:
                found = [measure() for _ in range(asked.repeat)]
                middle, low, high = statistics.median(found), min(found), max(found)
                lines.append(f"| {what} | {middle:.3g} {unit} | {low:.3g} to {high:.3g} | {goal} |")
                print(lines[-1], flush=True)
    if asked.out:
        asked.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
