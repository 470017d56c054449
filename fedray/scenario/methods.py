"""The methods as scenarios know them: one specification each, without torch.

A specification says how a method is called, how many models it trains, which options it has, what its paper sets, and
what it combines with. A new method is one entry in `METHOD_SPECS`, and a function of its name in `fedray/methods/`.
"""

from __future__ import annotations

from typing import Any

from fedray.scenario.boosting import BOOSTING_SPECS
from fedray.scenario.client_clusters import CLUSTER_SPECS
from fedray.scenario.distillation import FEDBE_OPTIONS, FEDDF_OPTIONS
from fedray.scenario.mean_field import MEAN_FIELD_SPECS
from fedray.scenario.one_shot import ONE_SHOT_SPECS
from fedray.scenario.posterior import POSTERIOR_SPECS
from fedray.scenario.slices import SLICE_SPECS
from fedray.scenario.spec import Limit, MethodSpec, Needs, Option
from fedray.scenario.stacking import STACKING_SPECS
from fedray.scenario.validators import either, list_of, one_of, real, whole

_ONE: dict[str, Any] = {"method": {"models": 1}}  # the paper trains one model; another number is an extension
_BY_EXAMPLES: dict[str, Any] = {"server": {"weighting": "examples"}}  # the paper weighs each upload by n_i
_HEAD: dict[str, Any] = {"local": {"private": ["head"]}}
_ALPHA = {"alpha": Option(0.01, real("(0, inf)"))}
_CORRECTED = "has corrections that are made of rounds in which clients and server meet"
_SAMPLER = {"sampler": Option("gaussian", one_of("gaussian", "dirichlet")), "samples": Option(10, whole(1, 10**4))}
_TIERS: dict[str, Any] = {
    "hpc": {"share": 0.5, "models_per_round": "all", "seconds_per_step": 0.002, "uplink": 12.5e6},
    "lpc": {"share": 0.5, "seconds_per_step": 0.01, "uplink": 1.25e6},
}

