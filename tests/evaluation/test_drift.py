"""A client whose data moved stands out in `drift.parquet`; clients that are all alike do not; no model changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import of_method, scenario, train_rounds

import fedray
from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study
from fedray.core.errors import FedrayError
from fedray.data import Dataset, Split
from fedray.data.named import load_digits
from fedray.evaluation.drift import measure_drift, sample_uncertainty
from fedray.files.plain import hash_tensors
from fedray.metrics.unknown import Drift, z_scores
from fedray.runtime.inline import Inline
from fedray.scenario.loader import read_scenario
from fedray.simulation.study import Study

CLIENTS, ROWS_EACH, MOVED = 24, 40, 5
NATURAL = scenario({"clients": {"number": CLIENTS}, "rounds": 2, "data": {"partition": {"name": "natural"}}})
NATURAL["data"].pop("limit")
CUBIC = {"data": {"name": "cubic", "partition": {"name": "iid"}}, "model": {"objective": "gaussian_nll"}}


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
    assert drifts is not None
    assert len(drifts) == 1
    return drifts[0]


def test_a_client_whose_data_moved_after_training_is_flagged() -> None:
    """The same models and data without it: nobody is."""
    study = study_of(digits())
    moved = drift_of(study, 4, study_of(digits(inverted=MOVED)))
    assert moved.z_knowledge.argmax() == MOVED
    assert np.flatnonzero(moved.anomaly).tolist() == [MOVED]
    unmoved = drift_of(study, 4, study)
    assert not unmoved.anomaly.any()
    others = np.arange(CLIENTS) != MOVED
    assert np.array_equal(moved.knowledge[others], unmoved.knowledge[others])


def test_clients_that_hold_the_same_rows_have_no_drift() -> None:
    study = study_of(digits(alike=True))
    drift = drift_of(study, 2, study)
    assert (drift.knowledge > 0).all()
    assert (drift.z_knowledge == 0).all()
    assert not drift.anomaly.any()


@pytest.mark.drawn
def test_a_run_stores_the_drift_of_every_client_and_its_report_names_the_anomaly(tmp_path: Path) -> None:
    run = fedray.run(NATURAL, data=digits(inverted=MOVED), out=tmp_path / "run", replicates=2)
    table = run.drift.to_pandas()
    names = "replicate fold client samples total knowledge z_total z_knowledge anomaly"
    assert list(table.columns) == names.split()
    assert table.client.tolist() == [*range(CLIENTS)] * 2
    assert (table.samples == ROWS_EACH).all()
    for replicate, rows in table.groupby("replicate"):
        assert rows.client[rows.anomaly].tolist() == [MOVED]
        np.testing.assert_allclose(rows.z_knowledge, z_scores(rows.knowledge))
        assert (rows.replicate == replicate).all()
    assert f">client {MOVED}</text>" in (run.path / "report.html").read_text()


@pytest.mark.parametrize("method", ["fedavg", "stacking"])
def test_one_model_has_no_drift_scores(method: str, tmp_path: Path) -> None:
    run = fedray.run(of_method(method), out=tmp_path / "run")
    assert not (run.path / "drift.parquet").exists()
    with pytest.raises(FedrayError, match=r"has no drift\.parquet"):
        _ = run.drift


@pytest.mark.parametrize(("method", "change"), [("fed_ensemble", CUBIC), ("ditto", {"method": {"models": 2}})])
def test_regression_and_personal_models_have_drift_too(method: str, change: dict[str, Any]) -> None:
    table = fedray.run(of_method(method, change)).drift.to_pandas()
    assert len(table)
    assert np.isfinite(table.knowledge).all()
    assert (table.knowledge <= table.total + 1e-9).all()


def test_variances_of_a_regression_are_those_of_the_mixture() -> None:
    outputs = torch.randn(5, 7, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    total, knowledge = sample_uncertainty("half_mse", outputs)
    assert torch.equal(total, knowledge)
    np.testing.assert_allclose(knowledge, outputs.numpy().var(axis=0).mean(-1))
    total, knowledge = sample_uncertainty("gaussian_nll", outputs)
    assert (total > knowledge).all()
    np.testing.assert_allclose(knowledge, outputs[..., 0].numpy().var(axis=0))
