"""Out-of-distribution inputs: what is said of them, that nothing else depends on them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import of_method, scenario
from sweeps import sweep

import fedray
from fedray.core.errors import BadInput
from fedray.data.types import Dataset, Split, classification
from fedray.metrics.ensemble import uncertainty
from fedray.metrics.unknown import auroc

NOISE = {"rounds": 2, "evaluate": {"every": 2, "ood": "noise"}}
SCORES = {"ood_auroc", "ood_fpr95", "ood_entropy"}


def measure(*changes: dict[str, Any], out: Path | None = None) -> fedray.Run:
    return fedray.run(scenario(NOISE, *changes), report=False, out=out)


def test_the_test_rows_themselves_are_not_told_apart() -> None:
    found = measure({"data": {"limit": None}, "method": {"models": 2}, "evaluate": {"ood": "digits"}}).metrics
    assert found["ood_auroc"] == found["ood_auroc_knowledge"] == 0.5
    assert found["ood_entropy"] == pytest.approx(found["entropy"], abs=1e-12)


def test_the_scores_are_those_of_the_predictions() -> None:
    run = measure({"method": {"models": 3}})
    parts = []
    for split in ("test", "ood"):
        members = run.predict(run.study.split(split, 0)[0].numpy()).members
        assert members is not None
        parts.append(uncertainty(members))
    known, unknown = parts
    assert run.metrics["ood_auroc"] == pytest.approx(auroc(unknown.total, known.total), abs=1e-9)
    assert run.metrics["ood_auroc_knowledge"] == pytest.approx(auroc(unknown.knowledge, known.knowledge), abs=1e-3)
    assert run.metrics["ood_entropy"] == pytest.approx(unknown.total.mean(), abs=1e-6)


def test_nothing_else_depends_on_them() -> None:
    asked, plain = measure(), fedray.run(scenario({"rounds": 2, "evaluate": {"every": 2}}), report=False)
    assert asked.summary["model_hash"] == plain.summary["model_hash"]
    scores = asked.summary["metrics"]
    assert {name: value for name, value in scores.items() if not name.startswith("ood_")} == plain.summary["metrics"]


def test_one_model_has_no_disagreement_and_withheld_rows_have_scores_too() -> None:
    found = measure({"method": "fedavg", "data": {"hold_out": 0.25}}).metrics
    assert {name for name in found if "ood" in name} == SCORES | {f"hold_out_{name}" for name in SCORES}


@pytest.mark.parametrize("method", ["fedbe", "fedag", "ditto", "stacking", "fens", "adaboost_f", "local_only", "ifca"])
def test_every_kind_of_answer_is_scored(method: str) -> None:
    found = fedray.run(of_method(method, {"evaluate": {"ood": "noise"}}), report=False).metrics
    assert found.keys() >= SCORES
    assert 0 <= found["ood_auroc"] <= 1


def mine(_root: Path | None) -> Dataset:
    rows = np.zeros((30, 1, 8, 8), dtype=np.uint8)
    return classification("mine", Split(rows, np.arange(30) % 3), Split(rows[:12], np.arange(12) % 3), ("a", "b", "c"))


def test_inputs_of_ones_own_are_named_by_their_registration(tmp_path: Path) -> None:
    fedray.register("data", "mine", mine)
    run = measure({"evaluate": {"ood": "mine"}}, out=tmp_path / "run")
    assert len(run.study.split("ood", 0)[0]) == 12
    again = fedray.load(tmp_path / "run")
    assert again.metrics == run.metrics


def test_a_resumed_run_has_the_scores_of_one_that_was_not_interrupted(tmp_path: Path) -> None:
    measure(out=tmp_path / "run")
    whole = measure({"rounds": 4})
    longer = fedray.resume(tmp_path / "run", rounds=4)
    assert longer.summary["metrics"] == whole.summary["metrics"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no such data": (
        {"evaluate": {"ood": "mnits"}},
        "evaluate.ood = mnits is no data set: choose noise or a name of `fedray list datasets`$",
    ),
    "another shape": ({"evaluate": {"ood": "sine"}}, r"evaluate.ood = sine has inputs of shape \[1\] .* but digits"),
    "a folder": ({"evaluate": {"ood": "folder"}}, "evaluate.ood = folder: data.path is missing"),
    "targets": (
        {"data": {"name": "cubic", "limit": None}, "model": "linear"},
        "evaluate.ood = noise, but cubic has real",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_inputs_that_do_not_fit_are_refused_in_one_line(name: str) -> None:
    changes, text = REFUSED[name]
    with pytest.raises(BadInput, match=text) as no:
        measure(changes)
    assert "\n" not in str(no.value)


def test_the_report_draws_them(tmp_path: Path) -> None:
    run = measure(out=tmp_path / "run")
    figure = run.plot("ood")
    assert figure.axes[0].get_xlabel() == "entropy of the answer (nats)"
    assert f"{100 * run.metrics['ood_auroc']:.1f} %" in str(figure.get_label())


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_the_scores_on_ray_are_those_of_one_process(tmp_path: Path) -> None:
    inline = measure({"method": {"models": 2}})
    on_ray = measure({"method": {"models": 2}, "runtime": "ray"}, out=tmp_path / "run")
    assert on_ray.summary["metrics"] == inline.summary["metrics"]


def test_a_sweep_may_maximize_what_withheld_rows_say(tmp_path: Path) -> None:
    given = sweep({"local.lr": [0.1, 0.3]}, sampler="grid", objectives=["ood_auroc"])
    found = fedray.tune({**given, "overrides": {"evaluate": {"ood": "noise"}}}, out=tmp_path, report=False)
    assert found.get_best_result().metrics["ood_auroc"] == max(trial.metrics["ood_auroc"] for trial in found)
    with pytest.raises(BadInput, match="^objectives: ood_auroc needs unknown inputs: write overrides"):
        fedray.tune(given, out=tmp_path / "without")


def test_runs_with_the_same_unknown_inputs_are_compared_by_them(tmp_path: Path) -> None:
    keys = scenario({"rounds": 1, "replicates": 2, "report": False, "evaluate": {"ood": "noise"}})
    runs = [fedray.run(keys, method__models=k, out=tmp_path / str(k)) for k in (1, 2)]
    (pair,) = [one for one in fedray.compare(runs).pairs if one.metric == "ood_auroc"]
    assert pair.run_mean == pytest.approx(runs[1].metrics["ood_auroc"], abs=1e-12)
    other = fedray.run(keys, evaluate__ood="digits", method__models=1, out=tmp_path / "other")
    found = fedray.compare([runs[0], other], names=["a", "b"])
    assert not any(one.metric.startswith("ood") for one in found.pairs)
    assert (
        "The runs differ in evaluate.ood (noise, digits): their scores of such inputs are not compared." in found.notes
    )
