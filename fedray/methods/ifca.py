r"""IFCA: clusters of clients find themselves, by the model that has the least loss on their rows.

The server sends K models, a client trains the one that suits it best, and the server averages each model over the
clients that chose it. Source: Ghosh, Chung, Yin, Ramchandran, *An Efficient Framework for Clustered Federated
Learning*, NeurIPS 2020, Alg. 1 (model averaging).

Formulas of ifca:
    Every client gets the $K$ models, and trains the one that suits its rows best:

    $$
    k_i = \operatorname*{argmin}_k F_i(w_k), \qquad u_i = \mathrm{Train}(w_{k_i}; F_i), \qquad
    w_k \leftarrow w_k + \sum_{i : k_i = k} p_i \, (u_i - w_k).
    $$

Deviations:
    1. The models start from K random draws. The paper restarts where a run went wrong; here that is another seed.
    2. Its variants are not here: gradient averaging is `local.steps: 1`, and sharing the first layers (section 6.3) is
       left out.
    3. New clients, whose rows nobody knows, are answered by the average of the K models; a known client by the model of
       least loss on its training rows (`predict.gamma: 0`).
    4. Virtual time counts the bytes of the K models, and not the K forward passes of the choice.

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
        schedules=False,
        in_rounds="lets clients choose among the models of a round",
        asks=True,
    ),
}


def ifca(setting: kit.Setting) -> kit.Method:
    """K models `[K, d]`, one for each cluster of clients that nobody knows beforehand."""
    phase = kit.federated(
        replace(setting, assign=None),
        assign=kit.schedule.one_job_each,  # line 3: M_t, the participants, who all get the K models
        local=setting.local,  # line 7: LocalUpdate, tau steps
        compress=kit.dense,
        merge=kit.mean,  # line 14, option II: the mean over the clients of a cluster; an empty cluster stays as it is
    )
    return kit.Method("ifca", replace(phase, choose=kit.schedule.pick_least_loss))  # line 5: argmin_j F_i(theta_j)
