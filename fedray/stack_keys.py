"""The bases of stacking and its meta model, from a scenario."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fedray.bases import Base, Stack
from fedray.core import BadInput, Net
from fedray.models import build_net
from fedray.scenario import ModelKeys, Scenario

MOST_LEFT_OUT = 1000  # clients of which each is left out once
META: dict[str, tuple[str, dict[str, Any]]] = {"softmax": ("linear", {}), "mlp": ("mlp", {"hidden": (50,)})}


def stack(scenario: Scenario, classes: int, clients: int, network: Callable[[Scenario], Net]) -> Stack:
    """What stacks: `method.bases`, or the scenario's own model where there are none.

    Args:
        classes: C. clients: N. network: makes the network of a scenario.

    Raises:
        BadInput: there are no classes, or nothing that can be left out.
    """
    keys, within = scenario.method.options, scenario.method.options["folds"] == "within"
    if not classes:
        raise BadInput(f"method.name = stacking, but {scenario.data.name} has real targets: choose data with classes")
    if not within and not 2 <= clients <= MOST_LEFT_OUT:
        raise BadInput(
            f"method.folds = client leaves out each of {clients:,} clients once: have 2 to {MOST_LEFT_OUT:,} of them, "
            "or choose within"
        )
    k = scenario.method.models
    bases = tuple(Base(network(replace(scenario, model=_model(base))), base.get("models", k)) for base in keys["bases"])
    bases = bases or (Base(network(scenario), k),)
    meta = None
    if keys["meta"] in META:
        name, options = META[keys["meta"]]
        meta = build_net(name, (classes * len(bases),), classes, "cross_entropy", **options)
    return Stack(
        bases=bases,
        meta=meta,
        folds=keys["fold_number"] if within else clients,
        within=within,
        rounds=scenario.rounds,
        meta_rounds=keys.get("meta_rounds", scenario.rounds),
        meta_lr=keys.get("meta_lr", scenario.local.lr),
        meta_optimizer=keys.get("meta_optimizer", scenario.local.optimizer),
    )


def _model(base: dict[str, Any]) -> ModelKeys:
    """A base as a model section."""
    return ModelKeys(base["name"], options={key: base[key] for key in base if key not in ("name", "models")})
