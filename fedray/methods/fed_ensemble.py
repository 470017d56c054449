r"""Fed-ensemble: K models start from different random weights, and a client trains exactly one model in each round.

A client computes and sends as much as in FedAvg. Source: Shi, Lai, Kontar, Chowdhury, *Fed-ensemble: Ensemble Models in
Federated Learning for Improved Generalization and Uncertainty Quantification*, IEEE T-ASE 2024, doi
10.1109/TASE.2023.3269639, Alg. 1.

Formulas of fed_ensemble:
    Row $P_i$ of the schedule is a random order of the $K$ models, drawn anew every $K$ rounds. Client $i$ therefore
    trains each model once in $K$ rounds. The server adds the weighted mean change to each model:

    $$
    \begin{aligned}
    k_i &= P_i[t \bmod K] && \text{the model of client } i \text{ in round } t,\\
    u_i &= \mathrm{Train}(w_{k_i}; F_i) && \text{at the client},\\
    w_k &\leftarrow w_k + \sum_{i \in S_k} p_i \, (u_i - w_k) && \text{at the server, with } S_k = \{i \in S : k_i =
    k\}.
    \end{aligned}
    $$

    The mean of the models' predictions is the prediction for a new client. A client of the run weights the models by
    the losses on its own training samples, with the temperature $\gamma$ = `predict.gamma`:

    $$
    p(y \mid x) = \sum_k a_{ik} \, p_{w_k}(y \mid x), \qquad
    a_{ik} = \frac{\exp(-F_i(w_k) / \gamma)}{\sum_j \exp(-F_i(w_j) / \gamma)}.
    $$

Deviations:
    1. The personal weights of eq. 4 are `softmax(-loss / gamma)`, because the paper says that the weights become
       uniform for a large gamma. The paper's closed form `exp(-gamma * loss)` and the sign in the paper's objective
       contradict this statement.
    2. Under partial participation a row of the schedule may belong to a client, a slot or a stratum (`schedule.rows`).

Example:
    >>> import fedray
    >>> scenario = {"method": {"name": "fed_ensemble", "models": 3}, "rounds": 3, "clients": {"number": 10}}
    >>> run = fedray.run(scenario, local__lr=0.03, runtime="inline", report=False)
    >>> print(f"{run.summary['metrics']['accuracy']['mean']:.1f}, {len(run.models)} models")
    0.9, 3 models
"""

from __future__ import annotations

from fedray.core.options import MethodSpec
from fedray.methods import kit

SPECS = {
    "fed_ensemble": MethodSpec(
        "Fed-ensemble: K models, each client trains one of them in a round (Shi et al. 2024)",
        family="ensembles",
        splits=True,
    ),
}


def fed_ensemble(setting: kit.Setting) -> kit.Method:
    """Composes Fed-ensemble with K models, `[K, d]`."""
    phase = kit.federated(
        setting,
        assign=kit.permutation,  # lines 2-5: P_r is drawn anew at every age, then row r trains model P_r[t mod K]
        local=setting.local,  # line 7: local_update
        compress=kit.dense,  # line 8: the whole model is sent
        merge=kit.mean,  # line 9, Remark 1: the mean of the uploads that started from w_k; without uploads w_k stays
    )
    return kit.Method("fed_ensemble", phase)
