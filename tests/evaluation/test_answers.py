"""Who answers with which weights (of models, of tiers, by a rule): every score is that of what `Run.predict` gives."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedray
from fedray.core.method import Combine
from fedray.core.types import FloatArray, State
from fedray.methods import Answer, Method, Scored, Setting, federated
from fedray.metrics.classification import calibration, confusion

SMALL: dict[str, Any] = {"rounds": 2, "clients": 4, "runtime": "inline", "report": False, "local": {"lr": 0.1}}
SMALL |= {"method": {"models": 3}, "model": {"name": "mlp", "hidden": [4]}}
TIERED: dict[str, Any] = {
    **SMALL,
    "clients": {"tiers": {"strong": {"number": 2, "models_per_round": None}, "weak": {"number": 3}}},
    "data": {"name": "digits", "limit": 240, "hold_out": 0.4},
    "evaluate": {"clients": "all"},
}
FIRST = np.array([[1.0, 2.0, 1.0], [1.0, 0.0, 0.0]])  # the weak tier answers with model 0 alone
OF_EVERYBODY = np.array([0.5, 0.3, 0.2])


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


@pytest.mark.parametrize(("weights", "gamma"), [(None, 0.5), (OF_EVERYBODY, np.inf)], ids=["equal", "unequal"])
def test_tiers_that_weigh_as_everybody_change_no_bit(weights: FloatArray | None, gamma: float) -> None:
    keys = {**TIERED, "evaluate": {"clients": "all", "personal": True}, "predict": {"gamma": gamma}}
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
    keys = {**TIERED, "replicates": 2, "data": {}, "predict": {"noise": "none"}}
    run = fedray.run(keys, data=(rows, rows.sum(1, keepdims=True)), method=by_tier(FIRST))
    rounds, found = (table[table["round"] == 2] for table in (run.rounds.to_pandas(), run.client_scores.to_pandas()))
    for (_, scores), member in zip(found.groupby("replicate"), rounds["member_rmse"], strict=True):
        assert np.allclose(scores["rmse"][scores["tier"] == "weak"], member[0], rtol=1e-6)
        assert not np.isclose(scores["rmse"][scores["tier"] == "strong"].iloc[0], member, rtol=1e-3).any()
    assert np.allclose(rounds["personal_rmse"], found.groupby("replicate")["rmse"].mean())


def test_predictions_for_a_client_are_those_that_it_is_scored_by() -> None:
    run = fedray.run({**TIERED, "predict": {"conformal": {"alpha": 0.3}}}, method=by_tier(FIRST))
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


def test_the_arrays_that_a_report_draws_are_those_of_predictions() -> None:
    run, line = (fedray.run({**SMALL, "data": name, "predict": {"gamma": 0.1}}) for name in ("digits", "cubic"))
    x, y = (part.numpy() for part in run.study.split("test", 0))
    told, chosen = run.predict(x), run.predict(x).members.argmax(-1)
    bins = calibration(told.mean, y)
    table = np.stack([bins.confidence, bins.accuracy, bins.samples], axis=1)
    with np.load(run.path / "pictures.npz") as drawn:
        assert np.array_equal(drawn["confusion"], confusion(told.mean, y))
        assert np.allclose(drawn["calibration"], table, atol=1e-6, equal_nan=True)
        assert np.allclose(drawn["disagreement"], [[(a != b).mean() for b in chosen] for a in chosen])
    x, y = (part.numpy() for part in line.study.split("test", 0))
    mean = line.predict(x).mean
    with np.load(line.path / "pictures.npz") as drawn:
        assert np.allclose(drawn["predictive"].T[:3], [x[:, 0], y[:, 0], mean[:, 0]], atol=1e-4)
        assert np.allclose(drawn["client_rmse_equal"], np.full(4, line.metrics["rmse"]), rtol=1e-5)


def test_a_finite_gamma_chooses_among_the_models_of_the_tier() -> None:
    tiers = np.array([[1.0, 1.0, 1.0], [0.0, 1.0, 0.0]])
    run, free = (fedray.run({**TIERED, "predict": {"gamma": 0.0}}, method=by_tier(one)) for one in (tiers, None))
    x = run.study.split("test", 0)[0]
    members = run.predict(x).members
    assert np.array_equal(newest(run)[:2], newest(free)[:2])
    assert any(not np.array_equal(free.predict(x, client=i).mean, members[1]) for i in (2, 3, 4))
    assert all(np.array_equal(run.predict(x, client=i).mean, members[1]) for i in (2, 3, 4))


def test_models_that_do_not_answer_stay_away_from_the_weights_of_tiers() -> None:
    tiers = np.array([[0.0, 1.0, 3.0], [0.0, 0.0, 1.0]])
    run = fedray.run(TIERED, method=by_tier(tiers, np.array([0.0, 1.0, 1.0])))
    x = run.study.split("test", 0)[0]
    members = run.predict(x).members
    assert len(members) == 2
    assert np.allclose(run.predict(x, client=0).mean, np.tensordot([0.25, 0.75], members, 1))
    assert np.array_equal(run.predict(x, client=4).mean, members[1])
    with np.load(run.path / "pictures.npz") as pictures:
        assert pictures["alpha"].tolist() == [[0.25, 0.75]] * 2 + [[0.0, 1.0]] * 3
        assert np.allclose(pictures["client_accuracy"], newest(run))


JOINED: dict[str, Any] = {
    **SMALL,
    "rounds": 1,
    "data": {"name": "digits", "limit": 240, "hold_out": 0.3, "partition": {"name": "dirichlet", "alpha": 0.3}},
    "method": {"models": 4},
    "evaluate": {"clients": "all", "ood": "noise"},
    "predict": {"conformal": {"alpha": 0.1}},
}


def own_model(_models: int, _rows: str) -> Any:
    return lambda _now, drawn, _m, _state: (np.arange(len(drawn.client)), drawn.client)


def joined(combine: Combine | None) -> Any:
    """A network for each client, and one rule."""

    def compose(setting: Setting) -> Method:
        phase = federated(setting, assign=own_model)
        return Method("joined", phase, lambda state: Answer(state, setting.models, combine=combine))

    return compose


def by_class(setting: Setting) -> Method:
    def combine(world: int, members: FloatArray) -> FloatArray:
        counts = setting.label_counts(world)
        share = np.where(counts.sum(0) > 0, counts / np.maximum(counts.sum(0), 1), 1 / len(counts))
        total = (share[:, None] * members).sum(0)
        found: FloatArray = total / total.sum(1, keepdims=True)
        return found

    phase = federated(setting, assign=own_model)
    return Method("by_class", phase, lambda state: Answer(state, setting.models, combine=combine))


def test_the_mean_as_a_rule_changes_no_score() -> None:
    plain, ruled = (
        fedray.run(JOINED, method=joined(rule)) for rule in (None, lambda _world, members: members.mean(axis=0))
    )
    found, want = ruled.metrics_dataframe, plain.metrics_dataframe
    assert set(want) - set(found) == {"ood_auroc_knowledge", "hold_out_ood_auroc_knowledge"}
    for name in set(found.select_dtypes("number")) - {"wall_seconds"}:
        np.testing.assert_allclose(found[name], want[name], rtol=1e-6, err_msg=name)
    np.testing.assert_allclose(*(run.client_scores.to_pandas()["accuracy"] for run in (ruled, plain)))
    x = plain.study.split("test", 0)[0].numpy()
    sets = [run.predict(x).sets for run in (ruled, plain)]
    assert sets[0] is not None and sets[1] is not None and np.array_equal(*sets)  # type: ignore[arg-type]


def test_a_rule_with_the_counts_of_labels_is_label_shares_of_fens_also_where_labels_are_wrong() -> None:
    data = {**JOINED["data"], "partition": {**JOINED["data"]["partition"], "flipped": 0.5}}
    keys = {**JOINED, "method": {}, "data": data, "predict": {}, "evaluate": {}}
    mine = fedray.run(keys, method=by_class, method__models=4)
    fens = fedray.run(keys, method={"name": "fens", "aggregator": "label_shares"})
    for name in ("accuracy", "nll", "ece", "hold_out_nll"):
        assert mine.metrics[name] == pytest.approx(fens.metrics[name], rel=1e-5), name


def test_predictions_metrics_and_clients_have_the_answer_of_the_rule(tmp_path: Path) -> None:
    def surest(_world: int, members: FloatArray) -> FloatArray:
        best = members.max(axis=2).argmax(axis=0)
        found: FloatArray = members[best, np.arange(members.shape[1])]
        return found

    def seen(scored: Any) -> float:
        return float((scored.prediction.argmax(1) == scored.targets).mean())

    run = fedray.run(JOINED, method=joined(surest), metrics=[seen], out=tmp_path / "run")
    x, y = (part.numpy() for part in run.study.split("test", 0))
    answer = run.predict(x)
    assert np.array_equal(answer.mean, surest(0, answer.members))
    assert np.array_equal(run.predict(x, client=2).mean, answer.mean)
    right = (answer.mean.argmax(1) == y).mean()
    assert run.metrics["accuracy"] == run.metrics["seen"] == right
    assert right != (answer.members.mean(0).argmax(1) == y).mean()
    assert answer.sets is not None
    assert answer.sets[np.arange(len(y)), y].mean() == pytest.approx(run.metrics["conformal_coverage"])


def test_a_client_is_right_as_often_as_it_has_the_only_class_that_a_rule_answers() -> None:
    def always(_world: int, members: FloatArray) -> FloatArray:
        found: FloatArray = np.eye(members.shape[2])[np.full(members.shape[1], 3)]
        return found

    run = fedray.run({**JOINED, "predict": {}, "evaluate": {"clients": "all"}}, method=joined(always))
    counts, scores = run.study.shards.label_counts(0), run.client_scores.to_pandas()
    found = scores[scores["round"] == 1].sort_values("client")["accuracy"]
    np.testing.assert_allclose(found, counts[:, 3] / counts.sum(axis=1), rtol=1e-6)


UNEQUAL = np.array([[60.0, 0.0, 20.0]])


def weighted(setting: Setting) -> Method:
    """A Fed-ensemble whose models count differently."""
    return Method("weighted", federated(setting), answer=lambda state: Answer(state, setting.models, weights=UNEQUAL))


def test_known_clients_without_gamma_are_answered_as_everybody() -> None:
    data = {"name": "digits", "limit": 240, "hold_out": 0.4}
    keys = {**SMALL, "data": data, "predict": {"conformal": {"alpha": 0.3}}}
    runs = [fedray.run(keys, method=weighted, evaluate={"clients": 4, "personal": each}) for each in (False, True)]
    x, _ = runs[0].study.split("test", 0)
    for run in runs:
        everybody, known = run.predict(x), run.predict(x, client=2)
        np.testing.assert_allclose(known.mean, everybody.mean, rtol=1e-6)
        assert known.sets is not None and np.array_equal(known.sets, everybody.sets)  # type: ignore[arg-type]
    alike, personal = (run.client_scores.to_pandas()["accuracy"] for run in runs)
    assert np.allclose(alike, personal)
    assert runs[1].metrics["personal_accuracy"] == pytest.approx(alike[-4:].mean())
    own = fedray.run(keys, method=weighted, predict__gamma=0.0).predict(x, client=2)
    assert own.members is not None and any(np.allclose(own.mean, member) for member in own.members)


def test_equal_weights_keep_the_bits_of_no_weights() -> None:
    state = State(torch.zeros(4, 2), torch.zeros(4, 0, dtype=torch.int64), {})
    answer = Answer(state, 4, weights=np.array([[0.0, 2.0, 2.0, 0.0], [1.0, 0.0, 0.0, 3.0]]))
    assert answer.weigh_present(0) is None
    assert Answer(state, 4).weigh_present(0) is None
    assert np.array_equal(answer.weigh_present(1), [0.25, 0.75])  # type: ignore[arg-type]  # a list is compared with an array
    assert answer.drop_absent(torch.arange(4), 1).tolist() == [0, 3]


def test_a_metric_of_ones_own_has_the_variance_of_the_score() -> None:
    def width(scored: Scored) -> float:
        assert scored.variance is not None
        return float((2 * 1.959963984540054 * scored.variance**0.5).mean())

    def own_nll(scored: Scored) -> float:
        v, error = scored.variance, scored.targets - scored.prediction
        assert v is not None
        return float((0.5 * np.log(2 * np.pi * v) + error**2 / (2 * v)).mean())

    keys = {**SMALL, "data": "cubic", "model": {"name": "mlp", "objective": "gaussian_nll"}}
    done = fedray.run(keys, metrics=[width, own_nll]).summary["metrics"]
    assert done["width"]["mean"] == pytest.approx(done["width_95"]["mean"], rel=1e-9)
    assert done["own_nll"]["mean"] == pytest.approx(done["nll"]["mean"], rel=1e-9)
