r"""FedAvg: all participants train one model. FedProx: FedAvg with a proximal term.

Sources: McMahan et al., *Communication-Efficient Learning of Deep Networks from Decentralized Data*, AISTATS 2017,
Alg. 1; Li et al., *Federated Optimization in Heterogeneous Networks*, MLSys 2020, Alg. 2.

Formulas of fedavg:
    The server adds the weighted mean of the participants' changes:

    $$
    \begin{aligned}
    u_i &= \mathrm{Train}(w; F_i) && i \in S,\\
    w &\leftarrow w + \sum_{i \in S} p_i \, (u_i - w), && p_i = \frac{n_i}{\sum_{j \in S} n_j}.
    \end{aligned}
    $$

Formulas of fedprox:
    FedProx is FedAvg with a proximal term in the loss. The term pulls the client's model $v$ to the broadcast model
    $w$:

    $$
    u_i = \mathrm{Train}\Bigl(w;\; F_i(v) + \frac{\mu}{2} \lVert v - w \rVert^2\Bigr).
    $$

Deviations:
    1. An upload's weight is the number of samples of its client, as in FedAvg's line 7. `server.weighting: uniform`
       gives equal weights. The paper's FedProx draws clients with probabilities p_k and averages uniformly. Here
       participants are drawn uniformly, so uploads of FedProx are weighted, too.
    2. In FedProx every client does all of its local work. The paper's variable inexactness (gamma) is not simulated.

Example:
    >>> import fedray
    >>> scenario = {"rounds": 3, "clients": {"number": 10}, "local": {"lr": 0.03}, "runtime": "inline"}
    >>> for method in ("fedavg", {"name": "fedprox", "mu": 0.1}):
    ...     run = fedray.run(scenario, method=method, report=False)
    ...     print(f"{run.summary['method']} {run.summary['metrics']['accuracy']['mean']:.1f}")
    fedavg 0.9
    fedprox 0.9
"""

from __future__ import annotations

from dataclasses import replace

from fedray.core.options import MethodSpec, Option, real
from fedray.methods import kit

SPECS = {
    "fedavg": MethodSpec(
        "federated averaging: one model that every client trains (McMahan et al. 2017)",
        family="averaging",
        models="one",
        defaults={"method": {"models": 1}, "server": {"weighting": "examples"}},
        splits=True,
    ),
    "fedprox": MethodSpec(
        "FedProx: FedAvg with a proximal term that pulls clients to the broadcast model (Li et al. 2020)",
        family="averaging",
        models="one",
        options={"mu": Option(0.01, real("[0, inf)"), "weight of the proximal term `mu / 2 |w - w_start|^2`")},
        defaults={"method": {"models": 1}, "server": {"weighting": "examples"}},
        splits=True,
    ),
}


def fedavg(setting: kit.Setting) -> kit.Method:
    """Composes FedAvg, which trains one model, `[1, d]`."""
    phase = kit.federated(
        replace(setting, models=1),  # server, line 1: one w_0
        assign=kit.permutation,  # lines 3-4: all participants S_t train the model (a permutation of one model)
        local=setting.local,  # ClientUpdate: E epochs of SGD over batches of B
        compress=kit.dense,
        merge=kit.mean,  # line 7: w_{t+1} <- sum of n_k / n w^k_{t+1}
    )
    return kit.Method("fedavg", phase)


def fedprox(setting: kit.Setting) -> kit.Method:
    """Composes FedAvg with the additional gradient `mu (w - w_start)` in each local step."""
    prox = add_proximal_term(setting.local, setting.options["mu"])  # line 5: h_k(w; w_t) = F_k(w) + mu / 2 |w - w_t|^2
    return replace(fedavg(replace(setting, local=prox)), name="fedprox")


def add_proximal_term(local: kit.Local, mu: float) -> kit.Local:
    """Adds the term `mu / 2 |w - w_start|^2`, mu >= 0, to the objective of local training."""
    return replace(local, pull=local.pull + mu)
