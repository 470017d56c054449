"""Known clients are scored one by one, by what they answer, in every evaluated round."""

from typing import Any

import numpy as np
import pytest
import torch
from plain import rows_of
from small import scenario

import fedray
from fedray.evaluation.answers import WeightedRows, summarize_clients
from fedray.evaluation.personal import pick_own_scores
from fedray.metrics import classification, regression

NUMBER = 6


def train(method: dict[str, Any], **keys: Any) -> fedray.Run:
    """The sine toy, whose clients have amplitudes of their own."""
    scenario = {
        "rounds": 3, "runtime": "inline", "method": method, "data": {"name": "sine", "samples": 20},
        "model": {"name": "rbf"}, "clients": {"number": NUMBER}, "local": {"epochs": 5, "lr": 0.1, "batch_size": 4},
    }  # fmt: skip
    return fedray.run(scenario, **keys)


ANSWERING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ditto": ({}, {}),
    "local_only": ({}, {}),
    "fed_ensemble": ({"models": 3}, {"predict": {"gamma": 0.01}}),
    "lg_fedavg": ({"shared_layers": 1}, {"model": {"name": "mlp", "hidden": [8]}}),
}


@pytest.mark.parametrize("name", ANSWERING)
def test_regression_never_recorded_what_known_clients_answer(name: str) -> None:
    options, keys = ANSWERING[name]
    one = train({"name": name, **options}, evaluate={"personal": True}, **keys)
    x, y = (part.numpy() for part in one.study.split("test", 0))
    each = [np.sqrt(((one.predict(x, client=i).mean - y) ** 2).mean()) for i in range(NUMBER)]
    scores = one.metrics
    assert scores["personal_rmse"] == pytest.approx(np.mean(each), rel=1e-5)
    assert scores["personal_rmse_worst"] == pytest.approx(max(each), rel=1e-5)
    assert scores["personal_rmse_p90"] == pytest.approx(np.quantile(each, 0.9), rel=1e-5)
    assert scores["personal_rmse"] != pytest.approx(scores["rmse"], rel=1e-3)
    with np.load(one.path / "pictures.npz") as pictures:
        assert pictures["client_rmse"] == pytest.approx(np.array(each), rel=1e-5)


def test_best_pass_is_the_lowest_rmse_and_a_client_without_rows_takes_the_first() -> None:
    """Whatever its test score is, which here is neither the lowest of each client nor that of one pass."""
    test = np.array([[1.0, 3.0, 2.0], [5.0, 4.0, 6.0], [8.0, 7.0, 9.0], [2.0, 4.0, 6.0]])
    held = np.array([[2.0, 1.0, 3.0], [1.0, np.nan, 2.0], [np.nan, np.nan, np.nan], [3.0, 2.0, 2.0]])
    for lowest, sign in ((True, 1.0), (False, -1.0)):
        own = {(1, i): torch.from_numpy(np.stack(both)) for i, both in enumerate(zip(test, sign * held, strict=True))}
        assert pick_own_scores(own, 1, lowest=lowest).tolist() == [3.0, 5.0, 8.0, 4.0]
    assert summarize_clients(np.array([np.nan]), classes=False) == {}


