"""Small sweeps for the tests: seconds of work, real training."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from fedray.tuning.tune import run_sweep

BASE: dict[str, Any] = {
    "runtime": "inline",
    "rounds": 6,
    "method": {"name": "fed_ensemble", "models": 2},
    "data": {"name": "digits", "limit": 400, "partition": {"name": "classes", "classes": 2}},
    "model": {"name": "mlp", "hidden": [8]},
    "clients": {"number": 8},
    "local": {"lr": 0.3, "epochs": 1},
}
LR = {"type": "float", "low": 0.01, "high": 1.0, "log": True}


def sweep(space: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """Returns a sweep of BASE."""
    return {"scenario": BASE, "space": space, "objectives": ["accuracy"], "trials": 4, **keys}


def run(found: dict[str, Any], out: Path, **options: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Runs a sweep in this process: its summary and the rows of trials.parquet."""
    summary = run_sweep(found, out, say=lambda _line: None, **options)
    return summary, rows(out)


def rows(out: Path) -> list[dict[str, Any]]:
    """Returns the rows of trials.parquet."""
    found: list[dict[str, Any]] = pq.read_table(out / "trials.parquet").to_pylist()
    return found


def list_outcomes(found: list[dict[str, Any]]) -> list[Any]:
    """Returns what a sweep found: number, state, values and params of every trial."""
    return [(row["number"], row["state"], row["values"], row["params"]) for row in found]
