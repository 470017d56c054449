"""Conformal sets of whole runs: the promised coverage for every kind of method, and nothing that is trained again."""

from typing import Any

import numpy as np
import pytest
from small import of_method, scenario

import fedray
from fedray.evaluation.answers import held_out_rows, own_test_rows
from fedray.methods import Answer, Method, Setting, federated
from fedray.metrics.conformal import ConformalRule, find_threshold, weigh_clients

SETS: dict[str, Any] = {"data": {"hold_out": 0.25}, "predict": {"conformal": {"alpha": 0.2, "score": "aps"}}}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fed_ensemble": {"predict": {"gamma": 0.1}},  # clients with weights of their own
    "ditto": {},  # clients with models of their own
    "fedem": {"evaluate": {"personal": False}},  # clients that answer with the weights they learned, scored or not
}


@pytest.mark.parametrize("method", METHODS)
def test_sets_cover_as_promised_whoever_answers(method: str) -> None:
    """1 - alpha <= coverage <= 1 - alpha + K / (N + K), for the ensemble's answer and for the clients' own."""
    keys = scenario(
        {"method": {"name": method}, "data": {"limit": None, "hold_out": 0.4, "partition": {"name": "iid"}}},
        {"rounds": 2, "predict": {"conformal": {"score": "aps"}}, "evaluate": {"every": 2}},
        METHODS[method],
    )
    run = fedray.run(keys, report=False)
    held, clients = len(run.study.split("hold_out", 0)[1]), 6
    x, y = (part.numpy() for part in run.study.split("test", 0))
    covered = {name: run.metrics[name] for name in ("conformal_coverage", "conformal_coverage_clients")}
    for score in ("lac", "raps"):
        sets = run.predict(x, conformal={"score": score}).sets
        assert sets is not None
        covered[score] = float(sets[np.arange(len(y)), y].mean())
    error = 2 * np.sqrt(0.1 * 0.9 * (1 / len(y) + 1 / held))  # of the tested rows, and of those that calibrate
    for name, coverage in covered.items():
        assert 0.9 - error <= coverage <= 0.9 + clients / (held + clients) + error, name
    assert run.metrics["conformal_coverage_client_worst"] <= run.metrics["conformal_coverage_clients"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedray.Run:
    """Clients with weights of their own over three models, two replicates."""
    keys = scenario(SETS, {"method": {"models": 3}, "replicates": 2, "evaluate": {"clients": "all"}})
    keys["predict"]["gamma"] = 0.1
    return fedray.run(keys, out=tmp_path_factory.mktemp("sets") / "run", report=False)


def test_the_sets_of_a_prediction_are_those_that_were_scored(run: fedray.Run) -> None:
    last = run.rounds.to_pandas().query("round == 4").set_index("replicate")
    scores = run.client_scores.to_pandas().query("round == 4").set_index(["replicate", "client"])
    x, y = (part.numpy() for part in run.study.split("test", 1))
    sets = run.predict(x, replicate=1).sets
    assert sets is not None
    assert sets[np.arange(len(y)), y].mean() == last.loc[1, "conformal_coverage"]
    assert sets.sum(axis=1).mean() == last.loc[1, "conformal_size"]
    assert np.nanmin(last.loc[1, "conformal_coverage_class"]) == last.loc[1, "conformal_coverage_class_worst"]
    mine, own = run.predict(x, client=2, replicate=1).sets, own_test_rows(run.study, 1)(2)
    assert mine is not None
    assert (mine[own.rows, y[own.rows]] * own.weight).sum() == scores.loc[(1, 2), "conformal_coverage"]
    assert (mine[own.rows].sum(axis=1) * own.weight).sum() == scores.loc[(1, 2), "conformal_size"]
    alone = [run.predict(x[i : i + 1].astype(np.float64), client=2, replicate=1).sets for i in range(9)]
    assert np.array_equal(np.stack(alone)[:, 0], mine[:9])  # type: ignore[arg-type]  # the random part is the row's


@pytest.mark.parametrize("method", ["ditto", "fed_ensemble", "fedem"])
def test_held_out_sets_of_known_clients_are_those_of_their_own_answers(method: str) -> None:
    """Calibrated on every second withheld row of the clients, scored on the others, each by what the client answers."""
    keys = scenario(
        SETS, {"method": {"name": method, **({"lambda": 0.01} if method == "ditto" else {})}}, METHODS[method]
    )
    keys["predict"]["conformal"]["score"] = "lac"
    run = fedray.run(keys, report=False)
    x, y = (part.numpy() for part in run.study.split("hold_out", 0))
    places = [held_out_rows(run.study, 0)(client).rows for client in range(6)]
    gaps = [1 - run.predict(x[own], client=client).mean for client, own in enumerate(places)]
    true = [gap[np.arange(len(own)), y[own]] for gap, own in zip(gaps, places, strict=True)]
    threshold = find_threshold([one[::2] for one in true], ConformalRule(0.2, "lac")).value
    shares = weigh_clients(np.array([len(own[::2]) for own in places]))
    size = [(gap[1::2] <= threshold).sum(axis=1).mean() for gap in gaps]
    inside = [(one[1::2] <= threshold).mean() for one in true]
    assert run.metrics["hold_out_conformal_size_clients"] == pytest.approx(shares @ size / shares.sum(), rel=1e-9)
    assert run.metrics["hold_out_conformal_coverage_clients"] == pytest.approx(shares @ inside / shares.sum(), rel=1e-9)
    assert run.metrics["hold_out_conformal_coverage_client_worst"] == pytest.approx(min(inside), rel=1e-9)
    assert run.metrics["hold_out_conformal_size"] != run.metrics["hold_out_conformal_size_clients"]


def test_clients_with_models_of_their_own_calibrated_by_the_rule_of_the_run_and_not_by_that_of_the_prediction() -> None:
    x, found = np.empty(0), []
    for given in ({"score": "aps"}, {"score": "lac"}, None):
        sets: dict[str, Any] = {"predict": {"conformal": given and {"alpha": 0.2, **given}}}
        run = fedray.run(scenario(SETS, {"method": {"name": "ditto"}}, sets), report=False)
        x = run.study.split("test", 0)[0].numpy()
        found.append([run.predict(x, client=i, conformal={"alpha": 0.2, "score": "aps"}).sets for i in (None, 2)])
    for other in found[1:]:
        assert all(np.array_equal(mine, its) for mine, its in zip(found[0], other, strict=True))  # type: ignore[arg-type]  # there are sets
    assert not np.array_equal(*found[0])  # type: ignore[arg-type]  # likewise


def test_sets_change_nothing_that_is_trained_or_sent(run: fedray.Run) -> None:
    keys = scenario({"data": {"hold_out": 0.25}, "method": {"models": 3}, "replicates": 2, "predict": {"gamma": 0.1}})
    plain = fedray.run(keys, report=False)
    assert plain.summary["model_hash"] == run.summary["model_hash"]
    assert plain.summary["totals"]["up_bytes"] == run.summary["totals"]["up_bytes"]
    assert plain.predict(plain.study.split("test", 0)[0]).sets is None
    held = len(plain.study.split("hold_out", 0)[1])
    sent = run.rounds.to_pandas().query("replicate == 0")["conformal_bytes"]
    assert (sent == 2 * 8 * held).all()  # a number a row, for everybody's answer and for the clients' own


def test_clients_that_predict_alike_send_once_and_halves_with_too_few_rows_have_no_scores() -> None:
    keys = scenario(SETS, {"method": {"name": "fedavg"}, "evaluate": {"personal": True}})
    for alpha, scored in ((0.2, True), (0.1, False)):
        run = fedray.run(keys, predict__conformal__alpha=alpha, report=False)
        sizes = np.array([len(held_out_rows(run.study, 0)(client).rows) for client in range(6)])
        assert run.metrics["conformal_bytes"] == 8 * sizes.sum() and 6 / (sizes.sum() + 6) <= alpha
        assert ("hold_out_conformal_size" in run.metrics) == (6 / ((-(-sizes // 2)).sum() + 6) <= alpha) == scored


def last(setting: Setting) -> Method:
    return Method("last", federated(setting), lambda state: Answer(state, 5, np.array([[0.0] * 4 + [1.0]])))


@pytest.mark.parametrize("method", ["fedag", "ditto", "local_only", "bayesian_linear", "deep_ensemble", last])
def test_intervals_of_a_regression_are_those_that_were_scored(method: Any) -> None:
    keys = {"data": {"name": "cubic", "hold_out": 0.5}, "predict": {"conformal": {"alpha": 0.5}}}
    own = {"method": last} if method is last else {}
    named = of_method("fed_ensemble" if own else method, keys, {"rounds": 1, "data": {"partition": {"name": "iid"}}})
    run = fedray.run({**named, "method": {"models": 5}} if own else named, report=False, **own)
    x, y = (part.double().numpy() for part in run.study.split("test", 0))
    ends = run.predict(x.astype(np.float32)).interval
    assert ends is not None
    inside = (ends[:, 0] <= y.ravel()) & (y.ravel() <= ends[:, 1])
    assert inside.mean() == pytest.approx(run.metrics["conformal_coverage"], abs=1e-6)
    assert (ends[:, 1] - ends[:, 0]).mean() == pytest.approx(run.metrics["conformal_width"], rel=1e-6)


def test_a_pooled_method_has_one_client_and_a_stack_its_own_answer() -> None:
    pooled = fedray.run(of_method("centralized", SETS, {"rounds": 1}), report=False)
    assert pooled.metrics["conformal_bytes"] == 8 * len(pooled.study.split("hold_out", 0)[1])
    bases = {"method": {"bases": [{"name": "mlp", "hidden": [4]}], "folds": "within", "fold_number": 2}}
    stack = fedray.run(of_method("stacking", SETS, bases, {"rounds": 1}), report=False)
    x, y = (part.numpy() for part in stack.study.split("test", 0))
    sets = stack.predict(x).sets
    assert sets is not None and sets[np.arange(len(y)), y].mean() == stack.metrics["conformal_coverage"]
