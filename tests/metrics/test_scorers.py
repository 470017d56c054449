"""Scores of scikit-learn by name are scikit-learn's own numbers: of the ensemble, each member, each client and tier."""

import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.metrics import average_precision_score, get_scorer, get_scorer_names, log_loss, roc_auc_score
from sklearn.naive_bayes import GaussianNB
from small import run_quietly
from sweeps import run as run_sweep
from sweeps import sweep

import fedray
from fedray.core.errors import BadInput
from fedray.core.types import FloatArray
from fedray.evaluation.answers import own_test_rows
from fedray.metrics.scorers import SampleMetric

# ---------------------------------------------------------------------------------------------------------------------
# A metric of samples, without a run.


def fitting(classes: int) -> list[str]:
    """The scorers that score a task."""
    found = []
    for name in get_scorer_names():
        try:
            SampleMetric(name).try_out(classes)
        except BadInput:
            continue
        found.append(name)
    return found


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Without what scikit-learn says of classes that are never predicted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize(("classes", "positive"), [(2, 1), (2, 0), (10, 1)])
def test_every_scorer_of_classes_is_that_of_a_fitted_classifier(classes: int, positive: int) -> None:
    draw = np.random.default_rng(classes)
    y = draw.integers(0, classes, 400)
    x = y[:, None] + draw.normal(size=(400, 3))
    told = GaussianNB().fit(x, y).predict_proba(x)
    named = y if positive else 1 - y  # for scikit-learn class 1 is the positive one
    model = GaussianNB().fit(x, named)
    names = fitting(classes)
    assert {"accuracy", "average_precision", "neg_log_loss", "roc_auc_ovr"} < set(names) and "r2" not in names
    for name in names:
        wanted = get_scorer(name)(model, x, named)
        assert SampleMetric(name, positive).score(y, told) == pytest.approx(wanted, rel=1e-12, abs=1e-12), name


def test_every_scorer_of_real_targets_is_that_of_a_fitted_model() -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(200, 3))
    y = 20 + x.sum(axis=1) + draw.normal(size=200)
    model, names = LinearRegression().fit(x, y), fitting(0)
    assert {"r2", "neg_mean_absolute_error", "neg_mean_poisson_deviance"} < set(names) and "rand_score" not in names
    for name in names:
        assert SampleMetric(name).score(y, model.predict(x)) == pytest.approx(get_scorer(name)(model, x, y), rel=1e-12)


@pytest.mark.parametrize("name", fitting(2))
def test_whether_one_class_can_be_scored_does_not_depend_on_what_is_predicted(name: str) -> None:
    """Clients of one class had balanced accuracy 1, or none where one of their samples was answered wrong."""
    draw = np.random.default_rng(0)
    for y in (0, 1):
        chance = [0.0, 1.0, *draw.random(5)]
        told = [np.stack([p := draw.random(6) ** (1 / (c + 0.01)), 1 - p], axis=1) for c in chance]
        found = [SampleMetric(name).score(np.full(6, y), each) for each in told]
        assert len({math.isnan(value) for value in found}) == 1
    scored = not math.isnan(SampleMetric(name).score(np.ones(6, int), told[0]))
    assert scored == (not math.isnan(SampleMetric(name).score(np.zeros(6, int), told[0])))
    known = {"roc_auc": False, "average_precision": False, "balanced_accuracy": False, "f1": False, "accuracy": True}
    assert known.get(name, scored) == scored


def test_log_loss_needs_no_sample_of_every_class() -> None:
    told = np.array([[0.7, 0.1, 0.2], [0.2, 0.5, 0.3]])
    found = SampleMetric("neg_log_loss").score(np.array([0, 0]), told)
    assert found == pytest.approx(-log_loss([0, 0], told, labels=[0, 1, 2]), rel=1e-12)
    assert math.isnan(SampleMetric("roc_auc_ovr").score(np.array([0, 1]), told))


