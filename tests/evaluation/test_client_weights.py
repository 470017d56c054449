"""Weights of tiers (`Answer.tiers`): a known client answers by its tier's, in every score and in `Run.predict`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fedray
from fedray.core.errors import BadInput
from fedray.core.types import FloatArray, State
from fedray.evaluation.evaluate import measure_models
from fedray.methods import Answer, Method, Setting, federated
from fedray.runtime.inline import Inline
from fedray.simulation.study import Pieces, Question

KEYS: dict[str, Any] = {
    "rounds": 2,
    "clients": {"tiers": {"strong": {"number": 2, "models_per_round": None}, "weak": {"number": 3}}},
    "data": {"name": "digits", "limit": 240, "hold_out": 0.4},
    "method": {"models": 3},
    "model": {"name": "mlp", "hidden": [4]},
    "local": {"lr": 0.1},
    "evaluate": {"clients": "all"},
    "runtime": "inline",
    "report": False,
}
FIRST = np.array([[1.0, 2.0, 1.0], [1.0, 0.0, 0.0]])  # the weak tier answers with model 0 alone
UNEQUAL = np.array([0.5, 0.3, 0.2])


def by_tier(tiers: FloatArray | None, weights: FloatArray | None = None) -> Callable[[Setting], Method]:
    """Fed-ensemble with weights of tiers `[T, K]`, and everybody's `[K]`, in all worlds."""

    def compose(setting: Setting) -> Method:
        def answer(state: State) -> Answer:
            in_each = (None if one is None else np.stack([one] * len(setting.seeds)) for one in (weights, tiers))
            everybody, of_tiers = in_each
            return Answer(state, setting.models, everybody, tiers=of_tiers)

        return Method("by_tier", federated(setting), answer)

    return compose


def newest(run: fedray.Run, column: str = "accuracy") -> FloatArray:
    """The clients' scores of the last round, in the order of their ids, of the first world."""
    table = run.client_scores.to_pandas()
    last = table[(table["round"] == table["round"].max()) & (table["replicate"] == 0)]
    return np.asarray(last.sort_values("client")[column])


@pytest.mark.parametrize("gamma", [np.inf, 0.5])
@pytest.mark.parametrize("weights", [None, UNEQUAL], ids=["equal", "unequal"])
def test_tiers_that_weigh_as_everybody_change_no_bit(weights: FloatArray | None, gamma: float) -> None:
    keys = {**KEYS, "evaluate": {"clients": "all", "personal": True}, "predict": {"gamma": gamma}}
    tiers = np.stack([np.ones(3) / 3 if weights is None else weights] * 2)
    alike, plain = fedray.run(keys, method=by_tier(tiers, weights)), fedray.run(keys, method=by_tier(None, weights))
    assert alike.client_scores.equals(plain.client_scores)
    assert alike.rounds.drop_columns(["wall_seconds"]).equals(plain.rounds.drop_columns(["wall_seconds"]))
    x = plain.study.split("test", 0)[0][:9]
    for client in (0, 4):
        assert np.array_equal(alike.predict(x, client=client).mean, plain.predict(x, client=client).mean)


def test_a_tier_that_answers_with_one_model_has_the_scores_of_this_model() -> None:
    """A client of a regression is tested on all test rows, so that its score is the member's own."""
    rows = np.random.default_rng(0).normal(size=(90, 2)).astype(np.float32)
    keys = {**KEYS, "replicates": 2, "data": {}, "predict": {"noise": "none"}}
    run = fedray.run(keys, data=(rows, rows.sum(1, keepdims=True)), method=by_tier(FIRST))
    rounds, found = (table[table["round"] == 2] for table in (run.rounds.to_pandas(), run.client_scores.to_pandas()))
    for (_, scores), member in zip(found.groupby("replicate"), rounds["member_rmse"], strict=True):
        assert np.allclose(scores["rmse"][scores["tier"] == "weak"], member[0], rtol=1e-6)
        assert not np.isclose(scores["rmse"][scores["tier"] == "strong"].iloc[0], member, rtol=1e-3).any()
    assert np.allclose(rounds["personal_rmse"], found.groupby("replicate")["rmse"].mean())


