"""Scores of known clients by tier: they add up to those of all, and are those of each client's own answer."""

from typing import Any

import numpy as np
import pytest

import fedray
from fedray.metrics.classification import auroc, entropies, row_scores, scores_of_means
from fedray.metrics.scores import lower_is_better

TIERS = {"strong": {"number": 3, "models_per_round": 3, "width": 1.0}, "weak": {"number": 5, "width": 0.5}}
KEYS: dict[str, Any] = {
    "rounds": 2,
    "runtime": "inline",
    "report": False,
    "clients": {"tiers": {name: {"number": tier["number"]} for name, tier in TIERS.items()}},
    "data": {"hold_out": 0.2, "partition": {"name": "dirichlet_clients", "alpha": 0.5}},
    "evaluate": {"every": 2, "by_tier": True, "clients": "all", "personal": True},
}


def tiers_of(*names: str) -> dict[str, Any]:
    return {
        "clients": {
            "tiers": {tier: {"number": v["number"], **{n: v[n] for n in names if n in v}} for tier, v in TIERS.items()}
        }
    }


def test_the_gap_of_two_tiers_is_the_paired_difference_over_the_seeds() -> None:
    run = fedray.run({**KEYS, **tiers_of("models_per_round"), "replicates": 2}, method="shefl")
    rows = run.rounds.to_pandas().query("round == 2")
    for name in ("accuracy", "nll", "brier", "ece"):
        pairs = rows[f"tier_strong_{name}"] - rows[f"tier_weak_{name}"]
        gap = f"tier_strong_minus_weak_{name}"
        np.testing.assert_allclose(rows[gap], pairs, rtol=1e-12)
        assert run.metrics[gap] == pytest.approx(pairs.mean(), abs=1e-12) and not lower_is_better(gap)


def test_unknown_inputs_are_told_apart_tier_by_tier() -> None:
    """Clients that predict alike have the score of the whole; else a tier has the mean over its clients' weights."""
    ood = {"evaluate": {**KEYS["evaluate"], "ood": "noise"}}
    alike = fedray.run(
        {**KEYS, **ood, "evaluate": {**ood["evaluate"], "personal": False}}, method="fed_ensemble"
    ).metrics
    run = fedray.run({**KEYS, **ood}, method="fedem")
    for name in ("ood_auroc", "ood_auroc_knowledge", "ood_fpr95", "ood_entropy"):
        for prefix in ("", "hold_out_"):
            assert alike[f"{prefix}tier_weak_{name}"] == alike[prefix + name]
    known, unknown = (run.study.split(split, 0)[0] for split in ("test", "ood"))
    for tier, clients in (("strong", range(3)), ("weak", range(3, 8))):
        each = [[entropies(run.predict(x, client=one).mean) for x in (unknown, known)] for one in clients]
        assert run.metrics[f"tier_{tier}_ood_auroc"] == pytest.approx(np.mean([auroc(*one) for one in each]), abs=1e-6)
    assert run.metrics["tier_strong_ood_auroc"] != run.metrics["tier_weak_ood_auroc"]


@pytest.mark.parametrize(
    ("method", "more"), [("fedavg", {}), ("shefl", tiers_of("models_per_round")), ("ditto", {}), ("fedem", {})]
)
def test_tiers_add_up_to_all_clients_whatever_answers_them(method: str, more: dict[str, Any]) -> None:
    run = fedray.run({**KEYS, **more}, method=method)
    found = run.metrics
    for prefix in ("", "hold_out_"):
        for name in ("accuracy", "nll", "brier"):
            strong, weak, all_ = (
                found[f"{prefix}{group}_{name}"] for group in ("tier_strong", "tier_weak", "personal")
            )
            assert (3 * strong + 5 * weak) / 8 == pytest.approx(all_, rel=1e-9), name
    x, y = run.study.split("hold_out", 0)
    mine = [(i, run.study.shards.client_holdout(0, i)) for i in range(3, 8)]
    each = [row_scores(run.predict(x[own], client=i).mean, y[own].numpy()).mean(axis=1) for i, own in mine]
    ece = scores_of_means(np.mean(each, axis=0))["ece"]
    assert found["hold_out_tier_weak_ece"] == pytest.approx(ece, rel=1e-6)
    rows = run.client_scores.to_pandas().query("round == 2")
    for tier in ("strong", "weak"):  # the same accuracies that each client has by itself
        assert rows[rows["tier"] == tier]["accuracy"].mean() == pytest.approx(found[f"tier_{tier}_accuracy"], rel=1e-9)


def test_sets_and_intervals_have_tiers() -> None:
    sets = {"predict": {"conformal": {"alpha": 0.2}}}
    run = fedray.run({**KEYS, **tiers_of("models_per_round"), **sets}, method="shefl")
    rows = run.client_scores.to_pandas().query("round == 2 and tier == 'weak'")
    assert run.metrics["tier_weak_conformal_coverage"] == pytest.approx(rows["conformal_coverage"].mean(), rel=1e-9)
    assert run.metrics["tier_weak_conformal_size"] == pytest.approx(rows["conformal_size"].mean(), rel=1e-9)
    line = fedray.run(
        {**KEYS, "data": {"name": "cubic", "hold_out": 0.2}, "predict": {"noise": "residual"}}, method="fed_ensemble"
    )
    rows = line.client_scores.to_pandas().query("round == 2 and tier == 'weak'")
    assert line.metrics["tier_weak_rmse"] == pytest.approx(rows["rmse"].mean(), rel=1e-9)
    for name in ("coverage_95", "width_95"):  # every client is answered alike, and tested on all rows
        assert line.metrics[f"tier_weak_{name}"] == pytest.approx(line.metrics[name], rel=1e-6)
