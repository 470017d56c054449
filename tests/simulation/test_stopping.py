"""Runs that end early, keep their best round, call the user's functions and score with their metrics."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import copy_run, models, rows, scenario, spell_out
from torch import Tensor

import fedray
from fedray.core.errors import BadInput, Enough, FedrayError, ScenarioWarning
from fedray.methods import Scored
from fedray.report.compare import format_cell
from fedray.report.page import make_cards
from fedray.report.read import read_run
from fedray.simulation.rounds import follow_course, is_out_of_patience
from fedray.storage.directory import drop_newer_parts


def run(*changes: dict[str, Any], **options: Any) -> fedray.Run:
    few = {"method": {"name": "fedavg"}, "data": {"limit": 90}, "clients": {"number": 3}}
    return fedray.run(spell_out(scenario(few, {"checkpoint": {"every": 1, "keep": 99}}, *changes)), **options)


def same(one: fedray.Run, other: fedray.Run) -> bool:
    """Bits and rows."""
    return rows(one.rounds) == rows(other.rounds) and one.summary["state_hash"] == other.summary["state_hash"]


def sawtooth(values: list[float]) -> Callable[[Scored], float]:
    """A metric whose value after round t is given, found by how often it was asked: for runs that are not disturbed."""
    left = iter(values)
    return lambda _: next(left)


def test_a_run_ends_when_it_gets_no_better() -> None:
    """Best in round 2; the gain of round 4 is too small; patience of 3 rounds ends it after round 5."""
    values = [0.1, 0.2, 0.5, 0.4, 0.505, 0.3, 0.9, 0.9]
    keys = {"rounds": 7, "stop": {"metric": "tooth", "patience": 3, "min_delta": 0.01}}
    done = run(keys, metrics={"tooth": sawtooth(values)})
    assert done.summary["rounds"] == 5
    assert done.summary["stopped"] == "tooth has not become better in 3 rounds"
    assert done.rounds["tooth"].to_pylist() == values[:6]
    full = run({"rounds": 5}, {"stop": {"metric": "tooth", "patience": 9}}, metrics={"tooth": sawtooth(values)})
    assert "chosen_on_test" in done.summary and "chosen_on_test" not in full.summary  # no rule ended it
    assert torch.equal(models(done), models(full))


def test_a_world_without_a_value_does_not_get_that_of_another() -> None:
    """The first world is measured from round 1 on; the second does not get better after round 0."""
    best: list[list[float]] = []
    assert follow_course(best, [None, 0.5], 0, lower=False)
    assert best == [[], [0.5, 0.0]]
    assert is_out_of_patience(best, 3, 3), "what has no value has no say"
    assert follow_course(best, [0.4, 0.5], 1, lower=False)
    assert best == [[0.4, 1.0], [0.5, 0.0]]
    assert not follow_course(best, [float("nan"), 0.5], 2, lower=False)
    assert not is_out_of_patience(best, 3, 3)
    assert is_out_of_patience(best, 4, 3)


def test_the_best_round_keeps_its_models(tmp_path: Path) -> None:
    """They answer `predict`, with the clients' private layers of that round."""
    values = [0.0, 0.2, 0.7, 0.6, 0.5]
    keys = {"rounds": 4, "checkpoint": {"best": "tooth"}, "method": {"name": "fedper"}}
    done = run(keys, metrics={"tooth": sawtooth(values)}, out=tmp_path / "run")
    assert done.summary["best"] == {"metric": "tooth", "value": 0.7, "round": 2}
    best, early = done.best, run({**keys, "rounds": 2}, metrics={"tooth": sawtooth(values)})
    assert best.progress.round == best.metrics["round"] == 2
    assert torch.equal(models(best), models(early))
    assert not torch.equal(models(best), models(done))
    loaded = fedray.load(done.path, metrics={"tooth": sawtooth(values)}).best
    x = np.zeros((3, 1, 8, 8), dtype=np.uint8)
    kept, then, now = (np.array(one.predict(x, client=1).probabilities) for one in (loaded, early, done))
    assert np.array_equal(kept, then)
    assert not np.array_equal(kept, now)
    drop_newer_parts(done.path, 1)  # as a run does that goes on from there
    with pytest.raises(FedrayError, match="keeps no best round"):
        _ = fedray.load(done.path, metrics={"tooth": sawtooth(values)}).best


