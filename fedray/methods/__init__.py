"""The papers, one file each, as compositions of schedules, local training, servers and predictions.

`METHODS` is the one registry: name -> function from a `Setting` to a `Method`.
"""

from __future__ import annotations

from collections.abc import Callable

from fedray.core.method import Method
from fedray.methods.bayesian_linear import bayesian_linear
from fedray.methods.ditto import ditto
from fedray.methods.fed_ensemble import fed_ensemble
from fedray.methods.fedag import fedag
from fedray.methods.fedavg import fedavg, fedprox
from fedray.methods.fedbe import fedbe, fedbe_nokd
from fedray.methods.feddyn import feddyn, feddyn_ensemble
from fedray.methods.lg_fedavg import lg_fedavg
from fedray.methods.random_walk import random_walk
from fedray.methods.references import centralized, deep_ensemble, local_only
from fedray.methods.scaffold import scaffold
from fedray.methods.setting import Setting
from fedray.methods.shefl import shefl
from fedray.methods.stacking import stacking

Composition = Callable[[Setting], Method]

METHODS: dict[str, Composition] = {
    "fed_ensemble": fed_ensemble,
    "fedavg": fedavg,
    "fedprox": fedprox,
    "shefl": shefl,
    "fedag": fedag,
    "feddyn": feddyn,
    "feddyn_ensemble": feddyn_ensemble,
    "ditto": ditto,
    "lg_fedavg": lg_fedavg,
    "scaffold": scaffold,
    "fedbe": fedbe,
    "fedbe_nokd": fedbe_nokd,
    "random_walk": random_walk,
    "centralized": centralized,
    "local_only": local_only,
    "bayesian_linear": bayesian_linear,
    "deep_ensemble": deep_ensemble,
    "stacking": stacking,
}