def test_a_client_with_every_row_right_has_exactly_one() -> None:
    """The sum of 13 weights of 1 / 13 is 0.9999999999999998, with which a target of 1.0 was never reached."""
    for n in range(1, 200):
        each = WeightedRows(np.arange(n), np.full(n, 1 / n))
        assert each.mean(np.ones(n)) == 1.0 and each.mean(np.arange(n) < n // 2) == (n // 2) / n
        uneven = np.arange(1.0, n + 1) / np.arange(1.0, n + 1).sum()
        assert WeightedRows(np.arange(n), uneven).mean(np.ones((2, n))).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("method", ["fed_ensemble", "ditto", "fedper", "fedem", "ifca"])
def test_every_score_of_clients_is_the_mean_over_what_each_is_answered(method: str) -> None:
    data = {"name": "digits", "limit": 300, "hold_out": 0.3, "partition": {"name": "dirichlet", "alpha": 0.5}}
    keys = {"rounds": 2, "clients": 5, "runtime": "inline", "report": False, "data": data, "method": method}
    gamma = {"predict": {"gamma": 0.1, "average": "logits"}} if method == "fed_ensemble" else {}
    run = fedray.run({**keys, **gamma, "evaluate": {"every": 2, "personal": True}})
    x, y = run.study.split("hold_out", 0)
    mine = [run.study.shards.client_holdout(0, client) for client in range(5)]
    told = [(run.predict(x[rows], client=i).mean, y[rows].numpy()) for i, rows in enumerate(mine) if len(rows)]
    for name, score in (("nll", classification.nll), ("brier", classification.brier)):
        mean = np.mean([score(*each) for each in told])
        assert run.metrics[f"hold_out_personal_{name}"] == pytest.approx(mean, rel=1e-6)
        assert f"personal_{name}" in run.metrics
    mean = np.mean([classification.row_scores(*each).mean(axis=1) for each in told], axis=0)
    assert run.metrics["hold_out_personal_ece"] == pytest.approx(classification.scores_of_means(mean)["ece"], rel=1e-6)


@pytest.mark.parametrize("method", ["local_only", "ditto", "ifca"])
def test_a_client_that_one_model_answers_has_the_residuals_of_this_model_as_its_variance(method: str) -> None:
    """Its own variance is 0, so that its 95 % interval held nothing. The residuals are those of training rows."""
    options, keys = ({"models": 3}, {"predict": {"gamma": 0.0}}) if method == "ifca" else ({}, {})
    run = train({"name": method, **options}, evaluate={"personal": True}, **keys)
    x, y = (part.numpy() for part in run.study.split("test", 0))
    own = [[part.numpy() for part in rows_of(run.study, 0, client)] for client in range(NUMBER)]
    noise = [float(((run.predict(rows, client=i).mean - target) ** 2).mean()) for i, (rows, target) in enumerate(own)]
    means = [run.predict(x, client=client).mean.reshape(-1) for client in range(NUMBER)]
    variance = [np.mean(noise)] * NUMBER if method == "ifca" else noise
    each = [
        regression.row_scores(mean, np.full(len(y), one), y.reshape(-1)).mean(axis=1)
        for mean, one in zip(means, variance, strict=True)
    ]
    for name, value in zip(("nll", "coverage_95", "width_95"), np.mean(each, axis=0)[1:], strict=True):
        assert run.metrics[f"personal_{name}"] == pytest.approx(value, rel=1e-5)


def test_clients_who_weigh_models_by_their_distance_without_end_are_given_the_scores_of_the_run() -> None:
    predict = {"gamma": float("inf"), "noise": "residual"}
    found = train({"name": "fed_ensemble", "models": 3}, evaluate={"personal": True}, predict=predict).metrics
    for name in ("rmse", "nll", "coverage_95", "width_95"):
        assert found[f"personal_{name}"] == pytest.approx(found[name], rel=1e-6), name


def test_where_nobody_has_weights_of_his_own_everybody_is_given_the_answer_of_the_ensemble() -> None:
    """A client of a regression is tested on all test rows, so that its RMSE is that of the run."""
    keys = {"data": {"name": "sine", "samples": 20}, "model": {"name": "rbf"}, "method": {"models": 3}}
    run = fedray.run({**keys, "rounds": 2, "runtime": "inline", "clients": 4, "evaluate": {"clients": "all"}})
    frame, rounds = run.client_scores.to_pandas(), run.rounds.to_pandas()
    for t, rmse in zip(rounds["round"], rounds["rmse"], strict=True):
        assert np.allclose(frame.loc[frame["round"] == t, "rmse"], rmse, rtol=1e-6)


def test_some_clients_are_evenly_spread_and_have_the_numbers_that_they_have_among_all() -> None:
    given = [scenario({"rounds": 1, "evaluate": {"clients": n}}) for n in ("all", 3)]
    every, few = (fedray.run(keys).client_scores.to_pylist() for keys in given)
    assert [row["client"] for row in few] == [0, 2, 4] * 2
    assert few == [row for row in every if row["client"] in (0, 2, 4)]


def test_clients_without_rows_are_in_the_report_as_unknown() -> None:
    cut = {"partition": {"name": "dirichlet", "alpha": 0.01, "allow_empty": True}}
    run = fedray.run(scenario({"data": cut, "clients": {"number": 60}, "rounds": 1}))
    with np.load(run.path / "pictures.npz") as pictures:
        empty = pictures["label_counts"].sum(1) == 0
        assert empty.any() and (np.isnan(pictures["client_accuracy"]) == empty).all()
