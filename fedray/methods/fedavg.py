"""FedAvg: one model, everyone trains it. FedProx: the same with a proximal term.

Sources: McMahan et al., *Communication-Efficient Learning of Deep Networks from Decentralized Data*, AISTATS 2017,
Alg. 1; Li et al., *Federated Optimization in Heterogeneous Networks*, MLSys 2020, Alg. 2.

Deviations:
    1. The average is uniform over clients unless `server.weighting: examples`, as in FE Remark 1.
    2. FedProx: every client does its full local work (the paper's variable gamma-inexactness is not simulated).
"""

from __future__ import annotations

from dataclasses import replace

from fedray.core.method import Method
from fedray.methods.fed_ensemble import fed_ensemble
from fedray.methods.setting import Setting


def fedavg(setting: Setting) -> Method:
    """Fed-ensemble with K = 1: every row's permutation is model 0."""
    return replace(fed_ensemble(replace(setting, models=1)), name="fedavg")


def fedprox(setting: Setting) -> Method:
    """FedAvg whose local gradient has the extra term `mu (w - w_start)`."""
    return replace(fedavg(add_proximal_term(setting, setting.options["mu"])), name="fedprox")


def add_proximal_term(setting: Setting, mu: float) -> Setting:
    """A setting whose local objective is pulled to the broadcast model, `mu / 2 |w - w_start|^2` more."""
    return replace(setting, local=replace(setting.local, pull=setting.local.pull + mu))
