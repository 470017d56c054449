"""A scenario in Ray Tune: what its trials report, how they go on, and that schedulers end them."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from small import scenario

import fedray
from fedray.assembly.registry import UserObjects
from fedray.experiments.trainable import TOTALS, run_trial
from fedray.scenario.loader import read_scenario
from fedray.storage.directory import adopt_run

KEYS = scenario({"rounds": 4, "data": {"hold_out": 0.25}, "evaluate": {"every": 2}})
Reported = list[dict[str, float]]


class Tune:
    """Stands for Ray Tune: keeps what a trial reports, and ends it after a number of reports."""

    def __init__(self, folder: Path, *, enough: int = 99, start: Path | None = None) -> None:
        self.folder, self.enough, self.start = folder, enough, start
        self.reported: Reported = []

    def report(self, metrics: Mapping[str, float], folder: Path | None) -> None:
        assert folder is not None
        self.reported.append(dict(metrics))
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(folder, self.folder)
        if len(self.reported) == self.enough:
            raise SystemExit(0)  # as Tune ends a trial

    def restore_trial(self, out: Path, scenario_text: str) -> bool:
        if self.start is not None:
            adopt_run(self.start, out, scenario_text)
        return self.start is not None


def train(tune: Tune, **config: Any) -> Tune:
    run_trial(lambda further: read_scenario(KEYS, dict(further)), UserObjects(), 0, config, tune)
    return tune


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Tune:
    return train(Tune(tmp_path_factory.mktemp("tune") / "checkpoint"))


def test_a_trial_reports_every_evaluated_round_as_a_run_scores_it(whole: Tune) -> None:
    rounds = fedray.run(KEYS).rounds.to_pylist()
    assert [one["round"] for one in whole.reported] == [2, 4]
    for one in whole.reported:
        [row] = (row for row in rounds if row["round"] == one["round"])
        assert one["hold_out_accuracy"] == row["hold_out_accuracy"]
        assert one["up_bytes"] == row["up_bytes"] > 0
        assert all(name.startswith("hold_out_") for name in one.keys() - set(TOTALS))  # of no test row


def test_a_trial_that_was_ended_goes_on_to_the_same_bits(whole: Tune, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        train(Tune(tmp_path / "half", enough=1))
    rest = train(Tune(tmp_path / "rest", start=tmp_path / "half"))
    assert [one["round"] for one in rest.reported] == [4]
    for one, other in zip(*(fedray.load(tune.folder).models for tune in (rest, whole)), strict=True):
        assert all(torch.equal(*pair) for pair in zip(one.values(), other.values(), strict=True))
    assert rest.reported[-1]["hold_out_accuracy"] == whole.reported[-1]["hold_out_accuracy"]


def test_a_trial_goes_on_from_the_models_of_another_one(whole: Tune, tmp_path: Path) -> None:
    """As population based training has it: the keys are its own."""
    with pytest.raises(SystemExit):
        train(Tune(tmp_path / "half", enough=1))
    other = train(Tune(tmp_path / "other", start=tmp_path / "half"), local={"lr": 0.5})
    assert [one["round"] for one in other.reported] == [4]
    assert other.reported[0]["hold_out_nll"] != whole.reported[-1]["hold_out_nll"]