def test_predictions_for_a_client_are_those_that_it_is_scored_by() -> None:
    run = fedray.run({**KEYS, "predict": {"conformal": {"alpha": 0.3}}}, method=by_tier(FIRST))
    x, y = run.study.split("test", 0)
    members, shares = run.predict(x).members, run.study.shards.label_counts(0)
    assert np.array_equal(run.predict(x, client=4).mean, members[0])
    assert np.allclose(run.predict(x, client=0).mean, np.tensordot([0.25, 0.5, 0.25], members, 1))
    assert np.allclose(run.predict(x).mean, members.mean(0))
    count = np.bincount(y, minlength=10)
    for client, score in enumerate(newest(run)):  # of test rows that follow the client's labels
        weight = (shares[client] / np.maximum(count, 1))[y]
        right = run.predict(x, client=client).mean.argmax(1) == y.numpy()
        assert score == pytest.approx((right * weight).sum() / weight.sum())
    assert run.metrics["personal_accuracy"] == pytest.approx(newest(run).mean())
    with np.load(run.path / "pictures.npz") as pictures:
        assert np.array_equal(pictures["alpha"], FIRST[[0, 0, 1, 1, 1]] / FIRST.sum(1)[[0, 0, 1, 1, 1], None])
        assert np.allclose(pictures["client_accuracy"], newest(run))
    sets = [run.predict(x, client=client).sets for client in (None, 4)]
    assert sets[0] is not None and sets[1] is not None and not np.array_equal(sets[0], sets[1])


def test_a_finite_gamma_chooses_among_the_models_of_the_tier() -> None:
    tiers = np.array([[1.0, 1.0, 1.0], [0.0, 1.0, 0.0]])
    run, free = (fedray.run({**KEYS, "predict": {"gamma": 0.0}}, method=by_tier(one)) for one in (tiers, None))
    x = run.study.split("test", 0)[0]
    members = run.predict(x).members
    assert np.array_equal(newest(run)[:2], newest(free)[:2])
    assert any(not np.array_equal(free.predict(x, client=i).mean, members[1]) for i in (2, 3, 4))
    assert all(np.array_equal(run.predict(x, client=i).mean, members[1]) for i in (2, 3, 4))


def test_models_that_do_not_answer_stay_away_from_the_weights_of_tiers() -> None:
    tiers = np.array([[0.0, 1.0, 3.0], [0.0, 0.0, 1.0]])
    run = fedray.run(KEYS, method=by_tier(tiers, np.array([0.0, 1.0, 1.0])))
    x = run.study.split("test", 0)[0]
    members = run.predict(x).members
    assert len(members) == 2
    assert np.allclose(run.predict(x, client=0).mean, np.tensordot([0.25, 0.75], members, 1))
    assert np.array_equal(run.predict(x, client=4).mean, members[1])
    with np.load(run.path / "pictures.npz") as pictures:
        assert pictures["alpha"].tolist() == [[0.25, 0.75]] * 2 + [[0.0, 1.0]] * 3
        assert np.allclose(pictures["client_accuracy"], newest(run))


def test_nobody_computes_losses_that_no_weight_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    run = fedray.run(KEYS, method=by_tier(FIRST), rounds=1)
    runtime, asked = Inline(run.study), list[Question]()
    ask = runtime.ask

    def note(question: Question, state: State) -> Pieces:
        asked.append(question)
        return ask(question, state)

    monkeypatch.setattr(runtime, "ask", note)
    measured = measure_models(run.study, runtime, run.progress.state, test=False)
    assert [one.split for one in asked] == ["hold_out"]
    assert np.array_equal(measured.weights[0], FIRST[[0, 0, 1, 1, 1]] / FIRST.sum(1)[[0, 0, 1, 1, 1], None])


def test_a_client_whose_own_model_has_no_weight_answers_as_a_new_client() -> None:
    weights = np.array([[0.5, 0.3, 0.2, 0.0, 0.0]])

    def own_model(_models: int, _rows: str) -> Any:
        return lambda _now, drawn, _m, _state: (np.arange(len(drawn.client)), drawn.client)

    def chosen(setting: Setting) -> Method:
        def answer(state: State) -> Answer:
            return Answer(state, setting.models, weights)

        return Method("chosen", federated(setting, assign=own_model), answer, one_model_per_client=True)

    run = fedray.run({**KEYS, "method": {"models": 5}}, method=chosen)
    x = run.study.split("test", 0)[0].numpy()
    everybody, chosen_one, left_out = run.predict(x), run.predict(x, client=1), run.predict(x, client=4)
    assert np.array_equal(chosen_one.mean, everybody.members[1])
    assert np.array_equal(left_out.mean, everybody.mean)  # it had the plain mean of the others


def test_an_answer_without_a_model_for_each_client_that_answers_by_its_own_is_refused() -> None:
    """It ended in an IndexError of fedray's when the clients were scored."""

    def student(setting: Setting) -> Method:
        def answer(state: State) -> Answer:
            return Answer(state._replace(models=state.models[:1]), 1)

        return Method("student", federated(setting), answer, one_model_per_client=True)

    keys = {**KEYS, "method": {"models": 5}}
    with pytest.raises(
        BadInput, match="an Answer of 1 models for 5 clients: leave one_model_per_client out, or give 5"
    ):
        fedray.run(keys, method=student)
