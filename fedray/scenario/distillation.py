"""The options of methods whose server distils, and which of them cannot act together.

Example:
    >>> explain_idle("patience", {"validation": 0.0, "inputs": "noise"})
    'method.validation is 0, so that no row says when to stop'
    >>> explain_idle("input_rows", {"validation": 0.1, "inputs": "noise"})
    ''
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedray.core.errors import BadInput
from fedray.scenario.spec import Needs, Option
from fedray.scenario.stacking import check_network
from fedray.scenario.validators import flag, means, one_of, real, text, whole


@means("list of sections", "like `model`, with the `tier` of its clients")
def check_networks(value: Any) -> list[dict[str, Any]]:
    """Several architectures, each a section like `model` that may also name the `tier` of the clients that have it.

    One with `answers: false` is trained like the others, and has no part in the answer.

    Example:
        >>> check_networks([{"name": "linear", "tier": "weak"}])
        [{'name': 'linear', 'tier': 'weak', 'bias': True}]

    Raises:
        ValueError: the value is no list of sections.
        BadInput: a section is wrong; the line names its key.
    """
    if not isinstance(value, list | tuple) or len(value) > 100 or not all(isinstance(one, Mapping) for one in value):
        raise ValueError("is not a list of models: write it as [{name: mlp}, {name: linear}]")
    more = {"tier": text, "answers": flag}
    checked = [check_network(f"method.networks[{i}]", one, more) for i, one in enumerate(value)]
    if checked and not any(one.get("answers", True) for one in checked):
        raise ValueError("has no network that answers: leave answers out in one of them")
    return checked


FEDBE_OPTIONS = {
    "temperature": Option(0.5, real("(0, inf)")),
    "server_data": Option(0.1, real("(0, 1)")),
    "distil_epochs": Option(20, whole(0, 10**6)),
    "distil_lr": Option(0.01, real("(0, inf)")),
    "distil_batch": Option(32, whole(1, 10**6)),
}
FEDDF_OPTIONS = {
    "networks": Option([], check_networks),
    "inputs": Option("withheld", text),  # or noise, or the name of a data set
    "server_data": Option(0.1, real("(0, 1)"), Needs("method.inputs", ("withheld",))),
    "input_rows": Option(10_000, whole(1, 10**7)),
    "validation": Option(0.05, real("[0, 1)")),
    "teacher": Option("mean_logits", one_of("mean_logits", "confidence")),
    "distil_steps": Option(10_000, whole(0, 10**7)),
    "distil_lr": Option(1e-3, real("(0, inf)")),
    "distil_batch": Option(128, whole(1, 10**6)),
    "patience": Option(1000, whole(1, 10**7)),
}


def check_architectures(networks: Sequence[Mapping[str, Any]], tiers: Collection[str]) -> None:
    """Raises `BadInput` unless either no network names a tier, or each tier is named by exactly one of them.

    Args:
        networks: `method.networks`.
        tiers: names of the tiers of the scenario.
    """
    named = [one.get("tier") for one in networks]
    if not any(named):
        return
    for i, name in enumerate(named):
        key = f"method.networks[{i}].tier"
        if name is None:
            raise BadInput(f"{key} is missing, but other networks name a tier: name one in each, or in none")
        if name not in tiers:
            raise BadInput(
                f"{key} = {name} is no tier of clients.tiers ({', '.join(tiers) or 'none'}): name one of them"
            )
        if name in named[:i]:
            raise BadInput(f"{key} = {name}, but another network has the clients of this tier: name another tier")
    left = [tier for tier in tiers if tier not in named]
    if left:
        raise BadInput(f"method.networks names no network for clients.tiers.{left[0]}: add one with tier: {left[0]}")


def explain_idle(option: str, options: Mapping[str, Any]) -> str:
    """Why an option of a method that distils cannot act beside the others; empty if it can.

    Args:
        option: its name.
        options: all options of the method.
    """
    if option == "patience" and options.get("validation") == 0:
        return "method.validation is 0, so that no row says when to stop"
    if option == "input_rows" and options.get("inputs") == "withheld":
        return "method.inputs is withheld: method.server_data says how many rows that are"
    return ""
