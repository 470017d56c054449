"""Options of methods that distil, keep Gaussians over weights or send samples, and what cannot act beside."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedray.core.errors import BadInput
from fedray.core.spec import Limit, MethodSpec, Needs, Option
from fedray.core.validators import either, flag, means, one_of, real, text, whole
from fedray.scenario.stacking import check_network

# ---------------------------------------------------------------------------------------------------------------------
# The options of methods whose server distils, and which of them cannot act together.


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

    Example:
        >>> explain_idle("patience", {"validation": 0.0, "inputs": "noise"})
        'method.validation is 0, so that no row says when to stop'
        >>> explain_idle("input_rows", {"validation": 0.1, "inputs": "noise"})
        ''
    """
    if option == "patience" and options.get("validation") == 0:
        return "method.validation is 0, so that no row says when to stop"
    if option == "input_rows" and options.get("inputs") == "withheld":
        return "method.inputs is withheld: method.server_data says how many rows that are"
    return ""


# ---------------------------------------------------------------------------------------------------------------------
# The options of methods whose models are Gaussians over the network's weights.

MEAN_FIELD_SPECS = {
    "pfedbayes": MethodSpec(
        "pFedBayes: each client keeps a Gaussian over its weights, near the clients' mean one (Zhang et al. 2022)",
        options={
            "zeta": Option(10.0, real("[0, inf)")),
            "rho": Option(-2.5, real("[-20, 20]")),
            "personal_steps": Option(5, whole(1, 10**6)),
        },
        defaults={
            "method": {"models": 1},
            "local": {"optimizer": "adam", "lr": 0.001, "batch_size": 100, "steps": 100},
            "evaluate": {"personal": True},
        },
        clients=10,
        own_models=True,
        mean_field="prior",
        private="Gaussian over its weights",
        limits=(Limit("zeta", 0, "local training (pfedbayes whose Gaussians are near nothing)"),),
    ),
    "pvi": MethodSpec(
        "PVI: each client has a factor of one Gaussian over the weights, and refines it (Ashman et al. 2022)",
        options={
            "damping": Option("clients", either("clients", real("(0, 1]"))),
            "prior": Option(1.0, real("(0, inf)")),
            "rho": Option(-3.44, real("[-20, 20]")),
            "samples": Option(10, whole(0, 10**4)),
        },
        defaults={
            "method": {"models": 1},
            "local": {"optimizer": "adam", "lr": 0.002, "batch_size": 512, "steps": 100},
        },
        clients=10,
        robust=False,
        sparse=False,
        optimizer=False,
        averages=False,
        coefficients=False,
        samples=True,
        in_rounds="adds all of what its clients' factors change by, whenever they come",
        mean_field="site",
        private="factor of the posterior",
        step="damping",
    ),
    "ivon_admm": MethodSpec(
        "IVON-ADMM: ADMM between Gaussians over the weights; duals are the clients' factors (Möllenhoff et al. 2026)",
        options={
            "penalty": Option(0.2, real("(0, inf)")),
            "dual_step": Option(0.001, real("[0, 1]")),
            "server_step": Option("admm", either("admm", real("(0, 1]"))),
            "temperature": Option(0.001, real("(0, inf)")),
            "prior": Option(1.0, real("(0, inf)")),
            "beta1": Option(0.9, real("[0, 1)")),
            "beta2": Option(0.9998, real("(0, 1]")),
            "rho": Option(-3.9, real("[-20, 20]")),
            "samples": Option(10, whole(0, 10**4)),
        },
        defaults={
            "method": {"models": 1},
            "local": {"optimizer": "sgd", "lr": 5e-5, "batch_size": 32, "epochs": 10},
        },
        clients=10,
        robust=False,
        optimizer=False,
        averages=False,
        coefficients=False,
        samples=True,
        sparse=False,
        in_rounds="mixes the mean of a round's posteriors with all factors",
        mean_field="site",
        private="factor of the posterior",
        step="dual_step",
    ),
}


# ---------------------------------------------------------------------------------------------------------------------
# The options of methods whose clients send samples of their posterior, and what cannot act beside them.

FIT = "fit"  # of `method.beta`: the server finds it
_IS_FITTED = Needs("method.beta", (FIT,))
_OPTIONS = {
    "samples": Option(6, whole(1, 1000)),
    "cycles": Option(5, whole(1, 10**4)),
    "samples_per_cycle": Option(2, whole(1, 10**4)),
    "exploration": Option(0.6, real("[0, 1)")),
    "temperature": Option(1.0, real("[0, inf)")),
    "beta": Option(FIT, either(FIT, real("[0, 1]"))),
    "server_data": Option(0.2, real("[0, 1)")),
    "beta_epochs": Option(10, whole(1, 10**6), _IS_FITTED),
    "beta_lr": Option(0.01, real("(0, inf)"), _IS_FITTED),
    "beta_batch": Option(100, whole(1, 10**6), _IS_FITTED),
}
SAMPLE_SPECS = {
    "beta_predbayes": MethodSpec(
        "β-Predictive Bayes: clients sample their posteriors; answers lie between the product and the mean of theirs "
        "(Hasan et al. 2024)",
        models="clients",
        options=_OPTIONS,
        defaults={
            "method": {"models": 1},
            "rounds": 1,
            "local": {"lr": 0.1, "momentum": 0.1, "weight_decay": 0.0005, "batch_size": 100, "epochs": 25},
        },
        clients=5,
        robust=False,
        optimizer=False,
        averages=False,
        coefficients=False,
        schedules=False,
        downloads=False,
        in_rounds="trains its parts one after another, in rounds",
        parts=True,
        sampled=True,
    ),
}
_INVITED = ("participation.per_round", "participation.fraction", "participation.selection")


def explain_idle_invitation(key: str, spec: MethodSpec) -> str:
    """Why a dotted key cannot act where every client samples in each round; empty if it can.

    Example:
        >>> explain_idle_invitation("participation.per_round", SAMPLE_SPECS["beta_predbayes"])
        'every client samples in each round'
    """
    return "every client samples in each round" if spec.sampled and key.startswith(_INVITED) else ""
