"""Known clients of a regression are scored one by one, as those of a classification are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedray
from fedray.core.text import is_share
from fedray.evaluation.answers import (
    WeightedRows,
    find_best_pass,
    measure_clients,
    own_test_rows,
    pick_best_pass,
    summarize_clients,
)
from fedray.metrics.ensemble import weigh_votes
from fedray.metrics.scores import lower_is_better

NUMBER = 6


def run(method: dict[str, Any], **keys: Any) -> fedray.Run:
    """The sine toy, whose clients have amplitudes of their own."""
    scenario = {
        "rounds": 3, "runtime": "inline", "method": method, "data": {"name": "sine", "samples": 20},
        "model": {"name": "rbf"}, "clients": {"number": NUMBER}, "local": {"epochs": 5, "lr": 0.1, "batch_size": 4},
    }  # fmt: skip
    return fedray.run(scenario, **keys)


def found(run: fedray.Run) -> dict[str, float]:
    return {name: entry["mean"] for name, entry in run.summary["metrics"].items()}


def rmse_of(run: fedray.Run, client: int) -> float:
    """RMSE of what a known client answers, asked through `predict`, on all test rows."""
    x, y = run.study.split("test", 0)
    mean = run.predict(x.numpy(), client=client).mean
    return float(np.sqrt(((mean - y.numpy()) ** 2).mean()))


@pytest.mark.parametrize(
    "method",
    [{"name": "ditto"}, {"name": "local_only"}, {"name": "fed_ensemble", "models": 3}, {"name": "lg_fedavg"}],
    ids=lambda method: method["name"],
)
def test_regression_never_recorded_what_known_clients_answer(method: dict[str, Any]) -> None:
    """Ditto reported FedAvg's RMSE and local_only that of the average of all N models."""
    keys = {"predict": {"gamma": 0.01}} if method["name"] == "fed_ensemble" else {}
    model = {"model": {"name": "mlp", "hidden": [8]}} if method["name"] == "lg_fedavg" else {}
    if method["name"] == "lg_fedavg":
        method = {**method, "shared_layers": 1}
    one = run(method, evaluate={"personal": True}, **keys, **model)
    each = [rmse_of(one, client) for client in range(NUMBER)]
    scores = found(one)
    assert scores["personal_rmse"] == pytest.approx(np.mean(each), rel=1e-5)
    assert scores["personal_rmse_worst"] == pytest.approx(max(each), rel=1e-5)
    assert scores["personal_rmse_p90"] == pytest.approx(np.quantile(each, 0.9), rel=1e-5)
    assert scores["personal_rmse"] != pytest.approx(scores["rmse"], rel=1e-3)


def test_gamma_changes_what_a_regression_records() -> None:
    scores = [
        found(run({"name": "fed_ensemble", "models": 3}, evaluate={"personal": True}, predict={"gamma": gamma}))
        for gamma in (0.0, 0.01, float("inf"))
    ]
    assert len({one["personal_rmse"] for one in scores}) == 3
    assert scores[-1]["personal_rmse"] == pytest.approx(scores[-1]["rmse"], rel=1e-6)  # everybody's plain average
    assert len({one["rmse"] for one in scores}) == 1


def test_ditto_chooses_lambda_by_rmse_where_there_are_no_classes() -> None:
    hold = {"data": {"hold_out": 0.3}}
    many = run({"name": "ditto", "lambda": [0.0, 50.0]}, **hold)
    singles = [run({"name": "ditto", "lambda": value}, **hold) for value in (0.0, 50.0)]
    held = [found(one)["hold_out_personal_rmse"] for one in (many, *singles)]
    assert held[0] <= min(held[1:]) + 1e-9


def test_best_pass_is_the_lowest_rmse_and_a_client_without_rows_takes_the_first() -> None:
    """Whatever its test score is, which here is neither the lowest of each client nor that of one pass."""
    test = np.array([[1.0, 3.0, 2.0], [5.0, 4.0, 6.0], [8.0, 7.0, 9.0], [2.0, 4.0, 6.0]])
    held = np.array([[2.0, 1.0, 3.0], [1.0, np.nan, 2.0], [np.nan, np.nan, np.nan], [3.0, 2.0, 2.0]])
    assert pick_best_pass(test, held, lowest=True).tolist() == [3.0, 5.0, 8.0, 4.0]
    assert pick_best_pass(test, -held).tolist() == [3.0, 5.0, 8.0, 4.0]
    assert find_best_pass(held, lowest=False).tolist() == [2, 2, 0, 0]
    assert summarize_clients(np.array([np.nan]), classes=False) == {}


def test_names_of_personal_errors_have_their_direction_and_unit() -> None:
    for name in ("personal_rmse", "hold_out_personal_rmse_p90", "personal_rmse_worst"):
        assert lower_is_better(name)
        assert not is_share(name)
    for name in ("personal_accuracy", "hold_out_personal_p10", "personal_worst"):
        assert not lower_is_better(name)
        assert is_share(name)


def test_a_client_without_test_rows_of_its_own_is_tested_on_all_where_there_are_no_classes() -> None:
    study = run({"name": "fedavg"}).study
    rows = own_test_rows(study, 0)(2)
    assert len(rows.rows) == len(study.split("test", 0)[1])
    assert torch.as_tensor(rows.weight).sum() == pytest.approx(1.0)


def test_a_client_with_every_row_right_has_exactly_one() -> None:
    """The sum of 13 weights of 1 / 13 is 0.9999999999999998, with which a target of 1.0 was never reached."""
    for n in range(1, 200):
        each = WeightedRows(np.arange(n), np.full(n, 1 / n))
        assert each.mean(np.ones(n)) == 1.0 and each.mean(np.arange(n) < n // 2) == (n // 2) / n
        uneven = np.arange(1.0, n + 1) / np.arange(1.0, n + 1).sum()
        assert WeightedRows(np.arange(n), uneven).mean(np.ones((2, n))).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("method", [{"name": "ditto"}, {"name": "fed_ensemble", "models": 2}], ids=lambda m: m["name"])
def test_accuracies_of_clients_are_whole_numbers_of_hits(method: dict[str, Any]) -> None:
    keys = {"clients": {"number": 5}, "data": {"name": "digits", "limit": 450, "hold_out": 0.3}, "rounds": 3}
    one = fedray.run({**keys, "method": method, "runtime": "inline", "report": False, "evaluate": {"clients": 5}})
    scores, rows = one.client_scores.to_pandas(), one.study.shards
    for client, found in zip(scores["client"], scores["hold_out_accuracy"], strict=True):
        n = len(rows.client_holdout(0, client))
        assert found == round(found * n) / n, (client, n)


def test_clients_with_models_of_their_own_read_no_other_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """N models at N clients were N^2 answers."""
    rng = np.random.default_rng(0)
    votes, rows = rng.random((4, 9, 3)).astype(np.float32), np.array([2, 5])
    own, study = np.eye(4)[1], run({"name": "local_only"}).study
    whole = weigh_votes(own, votes, rows, finite=False)
    outputs = torch.from_numpy(rng.random((NUMBER, len(study.split("test", 0)[1]), 1)))
    monkeypatch.setattr(np, "tensordot", lambda *_a, **_how: pytest.fail("all models are read"))
    assert np.array_equal(weigh_votes(own, votes, rows), whole)
    assert np.isfinite(measure_clients(study, 0, outputs, np.eye(NUMBER))).all()
    with pytest.raises(pytest.fail.Exception):
        weigh_votes(np.array([0.0, 0.5, 0.5, 0.0]), votes, rows)
