"""Methods whose clients send the curvature of their loss beside their model, as scenarios know them; without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedray.scenario.spec import Limit, MethodSpec, Needs, Option
from fedray.scenario.validators import either, one_of, real, whole

_DESCENDS = Needs("method.solver", ("descent",))


def _list_options(steps: int, lr: float) -> dict[str, Option]:
    """The options of both, with the defaults of a paper's steps."""
    return {
        "fisher": Option("model", one_of("model", "empirical")),
        "fisher_rows": Option("all", either("all", whole(1, 10**9))),
        "solver": Option("exact", one_of("exact", "descent")),
        "solver_steps": Option(steps, whole(1, 10**7), _DESCENDS),
        "solver_lr": Option(lr, real("(0, inf)"), _DESCENDS),
        "validation": Option(0.05, real("[0, 1)"), _DESCENDS),
    }


_ONE_SHOT: dict[str, Any] = {
    "rounds": 1,
    "local": {"lr": 0.01, "momentum": 0.9, "batch_size": 64, "epochs": 20},
    "server": {"weighting": "examples"},
}
CURVATURE_SPECS: Mapping[str, MethodSpec] = {
    "fedfisher": MethodSpec(
        "FedFisher: one shot, each weight of an upload counts by its Fisher information (Jhunjhunwala et al. 2024)",
        options={"damping": Option(1e-6, real("[0, inf)")), **_list_options(2000, 0.01)},
        defaults={"method": {"models": 1}, **_ONE_SHOT},
        clients=5,
        robust=False,
        coefficients=False,
        in_rounds="weighs the uploads of a round by their curvature",
    ),
    "fedbens": MethodSpec(
        "FedBEns: one shot, an ensemble of M modes of the product of the clients' posteriors (Talpini et al. 2025)",
        options={
            "temperature": Option(0.1, real("(0, inf)")),
            "precision": Option(10.0, real("(0, inf)")),
            "prior": Option(1.0, real("[0, inf)")),
            **_list_options(1000, 0.001),
        },
        defaults={"method": {"models": 3}, **_ONE_SHOT},
        clients=5,
        robust=False,
        optimizer=False,
        coefficients=False,
        schedules=False,
        all_models=True,
        in_rounds="multiplies the posteriors of a round",
        limits=(Limit("models", 1, "FedFisher with a prior (fedbens of one mode)"),),
    ),
}