@pytest.mark.parametrize("name", ["roc_auc", "average_precision", "balanced_accuracy", "neg_log_loss"])
def test_the_weight_of_a_sample_acts_as_repetitions_do(name: str) -> None:
    draw = np.random.default_rng(1)
    y, told, often = np.arange(30) % 2, draw.dirichlet([1, 1], 30), draw.integers(1, 4, 30)
    weighted, repeated = SampleMetric(name).score(y, told, often / often.sum()), np.repeat(np.arange(30), often)
    assert weighted == pytest.approx(SampleMetric(name).score(y[repeated], told[repeated]), rel=1e-12)
    assert weighted != pytest.approx(SampleMetric(name).score(y, told), rel=1e-6)


# ---------------------------------------------------------------------------------------------------------------------
# Runs on four wards, of which one has no ill patient.

NAMES = ["roc_auc", "average_precision", "balanced_accuracy", "neg_log_loss", "recall"]
TIERS = {"strong": {"number": 2}, "weak": {}}


def wards(classes: tuple[str, str] = ("healthy", "ill")) -> dict[str, Any]:
    """A fifth of 360 patients is ill; nobody in ward D."""
    draw = np.random.default_rng(3)
    y = (draw.random(360) < 0.2).astype(int)
    x = (0.8 * y[:, None] + draw.normal(size=(360, 5))).astype(np.float32)
    y[270:] = 0
    return {f"ward {name}": (x[i::4] if i < 3 else x[270:], np.array(classes)[y[i::4] if i < 3 else y[270:]])
            for i, name in enumerate("ABCD")}  # fmt: skip


def train(method: Any = None, metrics: Any = None, evaluated: Any = NAMES, **evaluate: Any) -> fedray.Run:
    """Four clients in two tiers, every score of each."""
    keys = {
        "rounds": 2, "runtime": "inline", "report": False, "method": method or {"name": "fed_ensemble", "models": 3},
        "model": {"name": "mlp", "hidden": [6]}, "local": {"lr": 0.1}, "clients": {"tiers": TIERS},
        "data": {"hold_out": 0.4}, "predict": {} if method else {"gamma": 0.1},
        "evaluate": {"metrics": evaluated, "every": 2, "personal": True, "by_tier": True, "clients": "all", **evaluate},
    }  # fmt: skip
    return run_quietly(keys, wards(), **({"metrics": metrics} if metrics else {}))


@pytest.fixture(scope="module")
def done() -> fedray.Run:
    return train(positive="ill")


def reference(name: str, told: FloatArray, y: Any, weight: Any = None, positive: int = 1) -> float:
    """What scikit-learn's function says of probabilities."""
    true, score = (np.asarray(y) == positive).astype(int), told[:, positive]
    if name == "roc_auc":
        return float(roc_auc_score(true, score, sample_weight=weight)) if len(set(true)) > 1 else math.nan
    if name == "average_precision":
        return float(average_precision_score(true, score, sample_weight=weight)) if len(set(true)) > 1 else math.nan
    assert name == "neg_log_loss"
    return -float(log_loss(true, np.stack([1 - score, score], axis=1), sample_weight=weight, labels=[0, 1]))


CURVES = ("roc_auc", "average_precision", "neg_log_loss")


def test_the_ensemble_and_its_members_have_the_scores_of_what_they_predict(done: fedray.Run) -> None:
    x, y = done.study.split("test", 0)
    told = done.predict(x.numpy())
    for name in CURVES:
        each = [reference(name, member, y) for member in told.members]
        wanted = {"": reference(name, told.mean, y), "_min": min(each), "_mean": np.mean(each), "_max": max(each)}
        for over, value in wanted.items():
            assert done.metrics[name + over] == pytest.approx(value, rel=1e-12), name + over


def test_the_other_class_may_be_the_positive_one(done: fedray.Run) -> None:
    other = train(positive="healthy")
    x, y = other.study.split("test", 0)
    told = other.predict(x.numpy()).mean
    assert other.class_names == ("healthy", "ill")
    for name in CURVES:
        assert other.metrics[name] == pytest.approx(reference(name, told, y, positive=0), rel=1e-12)
    assert other.metrics["average_precision"] > done.metrics["average_precision"]
    assert other.metrics["roc_auc"] == pytest.approx(done.metrics["roc_auc"], rel=1e-12)  # does not tell them apart


