"""Run directories and a sweep written by fedray 0.1.0 (commit 6063d67), before its files were moved, are read today.

The run `before/plain` stopped after round 2 of 4. The run `before/stack` stopped in round 6 of 8, while its meta model
was trained; its clients hold residuals of error feedback. The sweep `before/sweep` stopped after three trials.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from small import rows

import fedray
from fedray.storage import summary
from fedray.tuning.tune import run_sweep

BEFORE = Path(__file__).parent / "before"


def taken(name: str, to: Path) -> Path:
    """A copy of a directory of that time."""
    shutil.copytree(BEFORE / name, to / name)
    return to / name


def test_the_commit_is_that_of_fedray_and_not_of_a_repository_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "__file__", str(BEFORE / "plain" / "summary.py"))  # as an installed package
    assert summary._commit.__wrapped__() is None


@pytest.mark.parametrize("name", ["plain", "stack"])
def test_a_run_of_the_version_before_resumes_to_the_end_of_a_new_one(name: str, tmp_path: Path) -> None:
    """Resumed, it ends as it ended then, in the rounds of a run of today; on the CPU that wrote it, with its hashes.

    The models of a new run are compared where uploads are dense. Top-k turns the last bit of a delta into an entry that
    is sent or not: trained with AVX2 and with AVX-512, the stack differs by 7e-3 after one round, and by 6e-8 at its
    end without top-k.
    """
    old = json.loads((BEFORE / name / "summary.json").read_text())
    resumed = fedray.resume(taken(name, tmp_path))
    fresh = fedray.run(BEFORE / name / "scenario.yaml", lanes="torch", out=tmp_path / "fresh")
    if name == "plain":
        for one, other in zip(resumed.models, fresh.models, strict=True):
            for key, value in one.items():
                torch.testing.assert_close(value, other[key], rtol=0, atol=1e-5)
    for metric, score in old["metrics"].items():
        assert resumed.summary["metrics"][metric]["mean"] == pytest.approx(score["mean"], abs=1e-6), metric
    assert resumed.summary.keys() == old.keys() | {"answer"}  # what an answer costs is younger
    assert [row["round"] for row in rows(resumed.rounds)] == [row["round"] for row in rows(fresh.rounds)]
    first = [rows(one.rounds)[0] for one in (resumed, fresh)]
    if fresh.summary["model_hash"] == old["model_hash"] and first[0] == first[1]:  # the same type of CPU
        assert resumed.summary["model_hash"] == old["model_hash"]
        assert resumed.summary["state_hash"] == old["state_hash"]
        assert rows(resumed.rounds) == rows(fresh.rounds)
        assert rows(resumed.clients) == rows(fresh.clients)


@pytest.mark.parametrize("name", ["plain", "stack", "sweep/trials/00001"])
def test_a_run_of_the_version_before_is_read(name: str) -> None:
    run = fedray.load(BEFORE / name)
    answer = run.predict(np.zeros((2, 1, 8, 8), dtype=np.uint8))
    assert np.isfinite(answer.mean).all() and run.rounds.num_rows > 0 and run.clients.num_rows > 0


@pytest.mark.short_report
def test_a_report_shows_runs_of_the_version_before(tmp_path: Path) -> None:
    from fedray.report.page import write_report

    out = tmp_path / "both.html"
    write_report([BEFORE / "plain", BEFORE / "stack"], out)
    assert "plain" in out.read_text()


def test_a_sweep_of_the_version_before_resumes(tmp_path: Path) -> None:
    """Its three trials stay as they are, and one more comes."""
    folder = taken("sweep", tmp_path)
    old = pq.read_table(folder / "trials.parquet").to_pylist()
    run_sweep(folder / "sweep.yaml", folder, trials=4, resume=True, say=lambda _line: None, report=False)
    new = pq.read_table(folder / "trials.parquet").to_pylist()
    assert len(new) == 4
    for before, after in zip(old, new, strict=False):
        known = {key: after[key] for key in before}  # there may be more columns now
        assert {**before, "run": None, "directory": None} == {**known, "run": None, "directory": None}
