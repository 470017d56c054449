"""SHEFL (Alg. 1, eqs. 1-2): strong clients train all K models in a round, weak ones one; uploads are top-k sparse.

Source: *Resource-Aware Aggregation and Sparsification for Heterogeneous Ensemble Federated Learning*. A tier with
`models_per_round = m` takes the entries `P[(t + j) mod K]`, j < m, of its row of the permutation schedule.

Deviations:
    1. Aggregation is the text of section 3.3, `w <- w + 1/2 mean_HPC(delta) + 1/2 mean_LPC(delta)`, a group that sent
       nothing leaving its weight to the others (`server.coefficients: equal_groups`). The printed eq. 2 is there as
       `paper_eq2`; the two agree exactly when L = K and one LPC trained the model.
    2. Coefficients are applied at the server: scaling commutes with top-k.
    3. The paper says "10 local iterations"; 10 local *epochs* give its convergence rounds.
    4. Any number of tiers, each contributing group weighing the same.
"""

from __future__ import annotations

from dataclasses import replace

from fedray.core.method import Method
from fedray.methods.fed_ensemble import fed_ensemble
from fedray.methods.fedavg import add_proximal_term
from fedray.methods.feddyn import feddyn_ensemble
from fedray.methods.setting import Setting


def shefl(setting: Setting) -> Method:
    """Fed-ensemble with tiers, sparse uploads and groups of equal weight; `mu` > 0 adds FedProx's pull, `alpha` > 0
    FedDyn's (and its server's correction; a private vector `[d]` a client and model)."""
    compose = feddyn_ensemble if setting.options["alpha"] else fed_ensemble
    return replace(compose(add_proximal_term(setting, setting.options["mu"])), name="shefl")