METHOD_SPECS: dict[str, MethodSpec] = {
    "fed_ensemble": MethodSpec(
        "Fed-ensemble: K models, each client trains one of them in a round (Shi et al. 2024)",
        splits=True,
        limits=(Limit("models", 1, "FedAvg (fed_ensemble of one model)"),),
    ),
    "fedavg": MethodSpec(
        "federated averaging: one model that every client trains (McMahan et al. 2017)",
        models="one",
        defaults={**_ONE, **_BY_EXAMPLES},
        splits=True,
    ),
    "fedprox": MethodSpec(
        "FedProx: FedAvg with a proximal term that pulls clients to the broadcast model (Li et al. 2020)",
        module="fedavg",
        models="one",
        options={"mu": Option(0.01, real("[0, inf)"))},
        defaults={**_ONE, **_BY_EXAMPLES},
        splits=True,
        limits=(Limit("mu", 0, "FedAvg (fedprox without its pull)"),),
    ),
    "fednova": MethodSpec(
        "FedNova: each client's delta is divided by its local steps before the mean (Wang et al. 2020)",
        defaults={**_ONE, **_BY_EXAMPLES},
        robust=False,
        splits=True,
    ),
    "moon": MethodSpec(
        "MOON: features near those of the broadcast model, away from the client's last ones (Li et al. 2021)",
        options={"mu": Option(1.0, real("[0, inf)")), "temperature": Option(0.5, real("(0, inf)"))},
        defaults={**_ONE, **_BY_EXAMPLES},
        splits=True,
        private="the model that it trained last",
    ),
    "fedsam": MethodSpec(
        "FedSAM: clients descend by the gradient at the worst point nearby (Qu et al. 2022)",
        options={"rho": Option(0.05, real("[0, inf)"))},
        defaults={**_ONE, **_BY_EXAMPLES},
        splits=True,
    ),
    **POSTERIOR_SPECS,
    "fedper": MethodSpec(
        "FedPer: the last layer stays with the client, the others are averaged (Arivazhagan et al. 2019)",
        defaults={**_ONE, **_BY_EXAMPLES, **_HEAD},
        splits=True,
        private="the last layer",
        own_models=True,
    ),
    "fedbn": MethodSpec(
        "FedBN: normalization layers stay with the client, the others are averaged (Li et al. 2021)",
        module="fedper",
        defaults={**_ONE, **_BY_EXAMPLES, "local": {"private": ["norm"]}},
        splits=True,
        private="normalization layers",
        own_models=True,
    ),
    "fedrep": MethodSpec(
        "FedRep: as FedPer, and a client trains its last layer first, then the others (Collins et al. 2021)",
        module="fedper",
        options={"body_epochs": Option(1, whole(1, 10**6))},
        defaults={**_ONE, **_BY_EXAMPLES, **_HEAD},
        splits=True,
        private="the last layer",
        own_models=True,
    ),
    "shefl": MethodSpec(
        "SHEFL: strong devices train all models and weak ones one, top-k uploads, equal weight for each tier",
        options={"mu": Option(0.0, real("[0, inf)")), "alpha": Option(0.0, real("[0, inf)"))},
        defaults={
            "clients": {"tiers": _TIERS},
            "compress": {"kind": "topk", "ratio": 0.1},
            "server": {"coefficients": "equal_groups"},
        },
        splits=True,
        private="correction, if `alpha` > 0",
    ),
    **SLICE_SPECS,
    "fedag": MethodSpec(
        "FedAG: FedAvg whose server keeps a Gaussian over the weights (Thorgeirsson and Gauterin 2021)",
        options={
            "sampling": Option("bootstrap", one_of("bootstrap", "omc")),
            "samples": Option("clients", either("clients", whole(1, 10**4)), Needs("method.sampling", ("omc",))),
            "beta": Option("residual", one_of("residual", "target"), Needs("model.name", ("linear", "rbf"))),
            "residuals": Option("uploads", one_of("uploads", "mean"), Needs("method.sampling", ("bootstrap",))),
        },
        defaults={
            **_ONE,
            "rounds": 5,
            "local": {"lr": 0.01, "batch_size": 1, "epochs": 40},
            "predict": {"noise": "residual"},
        },
        clients=10,
        robust=False,
        optimizer=False,
        coefficients=False,
        samples=True,
    ),
    "fedbe": MethodSpec(
        "FedBE: a Bayesian ensemble at the server, distilled into the next model (Chen and Chao 2021)",
        options={**_SAMPLER, **FEDBE_OPTIONS},
        defaults={**_ONE, **_BY_EXAMPLES},
        robust=False,
        optimizer=False,
        coefficients=False,
        samples=True,
        limits=(Limit("distil_epochs", 0, "FedAvg with FedBE's teachers (nothing is distilled)"),),
    ),
    "fedbe_nokd": MethodSpec(
        "FedBE without distillation: the next model is a random sample",
        module="fedbe",
        options=_SAMPLER,
        defaults={**_ONE, **_BY_EXAMPLES},
        robust=False,
        optimizer=False,
        coefficients=False,
        samples=True,
    ),
    "feddf": MethodSpec(
        "FedDF: the mean of the uploads learns to answer as their ensemble, on server inputs (Lin et al. 2020)",
        options=FEDDF_OPTIONS,
        defaults={**_ONE, **_BY_EXAMPLES},
        robust=False,
        limits=(Limit("distil_steps", 0, "FedAvg (nothing is distilled)"),),
    ),
    "feddyn": MethodSpec(
        "FedDyn: dynamic regularization, one linear correction for each client (Acar et al. 2021)",
        models="one",
        options=_ALPHA,
        defaults=_ONE,
        optimizer=False,
        in_rounds=_CORRECTED,
        private="correction",
    ),
    "feddyn_ensemble": MethodSpec(
        "FedDyn under the schedule of Fed-ensemble, one correction for each client and model",
        module="feddyn",
        options=_ALPHA,
        optimizer=False,
        in_rounds=_CORRECTED,
        private="correction",
        limits=(Limit("models", 1, "FedDyn (feddyn_ensemble of one model)"),),
    ),
    "ditto": MethodSpec(
        "Ditto: FedAvg, and a personal model for each client that is pulled towards it (Li et al. 2021)",
        options={"lambda": Option([0.1], list_of(real("[0, inf)"), 20, scalar=True))},
        defaults=_ONE,
        private="personal model",
        own_models=True,
    ),
    **MEAN_FIELD_SPECS,
    "lg_fedavg": MethodSpec(
        "LG-FedAvg: the last layers are averaged, the others stay with the client (Liang et al. 2020)",
        options={"shared_layers": Option(1, whole(0, 1000))},
        defaults={**_ONE, **_BY_EXAMPLES},
        private="the other layers",
        own_models=True,
        limits=(Limit("shared_layers", 0, "local training (lg_fedavg that shares nothing)"),),
    ),
    "scaffold": MethodSpec(
        "SCAFFOLD: control variates against client drift (Karimireddy et al. 2020)",
        defaults=_ONE,
        in_rounds=_CORRECTED,
        private="control variate",
    ),
    **CLUSTER_SPECS,
    "random_walk": MethodSpec(
        "no server: K models walk over a graph of clients (Shi et al. 2024, section V-H)",
        defaults={"rounds": 100, "schedule": {"kind": "walk"}, "local": {"epochs": 1}},
        clients=10,
        robust=False,
        optimizer=False,
        walks=True,
        averages=False,
        coefficients=False,
        schedules=False,
    ),
    **STACKING_SPECS,
    **BOOSTING_SPECS,
    **ONE_SHOT_SPECS,
    "centralized": MethodSpec(
        "one model on the pooled data: the upper reference",
        module="references",
        models="one",
        defaults=_ONE,
        pooled=True,
        averages=False,
        coefficients=False,
        schedules=False,
    ),
    "local_only": MethodSpec(
        "one model for each client, nothing is shared: the lower reference",
        module="references",
        models="clients",
        defaults={**_ONE, "evaluate": {"personal": True}},
        averages=False,
        coefficients=False,
        schedules=False,
        downloads=False,
        own_models=True,
    ),
    "deep_ensemble": MethodSpec(
        "K independent networks with a Gaussian head on the pooled data (Lakshminarayanan et al. 2017)",
        module="references",
        defaults={"model": {"objective": "gaussian_nll"}},
        pooled=True,
        averages=False,
        coefficients=False,
        schedules=False,
        limits=(Limit("models", 1, "a single network on the pooled data (deep_ensemble of one model)"),),
    ),
    "bayesian_linear": MethodSpec(
        "Bayesian linear regression on the pooled data, in closed form",
        models="one",
        options={"precisions": Option("unit", one_of("unit", "evidence"))},
        defaults={**_ONE, "rounds": 0, "model": {"name": "linear"}},
        robust=False,
        optimizer=False,
        pooled=True,
        averages=False,
        coefficients=False,
        schedules=False,
        trains=False,
        own_models=True,
    ),
}
UNKNOWN = MethodSpec("your own", splits=True, slices=True)
OWN_SPECS: dict[str, MethodSpec] = {}  # of users' registered methods that say how many models they train


def method_spec_of(name: object) -> MethodSpec:
    """The specification of a method; a user's own method, or no method at all, has the general defaults."""
    return (METHOD_SPECS.get(name) or OWN_SPECS.get(name, UNKNOWN)) if isinstance(name, str) else UNKNOWN


def trains_one_model(name: object) -> bool:
    """Whether a method trains one model where a scenario does not say how many."""
    return bool(method_spec_of(name).defaults.get("method", {}).get("models") == 1)


def methods_table() -> str:
    """The table of methods in Markdown, as the README shows it."""
    numbers = {"any": "any", "one": "1", "clients": "N"}
    lines = [
        "| method | what it does | K | robust | optimizer | private client state |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, spec in METHOD_SPECS.items():
        combines = ("yes" if allowed else "no" for allowed in (spec.robust, spec.optimizer))
        cells = (f"`{name}`", spec.text, numbers[spec.models], *combines, spec.private or "none")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
