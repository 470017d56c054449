"""The methods as scenarios know them: one specification each, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedray.core.spec import Limit, MethodSpec, Needs, Option
from fedray.core.validators import either, list_of, one_of, real, whole
from fedray.scenario.boosting import BOOSTING_SPECS
from fedray.scenario.fens import FENS_SPECS
from fedray.scenario.method_options import FEDBE_OPTIONS, FEDDF_OPTIONS, MEAN_FIELD_SPECS, SAMPLE_SPECS
from fedray.scenario.slices import SLICE_SPECS
from fedray.scenario.stacking import STACKING_SPECS

# ---------------------------------------------------------------------------------------------------------------------
# Methods whose clients send the curvature of their loss beside their model, as scenarios know them; without torch.

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


# ---------------------------------------------------------------------------------------------------------------------
# The methods whose clients send once, as scenarios know them.

ONE_SHOT_SPECS = {**FENS_SPECS, **CURVATURE_SPECS, **SAMPLE_SPECS}


# ---------------------------------------------------------------------------------------------------------------------
# The methods whose clients sample a posterior, as scenarios know them; without torch.

POSTERIOR_SPECS: Mapping[str, MethodSpec] = {
    "fedpa": MethodSpec(
        "FedPA: clients sample their posterior; the way to its mean is sent by its precision (Al-Shedivat et al. 2021)",
        options={
            "samples": Option(4, whole(1, 10**4)),
            "rho": Option(0.1, real("[0, inf)")),
            "burn_in": Option(0, whole(0, 10**7)),
            "mixing": Option(0.2, real("[0, 1)")),
        },
        defaults={"method": {"models": 1}, "server": {"weighting": "examples"}},
        limits=(
            Limit("samples", 1, "FedAvg with averaged iterates (a covariance needs two samples)"),
            Limit("rho", 0, "FedAvg with averaged iterates (the covariance shrinks to the identity)"),
        ),
    ),
    "dsvgd": MethodSpec(
        "DSVGD: particles of the posterior go from client to client; each renews its factor (Kassab, Simeone 2022)",
        options={
            "temperature": Option(1.0, real("(0, inf)")),
            "precision": Option(2.718, real("[0, inf)")),
            "bandwidth": Option(0.55, real("(0, inf)")),
            "factor_steps": Option(200, whole(0, 10**6)),
            "decay": Option(0.9, either("none", real("[0, 1)"))),
        },
        defaults={
            "method": {"models": 20},
            "participation": {"per_round": 1, "selection": {"name": "round_robin"}},
            "local": {"optimizer": "sgd", "lr": 0.001, "batch_size": 100, "steps": 200},
        },
        clients=2,
        robust=False,
        optimizer=False,
        averages=False,
        coefficients=False,
        schedules=False,
        all_models=True,
        in_rounds="trains one client after another",
        private="particles of its factor",
        limits=(Limit("models", 1, "an estimate of the posterior's mode (one particle has no neighbours)"),),
    ),
}


# ---------------------------------------------------------------------------------------------------------------------
# The methods whose K models belong to clusters of clients, as scenarios know them; without torch.

CLUSTER_SPECS: Mapping[str, MethodSpec] = {
    "ifca": MethodSpec(
        "IFCA: a client gets K models and trains the one of least loss on its rows (Ghosh et al. 2020)",
        defaults={"evaluate": {"personal": True}, "predict": {"gamma": 0.0}},  # a client's best model answers
        schedules=False,
        asks=True,
        in_rounds="lets clients choose among the models of a round",
    ),
    "fedem": MethodSpec(
        "FedEM: clients' data are mixtures of K components, which all of them train (Marfoq et al. 2021)",
        defaults={"server": {"weighting": "examples"}, "evaluate": {"personal": True}},
        schedules=False,
        own_models=True,
        all_models=True,
        asks=True,
        in_rounds="weighs samples by the models of a round",
        private="weights of the components",
    ),
}


# ---------------------------------------------------------------------------------------------------------------------
# A specification says how a method is called, how many models it trains, which options it has, what its paper sets,
# and what it combines with. A new method is one entry in `METHOD_SPECS`, and a function of its name in
# `fedray/methods/`.

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
