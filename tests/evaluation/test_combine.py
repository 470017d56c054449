"""A rule of a method of one's own that joins what the models say (`Answer.combine`), in every score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedray
from fedray.core.errors import FedrayError
from fedray.core.method import Combine
from fedray.core.types import FloatArray, State
from fedray.methods import Answer, Method, Setting, federated

KEYS: dict[str, Any] = {
    "rounds": 1,
    "clients": 4,
    "data": {"name": "digits", "limit": 240, "hold_out": 0.3, "partition": {"name": "dirichlet", "alpha": 0.3}},
    "method": {"models": 4},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"lr": 0.1, "epochs": 2},
    "evaluate": {"clients": "all", "ood": "noise"},
    "predict": {"conformal": {"alpha": 0.1}},
    "runtime": "inline",
    "report": False,
}


def own_model(_models: int, _rows: str) -> Any:
    return lambda _now, drawn, _m, _state: (np.arange(len(drawn.client)), drawn.client)


def joined(combine: Combine | None, weights: FloatArray | None = None, *, personal: bool = False) -> Any:
    """A network for each client, and one rule."""

    def compose(setting: Setting) -> Method:
        def answer(state: State) -> Answer:
            return Answer(state, setting.models, weights, combine=combine)

        return Method("joined", federated(setting, assign=own_model), answer, one_model_per_client=personal)

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


def mean(_world: int, members: FloatArray) -> FloatArray:
    found: FloatArray = members.mean(axis=0)
    return found


def test_the_mean_as_a_rule_changes_no_score() -> None:
    plain, ruled = (fedray.run(KEYS, method=joined(rule)) for rule in (None, mean))
    found, want = ruled.metrics_dataframe, plain.metrics_dataframe
    assert set(want) - set(found) == {"ood_auroc_knowledge", "hold_out_ood_auroc_knowledge"}
    for name in set(found.select_dtypes("number")) - {"wall_seconds"}:
        np.testing.assert_allclose(found[name], want[name], rtol=1e-6, err_msg=name)
    np.testing.assert_allclose(*(run.client_scores.to_pandas()["accuracy"] for run in (ruled, plain)))
    x = plain.study.split("test", 0)[0].numpy()
    sets = [run.predict(x).sets for run in (ruled, plain)]
    assert sets[0] is not None and sets[1] is not None and np.array_equal(*sets)  # type: ignore[arg-type]


def test_a_rule_with_the_counts_of_labels_is_label_shares_of_fens_also_where_labels_are_wrong() -> None:
    data = {**KEYS["data"], "partition": {**KEYS["data"]["partition"], "flipped": 0.5}}
    keys = {**KEYS, "method": {}, "data": data, "predict": {}, "evaluate": {}}
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

    run = fedray.run(KEYS, method=joined(surest), metrics=[seen], out=tmp_path / "run")
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

    run = fedray.run({**KEYS, "predict": {}, "evaluate": {"clients": "all"}}, method=joined(always))
    counts, scores = run.study.shards.label_counts(0), run.client_scores.to_pandas()
    found = scores[scores["round"] == 1].sort_values("client")["accuracy"]
    np.testing.assert_allclose(found, counts[:, 3] / counts.sum(axis=1), rtol=1e-6)


@pytest.mark.parametrize(
    ("more", "method", "message"),
    [
        ({"predict": {"gamma": 0.5}}, joined(mean), "leave predict.gamma and evaluate.personal out"),
        (
            {"predict": {"average": "logits"}},
            joined(mean),
            "predict.average = logits: the Answer of joined has combine",
        ),
        ({}, joined(mean, np.ones((1, 4))), "an Answer with combine and weights: leave weights and tiers out"),
        ({}, joined(mean, personal=True), "its known clients have models or weights of their own: leave combine out"),
        ({}, joined(lambda _w, members: members), "combine returned shape .4, .*return an array of probabilities"),
        ({}, joined(lambda _w, members: members.sum(0)), "combine returned probabilities that sum to 4 in a row"),
        ({}, joined(lambda _w, members: -members[0]), "combine returned probabilities that are negative, NaN"),
        ({}, joined(lambda _w, members: members[9]), "combine raised IndexError"),
        ({"data": {"name": "sine"}}, joined(mean), "has real targets: leave combine"),
    ],
)
def test_a_rule_that_cannot_answer_is_refused_in_one_line(more: dict[str, Any], method: Any, message: str) -> None:
    keys = {**KEYS, "evaluate": {}, "predict": {}, **more}
    with pytest.raises(FedrayError, match=message):
        fedray.run(keys, method=method)
