"""A small scenario of every method, with most of what methods can be combined with."""

import copy
from typing import Any

from fedray.methods import METHOD_SPECS

SCENARIO: dict[str, Any] = {
    "rounds": 4,
    "runtime": "inline",
    "data": {"name": "digits", "limit": 240, "partition": {"name": "dirichlet", "alpha": 1.0}},
    "model": {"name": "mlp", "hidden": [8]},
    "clients": {"number": 6},
    "local": {"lr": 0.05, "batch_size": 8, "epochs": 1},
    "checkpoint": {"every": 2, "keep": 9},
}
BASE: dict[str, Any] = SCENARIO | {"report": False}  # pictures change no bit
ONE_MODEL = {"hpc": {"share": 0.5}, "lpc": {"share": 0.5, "uplink": 2e5, "spread": 0.5}}
TIERS = {"hpc": {"share": 0.5, "models_per_round": "all"}, "lpc": {"share": 0.5, "uplink": 2e5, "spread": 0.5}}
BASES = [{"name": "mlp", "hidden": [8]}, {"name": "mlp", "hidden": [4], "models": 2}]
WIDTHS = {"strong": {"number": 2}, "middle": {"number": 2, "width": 0.5}, "weak": {"number": 2, "width": 0.25}}
SLICED: dict[str, dict[str, Any]] = {
    "plain": {},
    "scaler": {"method": {"scaler": True}, "participation": {"per_round": 4}, "replicates": 2},
    "ensemble": {"method": {"models": 2}, "compress": {"kind": "topk", "error_feedback": True}},
    "cnn": {"model": {"name": "cnn", "channels": [4, 8], "hidden": [8]}},
}
COMPRESSIONS: list[dict[str, Any]] = [{"kind": "topk", "error_feedback": True}, {"kind": "randomk"}, {"kind": "int8"}]
SERVERS: list[dict[str, Any]] = [
    *({"optimizer": kind, "lr": 0.1} for kind in ("momentum", "adam", "yogi")),
    *({"robust": kind} for kind in ("median", "trimmed_mean", "krum", "multi_krum")),
    *({"weighting": "examples"}, {"coefficients": "equal_groups"}),
]
MODES: list[dict[str, Any]] = [{"mode": "semi", "tick": 0.1}, {"mode": "buffered", "goal": 3}, {"mode": "async"}]
CASES: dict[str, dict[str, Any]] = {
    "fed_ensemble": {},
    **{f"fed_ensemble {kind}": {"schedule": {"kind": kind}} for kind in ("random", "balanced", "adaptive")},
    "fed_ensemble strata": {"participation": {"per_round": 4}, "schedule": {"rows": "stratum"}, "replicates": 2},
    "fed_ensemble slots": {"participation": {"per_round": 4}, "replicates": 2},
    "fed_ensemble stragglers": {
        "clients": {"tiers": TIERS, "availability": "diurnal"},
        "participation": {"per_round": 4, "overcommit": 1.5, "dropout": 0.2, "deadline": 2.0},
    },
    **{
        f"fed_ensemble {' '.join(k if v is True else v for k, v in keys.items())}": {"compress": keys, "rounds": 7}
        for keys in COMPRESSIONS
    },
    "fed_ensemble paper_eq2": {
        "clients": {"tiers": TIERS}, "server": {"coefficients": "paper_eq2"}, "participation": {"per_round": 5},
    },
    "fed_ensemble topk adaptive": {
        "compress": {"kind": "topk", "adaptive": True}, "clients": {"tiers": TIERS}, "rounds": 7,
    },
    **{
        f"fedavg {' '.join(map(str, keys.values()))}": {
            "method": {"name": "fedavg"}, "clients": {"tiers": ONE_MODEL}, "server": keys,
            "participation": {"per_round": 5},
        }
        for keys in SERVERS
    },
    "fedavg": {"method": {"name": "fedavg"}},
    **{
        f"fed_ensemble {keys['mode']}": {
            "clients": {"tiers": TIERS}, "rounds": 9, "replicates": 2, "participation": {"concurrency": 4, **keys},
        }
        for keys in MODES
    },
    "fedavg adam": {"method": {"name": "fedavg"}, "local": {"optimizer": "adam", "weight_decay": 0.01}},
    "fedavg momentum": {"method": {"name": "fedavg"}, "local": {"momentum": 0.9, "pull": 0.1}},
    "fedavg cnn": {"method": {"name": "fedavg"}, "model": {"name": "cnn", "channels": [4, 8], "hidden": [8]}},
    "fedavg resnet18": {
        "method": {"name": "fedavg"}, "model": {"name": "resnet18"}, "rounds": 1, "local": {"epochs": None, "steps": 2},
        "clients": {"number": 2}, "data": {"limit": 40},
    },
    "fedavg flipped": {"method": {"name": "fedavg"}, "data": {"partition": {"name": "iid", "flipped": 0.5}}},
    "fedavg synthetic": {
        "method": {"name": "fedavg"}, "data": {"name": "synthetic", "partition": {"name": "natural"}},
        "clients": {"number": 50}, "participation": {"per_round": 7},
    },
    "fedprox": {"method": {"name": "fedprox"}},
    "fednova": {"method": {"name": "fednova"}},
    "shefl": {"method": {"name": "shefl"}, "participation": {"per_round": 4}},
    "shefl fedprox": {"method": {"name": "shefl", "mu": 0.1}},
    "shefl feddyn": {"method": {"name": "shefl", "alpha": 0.1}, "compress": {"error_feedback": True}},
    **{
        f"{name} {kind}": {**keys, "method": {"name": name, **keys.get("method", {})}, "clients": {"tiers": WIDTHS}}
        for name in ("heterofl", "fedrolex")
        for kind, keys in SLICED.items()
    },
    "depthfl": {"method": {"name": "depthfl"}, "clients": {"tiers": WIDTHS}, "model": {"hidden": [8, 6]}},
    "depthfl ensemble": {
        "method": {"name": "depthfl", "models": 2, "extended": False, "alpha": 0.0}, "participation": {"per_round": 4},
        "clients": {"tiers": WIDTHS}, "model": {"name": "cnn", "channels": [4, 8], "hidden": [8]},
        "compress": {"kind": "topk", "error_feedback": True},
    },
    "fedag": {"method": {"name": "fedag"}, "local": {"epochs": 1, "batch_size": 8}},
    "fedag omc": {"method": {"name": "fedag", "sampling": "omc", "samples": 3, "models": 2}},
    "fedag linear": {"method": {"name": "fedag"}, "data": {"name": "cubic"}, "model": {"name": "linear"}},
    "fedbe": {"method": {"name": "fedbe", "server_data": 0.2}},
    "fedbe dirichlet": {"method": {"name": "fedbe", "server_data": 0.2, "sampler": "dirichlet", "samples": 3}},
    "fedbe_nokd": {"method": {"name": "fedbe_nokd"}},
    "feddf": {"method": {"name": "feddf", "server_data": 0.2, "distil_steps": 20, "patience": 5}},
    "feddf noise": {"method": {"name": "feddf", "inputs": "noise", "teacher": "confidence", "distil_steps": 20}},
    "feddf networks": {
        "method": {"name": "feddf", "server_data": 0.2, "distil_steps": 20, "networks": [BASES[0], {"name": "linear"}]}
    },
    "feddyn": {"method": {"name": "feddyn"}},
    "feddyn_ensemble": {"method": {"name": "feddyn_ensemble"}},
    "pfedbayes": {"method": {"name": "pfedbayes"}, "local": {"lr": 0.01}},
    "pfedbayes ensemble": {
        "method": {"name": "pfedbayes", "models": 2, "zeta": 1.0, "rho": -4.0, "personal_steps": 1},
        "local": {"lr": 0.01, "optimizer": "sgd", "momentum": 0.9}, "participation": {"per_round": 4},
        "compress": {"kind": "topk", "error_feedback": True},
    },
    "pvi": {"method": {"name": "pvi"}, "local": {"lr": 0.01}},
    "pvi ensemble": {
        "method": {"name": "pvi", "models": 2, "damping": 0.3, "prior": 10.0, "samples": 0},
        "local": {"lr": 1e-4, "optimizer": "sgd", "momentum": 0.9}, "participation": {"per_round": 4},
        "compress": {"kind": "int8", "error_feedback": True},
    },
    "ivon_admm": {"method": {"name": "ivon_admm"}, "local": {"lr": 1e-4, "epochs": 2}},
    "ivon_admm ensemble": {
        "method": {"name": "ivon_admm", "models": 2, "dual_step": 0.1, "server_step": 0.5, "prior": 10.0, "samples": 0},
        "local": {"lr": 1e-4, "epochs": 1, "batch_size": 16}, "participation": {"per_round": 4},
        "compress": {"kind": "int8", "error_feedback": True},
    },
    "ditto": {"method": {"name": "ditto"}},
    "ditto passes": {"method": {"name": "ditto", "lambda": [0.1, 1.0]}, "data": {"hold_out": 0.2}},
    "lg_fedavg": {"method": {"name": "lg_fedavg", "shared_layers": 1}},
    "fedavg private": {"method": {"name": "fedavg"}, "local": {"private": ["1"], "schedule": {"kind": "cosine"}}},
    "moon": {"method": {"name": "moon"}},
    "fedsam": {"method": {"name": "fedsam"}},
    "fedpa": {"method": {"name": "fedpa"}},
    "fedpa ensemble": {
        "method": {"name": "fedpa", "models": 2, "burn_in": 1, "samples": 3}, "local": {"momentum": 0.9},
        "participation": {"per_round": 4}, "compress": {"kind": "topk", "error_feedback": True},
    },
    "dsvgd": {"method": {"name": "dsvgd", "models": 3, "factor_steps": 20}, "local": {"lr": 0.01}},
    "dsvgd sgd": {
        "method": {"name": "dsvgd", "models": 4, "factor_steps": 20, "decay": "none", "temperature": 5.0},
        "local": {"lr": 0.001, "momentum": 0.5}, "replicates": 2, "participation": {"selection": "uniform"},
    },
    "fedfisher": {"method": {"name": "fedfisher"}},
    "fedfisher descent": {
        "method": {"name": "fedfisher", "solver": "descent", "fisher": "empirical", "fisher_rows": 9, "models": 2},
    },
    "fedbens": {"method": {"name": "fedbens"}, "participation": {"per_round": 4}},
    "fedbens descent": {"method": {"name": "fedbens", "solver": "descent", "solver_steps": 60, "models": 2}},
    "fedper": {"method": {"name": "fedper"}},
    "fedbn": {"method": {"name": "fedbn"}, "model": {"norm": "layer"}},
    "fedrep": {"method": {"name": "fedrep"}, "local": {"epochs": 3}},
    "scaffold": {"method": {"name": "scaffold"}},
    "scaffold ensemble": {"method": {"name": "scaffold", "models": 2}, "participation": {"per_round": 4}},
    "ifca": {"method": {"name": "ifca", "models": 2}, "data": {"partition": {"name": "iid", "rotation": 2}}},
    "ifca copies": {
        "method": {"name": "ifca", "models": 2}, "participation": {"per_round": 4},
        "data": {"partition": {"name": "iid", "permute_labels": 2, "copies": True}},
    },
    "fedem": {"method": {"name": "fedem", "models": 2}, "participation": {"per_round": 4}},
    "random_walk": {"method": {"name": "random_walk"}},
    "random_walk failures": {
        "method": {"name": "random_walk"}, "graph": {"kind": "watts_strogatz", "transition": "metropolis",
                                                     "node_failure": 0.2, "edge_failure": 0.1},
        "compress": {"kind": "topk", "ratio": 0.2},
    },
    "stacking": {"method": {"name": "stacking", "bases": BASES}},
    "stacking within": {"method": {"name": "stacking", "bases": BASES, "folds": "within", "meta": "mlp"}},
    "stacking classifiers": {
        "method": {"name": "stacking", "bases": [BASES[0], {"name": "sklearn/decision_tree", "max_depth": 3}]},
    },
    **{name: {"method": {"name": name}} for name in ("adaboost_f", "distboost_f", "preweak_f", "federated_bagging")},
    "adaboost_f weights": {"method": {"name": "adaboost_f", "draw": "weights"}, "participation": {"per_round": 4}},
    **{
        f"fens {kind}": {"method": {"name": "fens", "aggregator": kind, "meta_rounds": 3}, "rounds": 1}
        for kind in ("neural", "class_weights", "label_shares")
    },
    "beta_predbayes": {
        "method": {"name": "beta_predbayes", "samples": 3, "cycles": 2}, "rounds": 1, "local": {"epochs": 5},
    },
    "beta_predbayes product": {
        "method": {"name": "beta_predbayes", "samples": 2, "cycles": 1, "beta": 1, "temperature": 0, "server_data": 0},
        "rounds": 2, "local": {"epochs": 3, "momentum": 0.5}, "compress": {"kind": "topk", "error_feedback": True},
    },
    "centralized": {"method": {"name": "centralized"}},
    "local_only": {"method": {"name": "local_only"}},
    "bayesian_linear": {
        "method": {"name": "bayesian_linear"}, "data": {"name": "cubic"}, "model": {"name": "linear"}, "rounds": 0,
    },
    "deep_ensemble": {"method": {"name": "deep_ensemble"}, "data": {"name": "cubic"}, "model": {"hidden": [8]}},
}  # fmt: skip


