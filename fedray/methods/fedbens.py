r"""FedBEns: one round of training, after which the server finds modes of the product of the clients' posteriors.

Source: Talpini, Savi, Neglia, *FedBEns: One-Shot Federated Learning based on Bayesian Ensemble*, ICML 2025, arXiv
2503.15367, with diagonal curvature. Names and defaults are from the authors' code (`main_FedBEns_diag.py`).

Formulas of fedbens:
    All clients train from the same $M$ starts (`models`). Client $k$ reaches the local optima $w_{k1}, \dots, w_{kM}$.
    The client sends each optimum with the diagonal $F_{km}$ of the Fisher matrix at this optimum, as in `fedfisher`.
    Laplace's approximation describes the client's posterior as a mixture of Gaussians at the optima. The precisions
    $P_{km}$ of the Gaussians follow from the `temperature` $T$ and the `precision` $c$:

    $$
    p_k(w) = \frac1M \sum_m \mathcal N\bigl(w; w_{km}, P_{km}^{-1}\bigr), \qquad P_{km} = \frac{n_k F_{km}}{T} + c.
    $$

    The posterior of all samples is proportional to the product of these posteriors. Each factor contains the prior
    $\mathcal N(0, 1/c_0)$ (`prior`), but the prior should count only once:

    $$
    \log p(w) = \sum_{k=1}^N \log p_k(w) + (N - 1) \, \frac{c_0}{2} \, \lVert w \rVert^2 + \text{const}.
    $$

    For each start the server computes the median of the uploads (the lower middle value if their number is even). From
    this median the server goes to a mode of $p$. The $M$ modes predict together. `solver: exact` makes fixed-point
    steps, in which $\log p$ never falls. In each step, $r_{km}$ is the share of optimum $m$ in the density of client
    $k$ at $w$. The next $w$ is a mean of all optima, weighted by shares and precisions:

    $$
    r_{km} = \frac{\mathcal N(w; w_{km}, P_{km}^{-1})}{\sum_l \mathcal N(w; w_{kl}, P_{kl}^{-1})}, \qquad
    w \leftarrow \frac{\sum_{k,m} r_{km} P_{km} w_{km}}{\sum_{k,m} r_{km} P_{km} - (N - 1) \, c_0}.
    $$

    `solver: descent` makes `solver_steps` steps of Adam, and keeps the iterate that is best on the server's own
    samples. Densities over many parameters differ by many orders of magnitude, so nearly all $r_{km}$ are 0 or 1. With
    $M = 1$, $c_0 = 0$ and a small $c$ the method is `fedfisher`.

Deviations:
    1. The authors' server makes 1,000 steps of Adam (`solver: descent`). The default here (`solver: exact`) finds the
       mode by a few fixed-point steps, and needs no samples at the server.
    2. The descent scores the model on the server's samples at the start, every 50 steps and at the end. The authors'
       code scores the model after the first of every 50 steps. The server's samples (`validation` sets their share)
       belong to no client.
    3. The mixture's weights are equal, which is the authors' default. Weights from the Laplace evidence, Kronecker
       factors, and a full Hessian of the last layer are left out.
    4. A client's prior (`precision` 10) differs from the prior of the product (`prior` 1), as in the authors' code. If
       the Fisher information about a parameter is 0 at every client, `prior` 0 makes this parameter the mean of the
       uploads. With any other `prior`, this mean is multiplied by `N precision / (N precision - (N - 1) prior)`.
    5. The product has no factor for clients that do not take part or have no samples. With `server.weighting: uniform`
       all $P_{km}$ are computed with the mean of the $n_k$.
    6. As in `fedfisher` (deviations 3 and 6), the Fisher diagonal is not compressed, and it is computed from the
       network's own loss. The virtual clock counts the time of this computation.

Example:
    >>> import fedray
    >>> scenario = {"data": {"partition": {"name": "classes", "classes": 2}}, "local": {"epochs": 20, "momentum": 0}}
    >>> run = fedray.run(scenario, method="fedbens", clients=5, runtime="inline", report=False)
    >>> found = run.summary["metrics"]
    >>> print(*(f"{found[name]['mean']:.1f}" for name in ("accuracy_mean", "accuracy")))
    0.5 0.7
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from fedray.core.errors import BadInput
from fedray.core.options import MethodSpec, Option, real
from fedray.methods import kit
from fedray.methods.fedfisher import SPECS as FEDFISHER
from fedray.methods.fedfisher import read_curvature

_FISHER = {key: option for key, option in FEDFISHER["fedfisher"].options.items() if key != "damping"}
SPECS = {
    "fedbens": MethodSpec(
        "FedBEns: one shot, an ensemble of M modes of the product of the clients' posteriors (Talpini et al. 2025)",
        family="one shot",
        options={
            "temperature": Option(0.1, real("(0, inf)"), "T, by which a client's curvature is divided"),
            "precision": Option(
                10.0, real("(0, inf)"), "c, the precision of each client's prior, which is added to the curvature"
            ),
            "prior": Option(
                1.0,
                real("[0, inf)"),
                "c_0, the precision of the prior, which all posteriors contain but which counts once; 0 means no prior",
            ),
            **_FISHER,
            "solver": _FISHER["solver"]._replace(
                text="how the server goes to a mode: by a few fixed-point steps (`exact`), or by Adam (`descent`)"
            ),
            "solver_steps": _FISHER["solver_steps"]._replace(default=1000),
            "solver_lr": _FISHER["solver_lr"]._replace(default=0.001),
        },
        defaults={
            "method": {"models": 3},
            "rounds": 1,
            "local": {"lr": 0.01, "momentum": 0.9, "batch_size": 64, "epochs": 20},
            "server": {"weighting": "examples"},
        },
        clients=5,
        fixed=("robust", "optimizer", "coefficients", "schedules"),
        all_models=True,
        in_rounds="multiplies the posteriors of a round",
        server_steps=True,
    ),
}

LOOKED_STEPS = 50  # steps between two scores on the server's samples


def fedbens(setting: kit.Setting) -> kit.Method:
    """Composes FedBEns with M models, `[M, d]`.

    A client has M jobs. A job receives d values, and sends 2 d values (optimum and curvature).

    Raises:
        BadInput: The prior of the product is more precise than a client's prior.
    """
    options = setting.options
    laplace = kit.one_shot.Laplace(
        options["temperature"], options["precision"], options["prior"], setting.layout.trainable
    )
    if laplace.prior > laplace.precision:
        raise BadInput(
            f"method.prior = {laplace.prior:g}, but method.precision is {laplace.precision:g}: without it nothing may "
            "be left of a client's precision: lower the first, or raise the second"
        )
    how, work = kit.base.find_descent(setting, kit.one_shot.adam, LOOKED_STEPS)
    phase = kit.federated(
        replace(setting, assign=None),
        assign=kit.schedule.every_model,  # all clients train the M starts
        local=setting.local,  # to M local optima
        compress=kit.dense,
        # product of the mixtures, a mode of it from each start
        merge=partial(kit.one_shot.mixture_server, laplace=laplace, how=how),
    )
    return kit.Method("fedbens", replace(phase.add(read_curvature(setting)), server_work=work))
