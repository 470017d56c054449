"""The bases of stacking and its meta model, from a scenario.

Example:
    >>> from fedray.models.nets import build_net
    >>> from fedray.scenario.loader import read_scenario
    >>> scenario = read_scenario({"rounds": 3, "method": {"name": "stacking"}})
    >>> stack = make_stack(scenario, 10, 5, lambda one: build_net("linear", (4,), 10, "cross_entropy"))
    >>> len(stack.bases), stack.folds, stack.rounds  # one base; each of the five clients is left out once
    (1, 5, 3)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fedray.core.errors import BadInput
from fedray.core.types import Net
from fedray.models.nets import build_net
from fedray.models.stacking import Base, Stack, Voter, voting_net
from fedray.scenario.classifiers import CLASSIFIERS
from fedray.scenario.schema import ModelKeys, Scenario

MOST_LEFT_OUT = 1000  # clients of which each is left out once
MOST_FITTED = 10_000  # classifiers of a base that a process keeps for each world
META: dict[str, tuple[str, dict[str, Any]]] = {"softmax": ("linear", {}), "mlp": ("mlp", {"hidden": (50,)})}


def make_stack(scenario: Scenario, classes: int, clients: int, network: Callable[[Scenario], Net]) -> Stack:
    """Makes the stack of a scenario from `method.bases`, or from the scenario's own model without them.

    Args:
        scenario: the scenario.
        classes: C of the data; 0 for regression.
        clients: N.
        network: makes the network of a scenario.

    Raises:
        BadInput: there are no classes, or nothing that can be left out.
    """
    keys, within = scenario.method.options, scenario.method.options["folds"] == "within"
    if not classes:
        raise BadInput(f"method.name = stacking, but {scenario.data.name} has real targets: choose data with classes")
    if not within and not 2 <= clients <= MOST_LEFT_OUT:
        raise BadInput(
            f"method.folds = client leaves out each of {clients:,} clients once: set clients.number from 2 to "
            f"{MOST_LEFT_OUT:,}, or method.folds to within"
        )
    models = scenario.method.models
    folds = keys["fold_number"] if within else clients
    fits = clients * (folds if within else 1)
    classifiers = [_classifier(_model_keys(base), classes, fits) for base in keys["bases"]]
    bases = tuple(
        classifier or Base(network(replace(scenario, model=_model_keys(base))), base.get("models", models))
        for base, classifier in zip(keys["bases"], classifiers, strict=True)
    ) or (Base(network(scenario), models),)
    stack = Stack(
        bases=bases,
        meta=None,
        folds=folds,
        within=within,
        rounds=scenario.rounds,
        meta_rounds=keys.get("meta_rounds", scenario.rounds),
        meta_lr=keys.get("meta_lr", scenario.local.lr),
        meta_optimizer=keys.get("meta_optimizer", scenario.local.optimizer),
        features=keys["features"],
        pooled=keys["meta_data"] == "pooled",
    )
    if keys["meta"] not in META:
        return stack
    name, options = META[keys["meta"]]
    width = stack.count_features(classes)
    return stack._replace(meta=build_net(name, (width,), classes, "cross_entropy", **options))


def _model_keys(base: dict[str, Any]) -> ModelKeys:
    """Returns a base as a model section."""
    return ModelKeys(base["name"], options={key: base[key] for key in base if key not in ("name", "models")})


def _classifier(model: ModelKeys, classes: int, fits: int) -> Base | None:
    """Returns the base of a classifier, or None for the name of a network.

    A process that answers fits the classifiers of all clients (F of each with `folds: within`), so their number is
    limited.
    """
    if model.name not in CLASSIFIERS:
        return None
    if fits > MOST_FITTED:
        raise BadInput(
            f"method.bases has {model.name}, of which {fits:,} would be fitted (one for each client and fold): lower "
            f"clients.number or method.fold_number, so that there are at most {MOST_FITTED:,}"
        )
    return Base(voting_net(model.name, classes), 1, Voter(model.name, model.options))
