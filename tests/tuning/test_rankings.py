"""What a sweep says of its trials: which is the best, by which bytes, and what mattered."""

from pathlib import Path
from typing import Any

import pytest
from sweeps import run, sweep

from fedray.tuning import page
from fedray.tuning.page import View
from fedray.tuning.sweep import list_idle_parameters, read_sweep


def test_trials_were_pruned_and_decided_by_a_phase_that_others_follow(tmp_path: Path) -> None:
    method = {"name": "stacking", "meta_rounds": 4}
    keys: dict[str, Any] = {"sampler": "grid", "overrides": {"method": method, "rounds": 3}}
    ends = []
    for rates in ([0.03, 1e-5], [1e-5, 0.03]):  # in one of the orders the second is worse
        pruned = sweep({"local.lr": rates}, objectives=["nll"], pruner={"name": "median", "startup": 1}, **keys)
        ends += run(pruned, tmp_path / str(rates[0]))[1]
    assert [row["rounds"] > 3 for row in ends] == [True] * 4
    assert "pruned" in {row["state"] for row in ends}
    decided = sweep({"local.lr": [0.03]}, objectives=[{"name": "rounds_to_accuracy", "target": 0.05}], **keys)
    _, (trial,) = run(decided, tmp_path / "decided")
    assert trial["values"]["rounds_to_accuracy"] >= 4


@pytest.mark.drawn
def test_of_two_objectives_the_top_of_the_first_was_called_the_best(tmp_path: Path) -> None:
    found = sweep({"local.lr": [0.1, 0.3]}, sampler="grid", objectives=["accuracy", "bytes"], overrides={"rounds": 1})
    assert run(found, tmp_path / "s")[0]["first_winner"] == "highest accuracy"
    text = (tmp_path / "s" / "best.yaml").read_text()
    assert text.startswith("# The highest accuracy of the Pareto front (pareto/); no trial is best in everything.")
    drawn = (tmp_path / "s" / "report.html").read_text()
    assert "highest accuracy" in drawn and "best accuracy" not in drawn and "the highest accuracy first" in drawn
    assert "tested after" in drawn and "round 1, " in drawn


@pytest.mark.drawn
def test_a_key_without_effect_was_ranked_on_the_page(tmp_path: Path) -> None:
    """`predict.gamma` weighs the models of known clients, and accuracy is that of new ones."""
    given = sweep({"local.lr": [0.01, 0.1, 0.3], "predict.gamma": [0.1, 1.0], "local.momentum": [0.0, 0.5]},
                  sampler="grid", objectives=["accuracy", "personal_accuracy"], trials=None,
                  overrides={"rounds": 1})  # fmt: skip
    seen: list[View] = []
    with pytest.MonkeyPatch.context() as patch:
        real = page._notes

        def hear(view: View) -> list[str]:
            seen.append(view)
            return real(view)

        patch.setattr(page, "_notes", hear)
        patch.setattr(page, "_sections", lambda _view, _notes: [])  # drawn below, where they are looked at
        run(given, tmp_path / "s")
    (view,) = seen
    assert list_idle_parameters(read_sweep(given)) == (frozenset({"predict.gamma"}), frozenset())
    stop = [None, {"metric": "hold_out_personal_accuracy"}]
    with_stop = {**given, "space": {**given["space"], "stop": stop}}  # gamma acts: it may end a training
    assert list_idle_parameters(read_sweep(with_stop)) == (frozenset(), frozenset())
    first, second = (page.compute_importance(view, i) for i in (0, 1))
    assert set(first) == {"local.lr", "local.momentum"} and sum(first.values()) == pytest.approx(1.0)
    assert "predict.gamma" in second
    assert [parameter.key for parameter in view.acting(0)] == ["local.lr", "local.momentum"]
    assert page._notes(view) == ["predict.gamma cannot act on accuracy, and has no place in its pictures."]
    slices = page.figure_slices(view, 0)
    assert slices is not None and "predict.gamma" not in {axes.get_xlabel() for axes in slices.axes}
