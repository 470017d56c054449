r"""FedEM: each client's data are a mixture of K distributions that all clients share.

Source: Marfoq, Neglia, Bellet, Kameni, Vidal, *Federated Multi-Task Learning under a Mixture of Distributions*, NeurIPS
2021, Alg. 1.

Formulas of fedem:
    Client $i$ has weights $\pi_i$ over $K$ components. Component $m$ is a model $w_m$. The responsibility $q_j(m)$ is
    the probability that sample $j$ comes from component $m$. The client computes all responsibilities, and sets
    $\pi_{im}$ to the mean of $q_j(m)$ over its samples. Then the client trains each component $m$ on all its samples,
    with the weights $q_j(m)$:

    $$
    \begin{aligned}
    q_j(m) &\propto \pi_{im} \, \exp\bigl(-\ell(w_m; x_j, y_j)\bigr),\\
    \pi_{im} &\leftarrow \frac{1}{n_i} \sum_j q_j(m),\\
    u_{im} &= \mathrm{Train}\Bigl(w_m;\; \frac{1}{n_i} \sum_j q_j(m) \, \ell(\cdot\,; x_j, y_j)\Bigr), \qquad
    w_m \leftarrow w_m + \sum_{i \in S} p_i \, (u_{im} - w_m).
    \end{aligned}
    $$

    Client $i$ predicts with $\sum_m \pi_{im} \, p_{w_m}(y \mid x)$.

Deviations:
    1. The local solver is the scenario's section `local`. The sum of a batch's weighted losses is divided by the batch
       size, as in the authors' code. During a round the responsibilities $q_j(m)$ do not change. They are
       computed from the broadcast models.
    2. A responsibility is at least 1e-12. Responsibilities follow from the network's own loss, even if `local.loss` is
       set.
    3. A client of the run that has not taken part yet starts from equal weights $\pi_i$, and makes 20 E steps (the
       first two formulas) on the current models. The average of the K models predicts for a new client.
    4. Virtual time counts the steps and bytes of all K models, and one forward pass of each model for the E step.

Example:
    >>> import fedray
    >>> groups = {"name": "iid", "permute_labels": 2, "copies": True}  # two groups of clients, whose labels differ
    >>> scenario = {"data": {"partition": groups}, "clients": 8, "rounds": 10, "local": {"lr": 0.1, "epochs": 1}}
    >>> run = fedray.run(scenario, method={"name": "fedem", "models": 2}, runtime="inline", report=False)
    >>> found = run.summary["metrics"]
    >>> print(f"{found['personal_accuracy']['mean']:.1f}, clusters {found['cluster_ari']['mean']}")
    0.8, clusters 1.0
"""

from __future__ import annotations

from dataclasses import replace

from fedray.core.options import MethodSpec
from fedray.methods import kit

SPECS = {
    "fedem": MethodSpec(
        "FedEM: clients' data are mixtures of K components; every client trains all K (Marfoq et al. 2021)",
        family="clusters of clients",
        defaults={"server": {"weighting": "examples"}, "evaluate": {"personal": True}},
        fixed=("schedules",),
        own_models=True,
        all_models=True,
        in_rounds="weighs samples by the models of a round",
        private="weights of the components",
        asks=True,
    ),
}


def fedem(setting: kit.Setting) -> kit.Method:
    """Composes FedEM with K models (components), `[K, d]`. Each client keeps its weights pi over them, `[K]`."""
    phase = kit.federated(
        replace(setting, assign=None),
        assign=kit.schedule.every_model,  # lines 2-3: the server sends all K components to the participants
        local=setting.local,  # line 8: LocalSolver on the weighted samples, for each component
        compress=kit.dense,
        merge=kit.mean,  # line 12: theta_m <- sum of n_i / n theta_im
    )
    # lines 6-7 (features/mixture.py): q_ij(m), and pi_im as its mean over the samples
    return kit.Method("fedem", phase.add(kit.Mixture()))
