"""The keys of stacking: its base models, and what it cannot be combined with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedray.core.errors import BadInput
from fedray.core.text import quote_value
from fedray.scenario.spec import Needs, Option
from fedray.scenario.validators import Check, means, one_of, real, whole

if TYPE_CHECKING:
    from fedray.scenario.schema import Scenario


STACKS = ("stacking", "fens")  # methods whose model is made of parts that train one after another


@means("list of sections", "like `model`, or a classifier")
def check_bases(value: Any) -> Any:
    """The base models of stacking, each a section like `model` that may also have `models` (its K) or be a classifier.

    Example:
        >>> check_bases([{"name": "linear"}, {"name": "mlp", "hidden": 8, "models": 2}])[1]
        {'name': 'mlp', 'models': 2, 'hidden': [8], 'activation': 'relu'}

    Raises:
        ValueError: the value is no list of sections.
        BadInput: a section is wrong; the line names its key.
    """
    from fedray.scenario.classifiers import read_classifier  # these read this module's method in their tables

    if not isinstance(value, list | tuple) or len(value) > 100 or not all(isinstance(base, Mapping) for base in value):
        raise ValueError("is not a list of models: write it as [{name: mlp}, {name: cnn}]")
    more = {"models": whole(1, 10**4)}
    return [
        read_classifier(f"method.bases[{i}]", base) or check_network(f"method.bases[{i}]", base, more)
        for i, base in enumerate(value)
    ]


def check_network(path: str, section: Mapping[str, Any], more: Mapping[str, Check]) -> dict[str, Any]:
    """A section like `model` in a list of networks, with keys of its own.

    Args:
        path: of the section, such as `method.bases[0]`.
        section: what a user writes.
        more: its further keys, and what their values may be.

    Raises:
        BadInput: a key is wrong; the line names it.
    """
    from fedray.scenario.options import fold_options

    plain = {"name": "mlp", **{key: value for key, value in section.items() if key not in more}}
    folded, own = fold_options("model", path, plain, tuple(more)), {}
    for key, check in more.items():
        if section.get(key) is not None:
            try:
                own[key] = check(section[key])
            except ValueError as wrong:
                raise BadInput(f"{path}.{key} = {quote_value(section[key])} {wrong}") from None
    return {"name": folded["name"], **own, **folded["options"]}


def is_stack(scenario: Scenario) -> bool:
    """Whether a model is made of parts: bases and what joins them, or FedDF's several architectures.

    Example:
        >>> from fedray.scenario.loader import read_scenario
        >>> [is_stack(read_scenario({"method": {"name": name}})) for name in ("stacking", "fens", "feddf")]
        [True, True, False]
    """
    method = scenario.method
    return method.name in STACKS or (method.name == "feddf" and bool(method.options.get("networks")))


_META = Needs("method.meta", ("softmax", "mlp"))
STACKING_OPTIONS = {
    "bases": Option([], check_bases),
    "folds": Option("client", one_of("client", "within")),
    "fold_number": Option(5, whole(2, 1000), Needs("method.folds", ("within",))),
    "meta": Option("softmax", one_of("softmax", "mlp", "average")),
    "features": Option("out_of_fold", one_of("out_of_fold", "all", "side_by_side"), _META),
    "meta_data": Option("federated", one_of("federated", "pooled"), _META),
    "meta_rounds": Option(None, whole(0, 10**7), _META),  # None: rounds
    "meta_lr": Option(None, real("(0, inf)"), _META),  # None: local.lr
    "meta_optimizer": Option(None, one_of("sgd", "adam"), _META),  # None: local.optimizer
}


def check_stacking(scenario: Scenario) -> None:
    """Raises `BadInput` for the first key that has no meaning for a stack."""
    name = scenario.method.name
    if not is_stack(scenario):
        return
    plain = "probabilities"
    refused = (
        ("predict.gamma", scenario.predict.gamma, math.isfinite(scenario.predict.gamma), "inf"),
        ("schedule.kind", scenario.schedule.kind, scenario.schedule.kind == "walk", "permutation"),
        ("local.lr_grid", scenario.local.lr_grid, bool(scenario.local.lr_grid), "an empty list"),
        ("participation.overcommit", scenario.participation.overcommit, is_uncounted(scenario), "1"),
        ("predict.average", scenario.predict.average, scenario.predict.average != plain, plain),
    )
    for key, value, is_wrong, remedy in refused:
        if is_wrong:
            raise BadInput(f"{key} = {value}, but method {name} cannot use it: leave it at {remedy}")
    _check_pooled(scenario)
    from fedray.scenario.classifiers import CLASSIFIERS

    first = next(iter(scenario.method.options.get("bases", ())), {"name": ""})["name"]
    if first in CLASSIFIERS:
        raise BadInput(
            f"method.bases[0].name = {first}, but the first base must be a network: list one before it, as in "
            f"[{{name: mlp}}, {{name: {first}}}]"
        )


def _check_pooled(scenario: Scenario) -> None:
    """A server that has all features needs every client once, and waits for nobody afterwards."""
    if scenario.method.options.get("meta_data") != "pooled":
        return
    keys = scenario.participation
    for key, value, wrong in (
        ("participation.dropout", keys.dropout, keys.dropout > 0),
        ("participation.deadline", keys.deadline, keys.deadline is not None),
        ("participation.mode", keys.mode, keys.mode != "sync"),
    ):
        if wrong:
            raise BadInput(
                f"{key} = {value}, but with method.meta_data = pooled the server needs the answers of every client: "
                "leave it out, or set method.meta_data to federated"
            )


def is_uncounted(scenario: Scenario) -> bool:
    """Whether a server would leave networks out that came late, where every client has only one to send."""
    return scenario.method.name == "fens" and scenario.participation.overcommit > 1
