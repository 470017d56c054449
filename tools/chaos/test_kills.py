"""Kills at random moments change no bit, whatever the method keeps.

The methods here keep nothing, residuals, corrections, walking models, or features between rounds.
Ten faults a scenario at least; `python tools/chaos/disturb.py` does it to any scenario file.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from disturb import run_disturbed, shuffle_faults

import fedray

LEAST_SECONDS = 120.0  # of an undisturbed run inline: 14 faults take some two minutes
LEAST_FAULTS, MOST_RUNS = 10, 3
MOST_EPOCHS = 12_000  # with more, the drawn batches of a job would fill the memory
BASE: dict[str, Any] = {
    "rounds": 20,
    "data": {"name": "digits", "partition": {"name": "dirichlet", "alpha": 1.0}},
    "model": {"name": "mlp", "hidden": [64]},
    "clients": {"number": 40},
    "local": {"lr": 0.05, "batch_size": 8, "epochs": 450},
    "checkpoint": {"every": 1, "keep": 3},
    "evaluate": {"every": 5},
}
METHODS: dict[str, dict[str, Any]] = {
    "fed_ensemble": {
        "method": {"name": "fed_ensemble", "models": 3},
        "local": {"lr": 0.05, "batch_size": 8, "epochs": 1600},
    },
    "shefl": {
        "method": {"name": "shefl", "models": 3},
        "clients": {
            "number": 40,
            "tiers": {"strong": {"share": 0.5, "models_per_round": "all"}, "weak": {"share": 0.5}},
        },
        "compress": {"kind": "topk", "ratio": 0.1, "error_feedback": True},
    },
    "feddyn": {"method": {"name": "feddyn"}, "local": {"lr": 0.05, "batch_size": 8, "epochs": 3000}},
    "random_walk": {
        "method": {"name": "random_walk", "models": 5},
        "graph": {"kind": "watts_strogatz", "node_failure": 0.05},
        "local": {"lr": 0.05, "batch_size": 8, "epochs": 4500},
    },
    "stacking": {
        "method": {
            "name": "stacking",
            "bases": [{"name": "mlp", "hidden": [64]}, {"name": "mlp", "hidden": [32]}],
            "folds": "within",
            "fold_number": 3,
            "meta_rounds": 10,
        },
        "model": {},
        "clients": {"number": 10},
    },
    "without_rounds": {
        "method": {"name": "fed_ensemble", "models": 3},
        "clients": {"number": 40, "tiers": {"phones": {"spread": 1.0}}},
        "participation": {"mode": "buffered", "concurrency": 20, "goal": 10},
        "compress": {"kind": "topk", "ratio": 0.1, "error_feedback": True},
        "rounds": 160,  # faults of raylets and memory take half a minute, in which it goes on
    },
}


def lengthen(scenario: dict[str, Any]) -> dict[str, Any]:
    """Returns a scenario with so many epochs, or else rounds, that a run takes `LEAST_SECONDS` on this machine."""
    few, seconds = {**scenario, "rounds": max(2, scenario["rounds"] // 10), "checkpoint": {}}, [0.0, 0.0]
    for i in range(2):  # the first run reads the data
        began = time.monotonic()
        fedray.run(few, runtime="inline", report=False)
        seconds[i] = time.monotonic() - began
    factor = max(1.0, LEAST_SECONDS / (seconds[1] * scenario["rounds"] / few["rounds"]))
    local = scenario["local"]
    epochs = min(MOST_EPOCHS, round(local["epochs"] * factor))
    rounds = max(scenario["rounds"], round(scenario["rounds"] * local["epochs"] * factor / epochs))
    return {**scenario, "rounds": rounds, "local": {**local, "epochs": epochs}}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", METHODS)
def test_kills_at_random_moments_change_no_bit(name: str, tmp_path: Path) -> None:
    seed = sorted(METHODS).index(name)
    scenario = lengthen({**BASE, **METHODS[name]})
    fell = 0
    for attempt in range(MOST_RUNS):  # a slow fault may leave no time for the faults after it
        (folder := tmp_path / str(attempt)).mkdir()
        outcome = run_disturbed(scenario, shuffle_faults(14, seed + 100 * attempt), folder, seed + 100 * attempt)
        print(outcome.row(name), outcome.rounds)
        assert outcome.same
        fell += sum(outcome.kills.values())
        if fell >= LEAST_FAULTS:
            return
    raise AssertionError(f"only {fell} faults fell, because the runs ended before them")
