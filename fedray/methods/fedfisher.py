"""FedFisher: one shot of FedAvg, in which each weight of an upload counts by its Fisher information.

Source: Jhunjhunwala, Wang, Joshi, *FedFisher: Leveraging Fisher Information for One-Shot Federated Learning*, AISTATS
2024, its diagonal variant. Each client trains from the same start to w_k and sends, beside it, the diagonal F_k of the
Fisher information of its rows there. The server wants the w of least `sum_k p_k (w - w_k)' F_k (w - w_k)`, which is
`(sum_k p_k F_k)^-1 sum_k p_k F_k w_k`. With `solver: exact` it takes that (Fisher merging: Matena, Raffel, NeurIPS
2022); with `solver: descent` it goes there from the mean, and stays where its own labelled rows say it is best.

Deviations:
    1. The authors' server descends. The default here is the optimum itself, for which no row leaves the clients.
    2. `damping` is added to every F_k, so that numbers of which no client knows anything are averaged. The authors'
       code has no such term in its descent; its Fisher merging averages where `sum p_k F_k` is below 1e-6.
    3. The authors' code quantizes weights and Fishers before it merges them. Here the Fisher is sent whole, `compress`
       is about the model alone, and the Fisher is that of the model before compression.
    4. The descent looks at the server's rows at the start, every 100 steps, and at the end; theirs behind the first of
       every 100. These rows are a share of all (`validation`) that no client has; theirs are 500 of the clients' rows.
    5. The variant with Kronecker factors (K-FAC) is left out.
    6. The Fisher is that of the network's own loss, also with `local.loss` and weight decay, and in evaluation mode.
       Measuring it takes no virtual time.
    7. With K > 1 each model is one by itself, of the clients that trained it.

Example:
    >>> import fedray
    >>> scenario = {"data": {"partition": {"name": "classes", "classes": 2}}, "local": {"epochs": 20, "momentum": 0}}
    >>> for method in ("fedfisher", "fedavg"):
    ...     run = fedray.run(scenario, method=method, rounds=1, clients=5, runtime="inline", report=False)
    ...     print(f"{method} {run.summary['metrics']['accuracy']['mean']:.1f}")
    fedfisher 0.5
    fedavg 0.4
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from fedray.methods import kit

LOOKED_STEPS = 100  # from one look at the server's rows to the next


def fedfisher(setting: kit.Setting) -> kit.Method:
    """One or K models `[K, d]` over N clients; traffic: d numbers down, 2 d up (the model and its curvature)."""
    options = setting.options
    descent = kit.one_shot.Descent(
        options["solver_steps"], LOOKED_STEPS, kit.one_shot.summing_adam(options["solver_lr"]), setting.score
    )
    phase = kit.federated(
        setting,
        assign=kit.permutation,  # the clients that take part, from the same start
        local=setting.local,  # to a local optimum w_k
        compress=kit.dense,
        merge=partial(  # sum p_k F_k w_k / sum p_k F_k, or steps towards it
            kit.one_shot.fisher_mean, damping=options["damping"], how=None if options["solver"] == "exact" else descent
        ),
    )
    return kit.Method("fedfisher", replace(phase, measure=read_curvature(setting), up_vectors=1))


def read_curvature(setting: kit.Setting) -> kit.Curvature:
    """What clients measure, from the options `fisher` and `fisher_rows`."""
    rows = setting.options["fisher_rows"]
    return kit.Curvature(setting.options["fisher"], None if rows == "all" else int(rows))