@pytest.mark.parametrize("method", [None, "ditto", "fedper"], ids=str)
def test_clients_have_the_scores_of_what_each_is_answered(method: str | None, done: fedray.Run) -> None:
    run = train(method) if method else done
    shards, own = run.study.shards, own_test_rows(run.study, 0)
    (x_test, y_test), (x_held, y_held) = run.study.split("test", 0), run.study.split("hold_out", 0)
    recorded = run.client_scores.to_pandas().query("round == 2").set_index("client")
    assert list(recorded.index) == [0, 1, 2, 3]
    for client, row in recorded.iterrows():
        held, mine = shards.client_holdout(0, client), own(client)
        told = run.predict(x_held[held].numpy(), client=client).mean
        tested = run.predict(x_test[mine.rows].numpy(), client=client).mean
        for name in CURVES:
            wanted = reference(name, told, y_held[held])
            assert row[f"hold_out_{name}"] == pytest.approx(wanted, rel=1e-6, nan_ok=True)
            wanted = reference(name, tested, y_test[mine.rows], mine.weight)
            assert row[name] == pytest.approx(wanted, rel=1e-6, nan_ok=True)


def test_means_leave_out_who_has_no_score_and_count_the_others(done: fedray.Run) -> None:
    found, rows = done.metrics, done.client_scores.to_pandas().query("round == 2")
    for prefix in ("", "hold_out_"):
        for name in NAMES:
            each = rows[prefix + name]
            assert found[f"{prefix}personal_{name}"] == pytest.approx(each.mean(), rel=1e-12)  # NaN is left out
            assert found[f"{prefix}personal_{name}_clients"] == each.notna().sum() == (4 if "log" in name else 3)
            for tier, of_tier in rows.groupby("tier")[prefix + name]:
                assert found[f"{prefix}tier_{tier}_{name}"] == pytest.approx(of_tier.mean(), rel=1e-12)


def test_own_functions_get_what_their_second_argument_asks_for(done: fedray.Run) -> None:
    """Classes or probabilities; one without `sample_weight` has no score where samples weigh unequally."""

    def misses(y_true: Any, y_pred: Any) -> float:
        return float(((y_true == 1) & (y_pred == 0)).sum() / (y_true == 1).sum()) if (y_true == 1).any() else math.nan

    run = train(metrics={"auc": roc_auc_score, "misses": misses}, positive="ill")
    assert run.metrics["auc"] == run.metrics["roc_auc"] == done.metrics["roc_auc"]
    assert run.metrics["hold_out_personal_auc"] == run.metrics["hold_out_personal_roc_auc"]
    assert run.metrics["personal_auc"] == run.metrics["personal_roc_auc"]
    assert run.metrics["misses"] == pytest.approx(1 - run.metrics["recall"], rel=1e-12)
    assert run.metrics["personal_misses"] == pytest.approx(1 - run.metrics["personal_recall"], rel=1e-12)
    found = [SampleMetric("misses", 1, misses).score(np.array([0, 1]), np.eye(2), w) for w in (None, np.array([1, 2]))]
    assert found[0] == 0 and math.isnan(found[1])


def test_a_sweep_maximizes_a_scorer_on_withheld_samples(tmp_path: Path) -> None:
    given = sweep({"local.lr": [0.001, 0.3]}, objectives=["balanced_accuracy"], trials=2)
    given["scenario"] = {**given["scenario"], "evaluate": {"metrics": ["balanced_accuracy"]}}
    summary, rows = run_sweep(given, tmp_path / "s")
    values = [row["values"]["balanced_accuracy"] for row in rows]
    assert summary["winners"][0]["values"]["balanced_accuracy"] == max(values) > min(values)
    best = fedray.run(given["scenario"], local__lr=0.3, report=False, data__hold_out=0.2)
    assert max(values) == pytest.approx(best.metrics["hold_out_balanced_accuracy"], rel=1e-9)


def test_a_run_names_the_class_that_is_as_good_as_its_accuracy() -> None:
    keys = {"rounds": 1, "runtime": "inline", "report": False, "clients": 4, "method": "fedavg"}
    run = run_quietly(keys, wards())
    ill = float(np.mean(run.study.split("test", 0)[1].numpy()))
    assert run.summary["most_frequent"] == {"class": "healthy", "share": pytest.approx(1 - ill), "classes": 2}