def doubt(scored: Scored) -> float:
    """A metric of the answers alone."""
    p = scored.prediction
    assert scored.members.shape == (1, *p.shape)
    assert len(scored.inputs) == len(scored.targets) == len(p)
    return float(-(p * np.log(p + 1e-12)).sum(axis=1).mean())


def test_a_callback_is_called_after_each_round_and_may_end_the_run() -> None:
    told: list[tuple[int, bool, float]] = []

    def tell(round: int, scores: dict[str, float], models: Callable[[], list[dict[str, Tensor]]]) -> bool:
        told.append((round, bool(scores), float(models()[0]["1.weight"].sum())))
        return round == 3

    done = run({"rounds": 9, "evaluate": {"every": 2}}, callbacks=tell, metrics=[doubt])
    assert [one[:2] for one in told] == [(1, False), (2, True), (3, False)]
    assert done.summary["rounds"] == 3
    assert "tell asked for it" in done.summary["stopped"]
    assert done.rounds["round"].to_pylist() == [0, 2, 3]
    assert told[-1][2] == pytest.approx(float(done.models[0]["1.weight"].sum()))
    assert done.summary["metrics"]["doubt"]["mean"] == done.rounds["doubt"].to_pylist()[-1]
    assert torch.equal(models(done), models(run({"rounds": 3})))


RULES: dict[str, Any] = {
    "rounds": 8, "replicates": 2, "stop": {"metric": "nll", "patience": 2, "min_delta": 0.05},
    "checkpoint": {"best": "doubt"},
}  # fmt: skip


def test_a_run_that_was_killed_ends_the_same_way(tmp_path: Path) -> None:
    """Its rules are where they were: the same last round, rows, models and best round."""
    own: dict[str, Any] = {"metrics": [doubt], "callbacks": [lambda round, _scores, _models: round == 5]}
    whole = run(RULES, out=tmp_path / "whole", **own)
    assert 2 <= whole.summary["rounds"] <= 5
    left, ended = copy_run(whole, tmp_path / "left", 1), tmp_path / "ended"

    def end(snapshot: dict[str, Any]) -> None:
        if snapshot["round"] == whole.summary["best"]["round"]:
            raise Enough("as a sweep ends a trial")

    with pytest.raises(Enough):
        run(RULES, out=ended, watch=end, **own)
    for path in (left, left, ended):  # and a run that has ended goes on to what it is
        resumed = fedray.resume(path, **own)
        assert same(whole, resumed)
        assert [resumed.summary[key] for key in ("best", "stopped")] == [
            whole.summary[key] for key in ("best", "stopped")
        ]
        assert torch.equal(models(resumed.best), models(whole.best))


@pytest.mark.parametrize("rounds", [0, 2])
def test_a_finished_run_is_made_longer_to_the_bit_of_a_long_one(rounds: int, tmp_path: Path) -> None:
    """Also where its rate restarts, which is never 0 for good."""
    keys = {"local": {"schedule": {"kind": "cosine", "rounds": 2, "restart": True}}}
    short = run({"rounds": rounds}, keys, out=tmp_path / "run")
    assert same(fedray.resume(short.path, rounds=4), run({"rounds": 4}, keys))


