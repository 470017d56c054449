"""Weights of the models that answer: every score is that of the answer that `Run.predict` gives."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import fedray
from fedray.core.errors import BadInput
from fedray.core.method import Answer
from fedray.core.types import State
from fedray.evaluation.regression import drop_absent, weigh_present
from fedray.methods import METHODS, Method, Scored, Setting, federated
from fedray.metrics import classification, regression

SMALL: dict[str, Any] = {
    "rounds": 2,
    "clients": 4,
    "method": {"models": 3},
    "model": {"name": "mlp", "hidden": [4]},
    "local": {"lr": 0.1},
    "runtime": "inline",
    "report": False,
}
UNEQUAL = np.array([[60.0, 0.0, 20.0]])


def weighted(setting: Setting) -> Method:
    """A Fed-ensemble whose models count differently."""
    return Method("weighted", federated(setting), answer=lambda state: Answer(state, setting.models, weights=UNEQUAL))


def read_conformal(run: fedray.Run, x: Any, y: Any) -> float:
    """Share of the right labels in the sets of a prediction."""
    sets = run.predict(x).sets
    assert sets is not None
    return float(sets[np.arange(len(y)), y].mean())


def test_scores_were_those_of_equal_weights_where_predict_used_the_methods_own() -> None:
    keys = {"data": {"name": "digits", "limit": 240, "hold_out": 0.4}, "evaluate": {"clients": 4}}
    first = {"first": lambda scored: scored.prediction[0, 0]}
    conformal = {"predict": {"conformal": {"alpha": 0.3}}}
    run = fedray.run({**SMALL, **keys, **conformal}, method=weighted, metrics=first)
    x, y = run.study.split("test", 0)
    found, labels = run.predict(x).mean, y.numpy()
    assert run.metrics["nll"] == pytest.approx(classification.nll(found, labels))
    assert run.summary["metrics"]["nll"]["mean"] == pytest.approx(classification.nll(found, labels))
    assert run.metrics["first"] == pytest.approx(found[0, 0])
    assert run.metrics["conformal_coverage"] == pytest.approx(read_conformal(run, x, labels))
    held_out, its_labels = run.study.split("hold_out", 0)
    assert run.metrics["hold_out_nll"] == pytest.approx(
        classification.nll(run.predict(held_out).mean, its_labels.numpy())
    )


def test_clients_who_get_everybodys_answer_are_scored_on_it() -> None:
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32))
    keys = {**SMALL, "evaluate": {"clients": 4}, "predict": {"noise": "none"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = fedray.run(keys, data=(rows, rows.sum(1, keepdim=True)), method=weighted)
    x, y = run.study.split("test", 0)
    target, (mean, variance) = y.numpy()[:, 0], (each[:, 0] for each in (run.predict(x).mean, run.predict(x).variance))
    assert run.metrics["rmse"] == pytest.approx(regression.rmse(mean, target))
    assert run.metrics["nll"] == pytest.approx(regression.gaussian_nll(mean, variance, target))
    table = run.client_scores.to_pandas()
    each = table["rmse"][table["round"] == run.metrics["round"]]
    assert len(each) == 4
    assert np.allclose(each, regression.rmse(mean, target))


def test_known_clients_without_gamma_are_answered_as_everybody() -> None:
    """They were answered by equal weights: by `Run.predict`, and in the scores with `evaluate.personal`."""
    keys = {
        **SMALL,
        "data": {"name": "digits", "limit": 240, "hold_out": 0.4},
        "predict": {"conformal": {"alpha": 0.3}},
    }
    runs = [fedray.run(keys, method=weighted, evaluate={"clients": 4, "personal": each}) for each in (False, True)]
    x, _ = runs[0].study.split("test", 0)
    for run in runs:
        everybody, known = run.predict(x), run.predict(x, client=2)
        np.testing.assert_allclose(known.mean, everybody.mean, rtol=1e-6)
        assert known.sets is not None
        assert everybody.sets is not None
        assert np.array_equal(known.sets, everybody.sets)
    alike, personal = (run.client_scores.to_pandas()["accuracy"] for run in runs)
    assert np.allclose(alike, personal)
    assert runs[1].metrics["personal_accuracy"] == pytest.approx(alike[-4:].mean())


def test_a_finite_gamma_gives_known_clients_weights_of_their_own() -> None:
    run = fedray.run({**SMALL, "data": {"name": "digits", "limit": 240}}, method=weighted, predict__gamma=0.0)
    x, _ = run.study.split("test", 0)
    members = run.predict(x).members
    assert any(np.allclose(run.predict(x, client=2).mean, member) for member in members)


def test_equal_weights_keep_the_bits_of_no_weights() -> None:
    state = State(torch.zeros(4, 2), torch.zeros(4, 0, dtype=torch.int64), {})
    answer = Answer(state, 4, weights=np.array([[0.0, 2.0, 2.0, 0.0], [1.0, 0.0, 0.0, 3.0]]))
    assert weigh_present(answer, 0) is None
    assert weigh_present(Answer(state, 4), 0) is None
    assert np.array_equal(weigh_present(answer, 1), [0.25, 0.75])  # type: ignore[arg-type]  # a list is compared with an array
    assert drop_absent(torch.arange(4), answer, 1).tolist() == [0, 3]


def alone_but_one(setting: Setting) -> Method:
    """Every client has a model of its own, and that of client 1 does not answer."""
    number = setting.clients.number
    weights = np.array([[float(client != 1) for client in range(number)]])
    return replace(METHODS["local_only"](setting), name="mine", answer=lambda state: Answer(state, number, weights))


def test_clients_with_a_model_each_got_the_next_ones_where_a_model_does_not_answer() -> None:
    """In the pictures; and `predict` gave client 1 the model that does not answer, not the others as the scores do."""
    keys = {"method": {"models": 4}, "data": {"limit": 200}, "evaluate": {"personal": True, "clients": "all"}}
    run = fedray.run({**SMALL, **keys}, method=alone_but_one)
    with np.load(run.path / "pictures.npz") as pictures:
        weights, accuracy = pictures["alpha"], pictures["client_accuracy"]
    np.testing.assert_allclose(weights, np.insert(np.eye(3), 1, np.full(3, 1 / 3), axis=0))
    np.testing.assert_allclose(accuracy, run.client_scores.to_pandas()["accuracy"].to_numpy()[-4:])
    x = run.study.split("test", 0)[0][:9]
    members = run.predict(x).members
    for client, row in enumerate(weights):
        np.testing.assert_allclose(run.predict(x, client=client).mean, np.tensordot(row, members, 1), rtol=1e-6)


def test_rows_that_are_no_split_are_refused() -> None:
    """Every other name gave the withheld rows, which are none without `data.hold_out`."""
    study = fedray.run(SMALL, rounds=0).study
    with pytest.raises(BadInput, match="split.'train'.: choose test, hold_out or ood; .* study.shards.data.train"):
        study.split("train", 0)


@pytest.mark.parametrize(("method", "objective"), [("fedavg", "half_mse"), ("fed_ensemble", "gaussian_nll")])
def test_a_metric_of_ones_own_has_the_variance_of_the_score(method: str, objective: str) -> None:
    """The width of an interval could not be computed."""

    def width(scored: Scored) -> float:
        assert scored.variance is not None
        return float((2 * 1.959963984540054 * scored.variance**0.5).mean())

    def own_nll(scored: Scored) -> float:
        v, error = scored.variance, scored.targets - scored.prediction
        assert v is not None
        return float((0.5 * np.log(2 * np.pi * v) + error**2 / (2 * v)).mean())

    keys: dict[str, Any] = {
        "rounds": 1,
        "runtime": "inline",
        "report": False,
        "method": method,
        "clients": {"number": 3},
    }
    keys |= {"data": "cubic", "model": {"name": "mlp", "objective": objective}}
    done = fedray.run(keys, metrics=[width, own_nll]).summary["metrics"]
    assert done["width"]["mean"] == pytest.approx(done["width_95"]["mean"], rel=1e-9)
    assert done["own_nll"]["mean"] == pytest.approx(done["nll"]["mean"], rel=1e-9)
