"""The bases of stacking and its meta model, from a scenario."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fedray.core.errors import BadInput
from fedray.core.types import Net
from fedray.models.catalogue import build_net
from fedray.models.stacking import Base, Stack, Voter, voting_net
from fedray.scenario.classifiers import CLASSIFIERS
from fedray.scenario.schema import ModelKeys, Scenario

MOST_LEFT_OUT = 1000  # clients of which each is left out once
MOST_FITTED = 10_000  # classifiers of a base that a process keeps for each world
META: dict[str, tuple[str, dict[str, Any]]] = {"softmax": ("linear", {}), "mlp": ("mlp", {"hidden": (50,)})}


def make_stack(scenario: Scenario, classes: int, clients: int, network: Callable[[Scenario], Net]) -> Stack:
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
    folds = keys["fold_number"] if within else clients
    fits = clients * (folds if within else 1)
    votes = [_voting(_model(base), classes, fits) for base in keys["bases"]]
    bases = tuple(
        vote or Base(network(replace(scenario, model=_model(base))), base.get("models", k))
        for base, vote in zip(keys["bases"], votes, strict=True)
    ) or (Base(network(scenario), k),)
    meta = None
    if keys["meta"] in META:
        name, options = META[keys["meta"]]
        meta = build_net(name, (classes * len(bases),), classes, "cross_entropy", **options)
    return Stack(
        bases=bases,
        meta=meta,
        folds=folds,
        within=within,
        rounds=scenario.rounds,
        meta_rounds=keys.get("meta_rounds", scenario.rounds),
        meta_lr=keys.get("meta_lr", scenario.local.lr),
        meta_optimizer=keys.get("meta_optimizer", scenario.local.optimizer),
    )


def _model(base: dict[str, Any]) -> ModelKeys:
    """A base as a model section."""
    return ModelKeys(base["name"], options={key: base[key] for key in base if key not in ("name", "models")})


def _voting(model: ModelKeys, classes: int, fits: int) -> Base | None:
    """The base of a classifier's name; every process that answers fits every client's: with `folds: within` F each."""
    if model.name not in CLASSIFIERS:
        return None
    if fits > MOST_FITTED:
        raise BadInput(
            f"method.bases has {model.name}, of which clients.number (x method.fold_number) makes {fits:,} classifiers"
            f": have at most {MOST_FITTED:,}"
        )
    return Base(voting_net(model.name, classes), 1, Voter(model.name, model.options))