CASES |= {name: {"method": {"name": name}} for name in METHOD_SPECS if name not in {case.split()[0] for case in CASES}}


def changed(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Changes the base section by section. A partition or data set of another name starts empty."""
    out = dict(base)
    for key, value in change.items():
        old = out.get(key)
        renamed = (
            isinstance(value, dict) and isinstance(old, dict) and value.get("name", old.get("name")) != old.get("name")
        )
        out[key] = changed(old, value) if isinstance(value, dict) and isinstance(old, dict) and not renamed else value
    return out


_UNREAD = {  # keys of the base that cannot act in a case, and are refused there
    **dict.fromkeys(("feddf networks", "stacking", "stacking within", "stacking classifiers"), ("model",)),
    **dict.fromkeys(
        ("adaboost_f", "adaboost_f weights", "distboost_f", "preweak_f", "federated_bagging"), ("model", "local")
    ),
    "centralized": ("data.partition", "clients"),
    "bayesian_linear": ("clients", "local"),
    "deep_ensemble": ("clients",),
    "fens label_shares": ("method.meta_rounds",),
}


def make_case(name: str) -> dict[str, Any]:
    """Returns the keys of a case."""
    keys = copy.deepcopy(changed(BASE, CASES[name]))
    for key in _UNREAD.get(name, ()):
        section, _, last = key.rpartition(".")
        (keys[section] if section else keys).pop(last)
    return keys
