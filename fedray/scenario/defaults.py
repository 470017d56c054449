"""What each method sets when a scenario does not."""

from __future__ import annotations

from typing import Any

_ONE: dict[str, Any] = {"method": {"models": 1}}
DEFAULTS: dict[str, dict[str, Any]] = {  # what the method's paper sets and the general defaults do not
    **dict.fromkeys(("fedavg", "fedprox", "fedbe", "fedbe_nokd", "feddyn", "ditto", "lg_fedavg", "scaffold"), _ONE),
    "centralized": _ONE,
    "shefl": {
        "clients": {
            "tiers": {
                "hpc": {"share": 0.5, "models_per_round": "all", "seconds_per_step": 0.002, "uplink": 12.5e6},
                "lpc": {"share": 0.5, "seconds_per_step": 0.01, "uplink": 1.25e6},
            }
        },
        "compress": {"kind": "topk", "ratio": 0.1, "resource_ratio": 5.0},
        "server": {"coefficients": "equal_groups"},
    },
    "fedag": {
        **_ONE,
        "rounds": 5,
        "local": {"lr": 0.01, "batch_size": 1, "epochs": 40},
        "predict": {"noise": "residual"},
    },
    "random_walk": {"rounds": 100, "schedule": {"kind": "walk"}, "local": {"epochs": 1}},
    "stacking": {
        **_ONE,
        "local": {"optimizer": "adam", "lr": 0.001, "batch_size": 128, "epochs": 1},
        "server": {"weighting": "examples"},
    },
    "bayesian_linear": {**_ONE, "rounds": 0, "model": {"name": "linear"}},
    "deep_ensemble": {"model": {"objective": "gaussian_nll"}},
    "local_only": {**_ONE, "evaluate": {"personal": True}},
}
SINGLE = tuple(name for name, keys in DEFAULTS.items() if keys.get("method") == {"models": 1})
POOLED = ("centralized", "bayesian_linear", "deep_ensemble")  # their one client holds every row
ONLY_ONE = ("fedavg", "feddyn", "centralized", "local_only", "bayesian_linear")  # methods with K = 1 by definition
OWN_SERVER = ("fedag", "fedbe", "fedbe_nokd", "random_walk", "stacking", "bayesian_linear")  # no server.robust there
NATURAL = ("femnist", "shakespeare", "printers", "sine", "interval", "cubic", "synthetic")
POPULATION = {"sine": 50, "interval": 50, "cubic": 10, "synthetic": 100}  # data sets that make clients as asked
TOYS = ("sine", "interval", "cubic")  # their clients are also an option of the data, which follows clients.number
NUMBER = {"fedag": 10, "stacking": 5, "random_walk": 10}  # clients, where the method's paper has other than 100