def test_a_longer_run_remembered_a_round_that_it_would_not_have_evaluated(tmp_path: Path) -> None:
    """The last round of the shorter run is measured beside the others; where it is the best, the run stays short."""
    keys = {"rounds": 4, "evaluate": {"every": 3}, "stop": {"metric": "tooth", "patience": 3}}
    short = run(keys, out=tmp_path / "best", metrics={"tooth": sawtooth([0.1, 0.2, 0.3])})
    with pytest.raises(BadInput):
        fedray.resume(short.path, rounds=6, metrics={"tooth": sawtooth([0.4])})
    own: dict[str, Any] = {"metrics": {"tooth": sawtooth([0.1, 0.5, 0.3, 0.4])}}
    longer = fedray.resume(run(keys, out=tmp_path / "worse", **own).path, rounds=6, **own)
    assert longer.rounds["tooth"].to_pylist() == [0.1, 0.5, 0.3, 0.4]


RULES_BY_NAME: dict[str, dict[str, Any]] = {
    "stop": {"stop": {"metric": "tooth", "patience": 1}},
    "stop_at": {"evaluate": {"stop_at": {"metric": "tooth", "value": 0.6}}},
    "best": {"checkpoint": {"best": "tooth"}},
}


@pytest.mark.parametrize("rule", RULES_BY_NAME)
def test_a_round_was_chosen_by_the_test_rows_beside_withheld_ones(rule: str) -> None:
    """Best round by the test rows 0.716, by withheld rows 0.700; of these rounds the test rows would choose others."""
    keys = {"rounds": 4, "data": {"hold_out": 0.3}, **RULES_BY_NAME[rule]}
    left = {"test": iter([0.1, 0.2, 0.7, 0.1, 0.1]), "hold_out": iter([0.1, 0.5, 0.55, 0.7, 0.2])}
    with pytest.warns(ScenarioWarning):
        done = run(keys, metrics={"tooth": lambda scored: next(left[scored.split])})
    if rule == "best":
        assert done.summary["best"] == {"metric": "hold_out_tooth", "value": 0.7, "round": 3}
    else:
        assert done.summary["stopped"].startswith("hold_out_tooth has ")
        assert done.summary["rounds"] == {"stop": 4, "stop_at": 3}[rule]
    assert "chosen_on_test" not in done.summary


def test_a_round_that_the_test_rows_choose_is_said_and_its_scores_are_marked(tmp_path: Path) -> None:
    keys = {"rounds": 4, **RULES_BY_NAME["stop"]}
    with pytest.warns(ScenarioWarning):
        done = run(keys, out=tmp_path / "run", metrics={"tooth": sawtooth([0.1, 0.2, 0.7, 0.1, 0.1])})
    assert done.summary["chosen_on_test"] == {"stop.metric": "tooth"}
    read = read_run(done.path)
    assert "\u2020" in format_cell(read, "accuracy") and "\u2020" in make_cards(read)[0].value
    other = run({"rounds": 4}, out=tmp_path / "other")
    found = fedray.compare([other, done], names=["other", "done"])
    (note,) = [line for line in found.notes if "test rows" in line]
    assert "done" in note and "(stop.metric = tooth)" in note and "chosen_on_test" in found.dataframe.columns


@pytest.mark.parametrize("rule", RULES_BY_NAME)
def test_rules_read_a_method_with_phases_before_its_last_phase(rule: str) -> None:
    """A stack whose bases got no better ended without a meta model, and its best round was one of the bases alone."""
    keys = {"rounds": 3, "method": {"name": "stacking", "meta_rounds": 3}, **RULES_BY_NAME[rule]}
    done = run(keys, metrics={"tooth": sawtooth([0.1, 0.9, 0.8, 0.7, 0.2, 0.65, 0.1])})
    if rule == "best":
        assert done.summary["best"] == {"metric": "tooth", "value": 0.65, "round": 5}
    else:
        assert done.summary["rounds"] == {"stop": 6, "stop_at": 5}[rule]
    late = [row["accuracy"] for row in done.rounds.to_pylist() if row["round"] > 3]
    last3 = done.summary["metrics"].get("accuracy_last3", {}).get("mean")
    assert last3 == (pytest.approx(np.mean(late)) if len(late) == 3 else None)
