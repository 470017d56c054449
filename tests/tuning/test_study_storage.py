"""A study's storage that is damaged, locked or lost is one line that names it, and never blames something else."""

import sqlite3
from pathlib import Path

import pytest
from sweeps import LR, run, sweep

from fedray.core.errors import FedrayError
from fedray.tuning.tune import run_sweep

SWEEP = sweep({"predict.gamma": [0.1, 1.0, 10.0]}, trials=3, sampler="grid", objectives=["personal_accuracy"])


def test_a_lock_that_a_killed_sweep_left_does_not_stop_the_next_one(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(SWEEP, out, report=False)
    (out / "study.journal.lock").touch()
    assert run(SWEEP, out, resume=True, report=False)[0]["complete"] == 3
    assert not (out / "study.journal.lock").exists()


def test_a_database_that_somebody_else_has_locked_is_one_line(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}?timeout=0.1"
    holders: list[sqlite3.Connection] = []

    def lock(_line: str) -> None:
        if not holders:
            holders.append(sqlite3.connect(tmp_path / "study.db"))
            holders[0].execute("BEGIN EXCLUSIVE")

    with pytest.raises(
        FedrayError, match=r"the storage of the sweep \(sqlite://...\) cannot be used \(.*locked"
    ) as caught:
        run_sweep(sweep({"local.lr": LR}, trials=3), tmp_path / "out", storage=url, say=lock, report=False)
    holders[0].close()
    assert "\n" not in str(caught.value)
