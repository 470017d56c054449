"""Scores of known clients by tier: they add up to those of all, and are those of each client's own answer."""

from typing import Any

import numpy as np
import pytest

import fedray
from fedray.metrics.classification import nll

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


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("fedavg", {}),
        ("shefl", tiers_of("models_per_round")),
        ("ditto", {}),
        ("fedem", {}),
    ],
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
        assert 0 <= found[f"{prefix}personal_ece"] <= 1
    rows = run.client_scores.to_pandas().query("round == 2")
    for tier in ("strong", "weak"):  # the same accuracies that each client has by itself
        assert rows[rows["tier"] == tier]["accuracy"].mean() == pytest.approx(found[f"tier_{tier}_accuracy"], rel=1e-9)


def test_scores_are_those_of_what_a_client_is_told() -> None:
    run = fedray.run({**KEYS, **tiers_of("models_per_round")}, method="shefl")
    x, y = run.study.split("hold_out", 0)
    each = []
    for client in range(8):
        rows = run.study.shards.client_holdout(0, client)
        each.append(nll(run.predict(x[rows], client=client).mean, y[rows]) if len(rows) else np.nan)
    assert np.nanmean(each[:3]) == pytest.approx(run.metrics["hold_out_tier_strong_nll"], rel=1e-6)
    assert np.nanmean(each[3:]) == pytest.approx(run.metrics["hold_out_tier_weak_nll"], rel=1e-6)


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
    assert 0 <= line.metrics["tier_weak_coverage_95"] <= 1 and line.metrics["tier_weak_width_95"] > 0
