r"""IFCA: each client trains the model that fits the client's samples best, so that clients form clusters.

Source: Ghosh, Chung, Yin, Ramchandran, *An Efficient Framework for Clustered Federated Learning*, NeurIPS 2020, Alg. 1
(model averaging).

Formulas of ifca:
    Every participant receives the $K$ models, and trains the model with the smallest loss on its own samples:

    $$
    k_i = \operatorname*{argmin}_k F_i(w_k), \qquad u_i = \mathrm{Train}(w_{k_i}; F_i), \qquad
    w_k \leftarrow w_k + \sum_{i : k_i = k} p_i \, (u_i - w_k).
    $$

Deviations:
    1. The models start from different random weights. The paper restarts a run if its clusters are poor. Here you
       choose another seed instead.
    2. For the paper's variant with gradient averaging set `local.steps: 1`. The variant with shared first layers
       (section 6.3) is left out.
    3. For a new client, whose samples are unknown, the average of the K models predicts. A client of the run predicts
       with the model that has the smallest loss on the client's training samples (`predict.gamma: 0`).
    4. Virtual time counts the bytes of the K models, and the K forward passes by which a client chooses a model.

Example:
    >>> import fedray
    >>> groups = {"name": "iid", "permute_labels": 2, "copies": True}  # two groups of clients, whose labels differ
    >>> scenario = {"data": {"partition": groups}, "clients": {"number": 8}, "rounds": 5, "local": {"lr": 0.1}}
    >>> run = fedray.run(scenario, method={"name": "ifca", "models": 2}, runtime="inline", report=False)
    >>> found = run.summary["metrics"]
    >>> print(f"{found['personal_accuracy']['mean']:.1f}, clusters {found['cluster_ari']['mean']}")
    1.0, clusters 1.0
"""

from __future__ import annotations

from dataclasses import replace

from fedray.core.options import MethodSpec
from fedray.methods import kit

SPECS = {
    "ifca": MethodSpec(
        "IFCA: a client gets K models and trains the one of least loss on its rows (Ghosh et al. 2020)",
        family="clusters of clients",
        defaults={"evaluate": {"personal": True}, "predict": {"gamma": 0.0}},
        fixed=("schedules",),
        in_rounds="lets clients choose among the models of a round",
        asks=True,
    ),
}


def ifca(setting: kit.Setting) -> kit.Method:
    """Composes IFCA with K models, `[K, d]`."""
    phase = kit.federated(
        replace(setting, assign=None),
        assign=kit.schedule.one_job_each,  # line 3: M_t, the participants, who all get the K models
        local=setting.local,  # line 7: LocalUpdate, tau steps
        compress=kit.dense,
        merge=kit.mean,  # line 14, option II: mean over a cluster's clients; the model of an empty cluster stays
    )
    return kit.Method("ifca", replace(phase, choose=kit.schedule.pick_least_loss))  # line 5: argmin_j F_i(theta_j)
