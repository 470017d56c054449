"""Unknown inputs and clients whose data moved are told apart, and nothing else depends on what is said of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import of_method, scenario, train_rounds

import fedray
from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study
from fedray.data.store import load_digits
from fedray.data.types import Dataset, Split
from fedray.evaluation.report_data import MOST_COMPARED_MEMBERS, compare_members, measure_drift, sample_uncertainty
from fedray.files.plain import hash_tensors
from fedray.metrics.classification import Drift, auroc, entropies, uncertainty, z_scores
from fedray.runtime.session import Inline
from fedray.scenario.loader import read_scenario
from fedray.simulation.study import Study

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


def test_where_clients_are_the_test_rows_there_are_1000_unknown_inputs() -> None:
    data = load_digits(None)
    data = data._replace(test=Split(data.test.x[:0], data.test.y[:0]))
    study = build_study(read_scenario(scenario(NOISE, {"data": {"test_clients": 2}})), UserObjects(data=data))
    assert len(study.split("ood", 0)[0]) == 1000


def test_nothing_else_depends_on_them() -> None:
    asked, plain = measure(), fedray.run(scenario({"rounds": 2, "evaluate": {"every": 2}}), report=False)
    assert asked.summary["model_hash"] == plain.summary["model_hash"]
    scores = asked.summary["metrics"]
    assert {name: value for name, value in scores.items() if not name.startswith("ood_")} == plain.summary["metrics"]


def test_one_model_has_no_disagreement_and_withheld_rows_have_scores_too() -> None:
    found = measure({"method": "fedavg", "data": {"hold_out": 0.25}}).metrics
    assert {name for name in found if "ood" in name} == SCORES | {f"hold_out_{name}" for name in SCORES}


@pytest.mark.parametrize("method", ["fedag", "ditto", "stacking", "adaboost_f"])
def test_every_kind_of_answer_is_scored(method: str) -> None:
    run = fedray.run(of_method(method, {"evaluate": {"ood": "noise"}}), report=False)
    known, unknown = (entropies(run.predict(run.study.split(split, 0)[0].numpy()).mean) for split in ("test", "ood"))
    assert run.metrics.keys() >= SCORES
    assert run.metrics["ood_auroc"] == pytest.approx(auroc(unknown, known), abs=1e-6)


CLIENTS, ROWS_EACH, MOVED = 24, 40, 5
NATURAL = scenario({"clients": {"number": CLIENTS}, "rounds": 2, "data": {"partition": {"name": "natural"}}})
NATURAL["data"].pop("limit")


def digits(*, inverted: int | None = None, alike: bool = False) -> Dataset:
    """Digits that are dealt to clients; one client's images are inverted, or all hold the same rows."""
    data = load_digits(None)
    rows = np.arange(CLIENTS * ROWS_EACH) % ROWS_EACH if alike else np.arange(CLIENTS * ROWS_EACH)
    owner = np.repeat(np.arange(CLIENTS), ROWS_EACH)
    x = data.train.x[rows]
    x = np.where((owner == inverted)[:, None, None, None], 16 - x, x)
    return data._replace(train=Split(x, data.train.y[rows], owner))


def study_of(data: Dataset) -> Study:
    return build_study(read_scenario(NATURAL), UserObjects(data=data))


def drift_of(study: Study, rounds: int, asked: Study) -> Drift:
    """The drift on the data of one study, of models that were trained on those of another."""
    state, _ = train_rounds(study, rounds)
    before = hash_tensors({"models": state.models, "counters": state.counters})
    drifts = measure_drift(asked, Inline(asked), state)
    assert hash_tensors({"models": state.models, "counters": state.counters}) == before
    assert drifts is not None and len(drifts) == 1
    return drifts[0]


def test_a_client_whose_data_moved_after_training_is_flagged() -> None:
    """The same models and data without it: nobody is."""
    study = study_of(digits())
    moved, unmoved = (drift_of(study, 4, asked) for asked in (study_of(digits(inverted=MOVED)), study))
    assert moved.z_knowledge.argmax() == MOVED
    assert np.flatnonzero(moved.anomaly).tolist() == [MOVED]
    assert not unmoved.anomaly.any()
    others = np.arange(CLIENTS) != MOVED
    assert np.array_equal(moved.knowledge[others], unmoved.knowledge[others])


def test_clients_that_hold_the_same_rows_have_no_drift() -> None:
    study = study_of(digits(alike=True))
    drift = drift_of(study, 2, study)
    assert (drift.knowledge > 0).all()
    assert (drift.z_knowledge == 0).all()
    assert not drift.anomaly.any()


def test_a_run_stores_the_drift_of_every_client() -> None:
    table = fedray.run(NATURAL, data=digits(inverted=MOVED), replicates=2).drift.to_pandas()
    scores = ["total", "knowledge", "z_total", "z_knowledge", "anomaly"]
    assert list(table.columns) == ["replicate", "fold", "client", "samples", *scores]
    assert table.client.tolist() == [*range(CLIENTS)] * 2 and (table.samples == ROWS_EACH).all()
    for replicate, rows in table.groupby("replicate"):
        assert rows.client[rows.anomaly].tolist() == [MOVED]
        np.testing.assert_allclose(rows.z_knowledge, z_scores(rows.knowledge))
        assert (rows.replicate == replicate).all()
    cubic = {"data": {"name": "cubic", "limit": None, "partition": {"name": "iid", "alpha": None}}}
    for method, change in (("fed_ensemble", cubic), ("ditto", {"method": {"models": 2}})):
        table = fedray.run(of_method(method, change)).drift.to_pandas()
        assert len(table) and (table.knowledge <= table.total + 1e-9).all()


def test_variances_of_a_regression_are_those_of_the_mixture() -> None:
    outputs = torch.randn(5, 7, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    total, knowledge = sample_uncertainty("half_mse", outputs)
    assert torch.equal(total, knowledge)
    np.testing.assert_allclose(knowledge, outputs.numpy().var(axis=0).mean(-1))
    total, knowledge = sample_uncertainty("gaussian_nll", outputs)
    assert (total > knowledge).all()
    np.testing.assert_allclose(knowledge, outputs[..., 0].numpy().var(axis=0))


def test_members_are_compared_pair_by_pair_up_to_as_many_as_are_drawn() -> None:
    members = np.random.default_rng(0).random((5, 40, 300))
    chosen = members.argmax(-1)
    assert np.array_equal(compare_members(members), [[(a != b).mean() for b in chosen] for a in chosen])
    assert compare_members(np.ones((MOST_COMPARED_MEMBERS + 1, 1, 2))).size == 0
