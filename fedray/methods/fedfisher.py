r"""FedFisher: one round of FedAvg, in which each parameter of an upload is weighted by its Fisher information.

Source: Jhunjhunwala, Wang, Joshi, *FedFisher: Leveraging Fisher Information for One-Shot Federated Learning*, AISTATS
2024, diagonal variant. `solver: exact` is Fisher merging (Matena, Raffel, NeurIPS 2022).

Formulas of fedfisher:
    Client $k$ trains from the common start and reaches $w_k$. Then the client measures the diagonal $F_k$ of the Fisher
    information of its network on all its samples, or on `fisher_rows` of them. With `fisher: model` the labels $y$
    follow the network's own prediction. With `empirical` they are the true labels. The client sends $w_k$ and $F_k$:

    $$
    F_k = \frac{1}{n_k} \sum_{x} \sum_{y} p_{w_k}(y \mid x) \, \bigl(\nabla_w \log p_{w_k}(y \mid x)\bigr)^2
    \quad (\texttt{model}), \quad
    F_k = \frac{1}{n_k} \sum_{(x, y)} \bigl(\nabla_w \ell(w_k; x, y)\bigr)^2 \quad (\texttt{empirical}).
    $$

    The weights are $p_k = n_k / n$, and $\lambda$ is `damping`. The server expands each client's loss to the second
    order around $w_k$, and minimizes the sum of these expansions:

    $$
    w^* = \operatorname*{argmin}_w \sum_k p_k (w - w_k)^\top (F_k + \lambda) (w - w_k)
    = \frac{\sum_k p_k (F_k + \lambda) \, w_k}{\sum_k p_k (F_k + \lambda)} \quad \text{for each parameter.}
    $$

    `solver: exact` takes $w^*$. `solver: descent` begins at the mean $\sum_k p_k w_k$ and makes `solver_steps` steps of
    $m \leftarrow 0.9 \, m + g$, $v \leftarrow 0.99 \, v + g^2$, $w \leftarrow w - \eta \, m / (\sqrt v + 0.01)$ with $g
    = \sum_k p_k (F_k + \lambda)(w - w_k)$ and $\eta$ = `solver_lr`. The server keeps the iterate that is best on the
    server's labelled samples.

    If all $F_k$ are equal, or $\lambda$ is much larger than all $F_k$, $w^*$ is FedAvg's mean. If losses are quadratic
    with diagonal Hessians, and the clients reach their optima, $w^*$ is the optimum of all samples. `fisher: model`
    computes one gradient per sample and output, and `fisher: empirical` one gradient per sample.

Deviations:
    1. The authors' server uses `solver: descent`. By default the server here computes the optimum, which needs no
       samples.
    2. `damping` is added to every F_k. The authors' code has no such term in its descent. For Fisher merging, the
       authors' code takes the plain mean if `sum p_k F_k` is below 1e-6.
    3. The authors' code quantizes weights and Fisher diagonals before it merges them. Here `compress` applies only to
       the model. The diagonal is measured before the model is compressed, and is sent as it is.
    4. The descent scores the model on the server's samples at the start, every 100 steps, and at the end. The authors'
       code scores the model after the first of every 100 steps. The server's samples (`validation` sets their share)
       belong to no client. In the authors' code they are 500 of the clients' samples.
    5. The variant with Kronecker factors (K-FAC) is left out.
    6. The Fisher diagonal is computed from the network's own loss in evaluation mode, even if `local.loss` or weight
       decay is set. Virtual time counts its gradients: one forward pass for each sample, and one backward pass for each
       sample and output.
    7. With K > 1 each model is merged separately, from the clients that trained it.

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

from fedray.core.options import MethodSpec, Needs, Option, either, one_of, real, whole
from fedray.methods import kit

_DESCENDS = Needs("method.solver", ("descent",))
SPECS = {
    "fedfisher": MethodSpec(
        "FedFisher: one shot, each weight of an upload counts by its Fisher information (Jhunjhunwala et al. 2024)",
        family="one shot",
        options={
            "damping": Option(1e-06, real("[0, inf)"), "number added to Fisher diagonals; a large one gives FedAvg"),
            "fisher": Option(
                "model",
                one_of("model", "empirical"),
                "the labels of the Fisher information: the model's own predictions, or the rows' labels "
                "(`empirical`), which need fewer gradients",
            ),
            "fisher_rows": Option("all", either("all", whole(1, 10**9)), "rows of a client for the Fisher information"),
            "solver": Option(
                "exact",
                one_of("exact", "descent"),
                "how the server finds the optimum: exactly (`exact`), or by gradient steps (`descent`)",
            ),
            "solver_steps": Option(2000, whole(1, 10**7), "number of gradient steps", _DESCENDS),
            "solver_lr": Option(0.01, real("(0, inf)"), "learning rate of the gradient steps", _DESCENDS),
            "validation": Option(
                0.05,
                real("[0, 1)"),
                "share of the training rows whose labels tell the server which of its steps is best; with 0 "
                "the last step counts",
                _DESCENDS,
            ),
        },
        defaults={
            "method": {"models": 1},
            "rounds": 1,
            "local": {"lr": 0.01, "momentum": 0.9, "batch_size": 64, "epochs": 20},
            "server": {"weighting": "examples"},
        },
        clients=5,
        fixed=("robust", "coefficients"),
        in_rounds="weighs the uploads of a round by their curvature",
        server_steps=True,
    ),
}

LOOKED_STEPS = 100  # steps between two scores on the server's samples


def fedfisher(setting: kit.Setting) -> kit.Method:
    """Composes FedFisher with K models, `[K, d]`.

    A client receives the d values of a model, and sends 2 d values (model and curvature).
    """
    how, work = kit.base.find_descent(setting, kit.one_shot.summing_adam, LOOKED_STEPS)
    phase = kit.federated(
        setting,
        assign=kit.permutation,  # the clients that take part, from the same start
        local=setting.local,  # to a local optimum w_k
        compress=kit.dense,
        # sum p_k F_k w_k / sum p_k F_k, or steps towards it
        merge=partial(kit.one_shot.fisher_mean, damping=setting.options["damping"], how=how),
    )
    return kit.Method("fedfisher", replace(phase.add(read_curvature(setting)), server_work=work))


def read_curvature(setting: kit.Setting) -> kit.Curvature:
    """Returns the addition to each job that measures the curvature of the client's loss.

    The options `fisher` and `fisher_rows` choose the labels and the number of samples for the measurement.
    """
    rows = setting.options["fisher_rows"]
    return kit.Curvature(setting.options["fisher"], None if rows == "all" else int(rows))
