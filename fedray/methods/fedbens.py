r"""FedBEns: one shot, after which the server looks for modes of the product of the clients' posteriors.

Source: Talpini, Savi, Neglia, *FedBEns: One-Shot Federated Learning based on Bayesian Ensemble*, ICML 2025, arXiv
2503.15367, with diagonal curvature. All clients train the same M starts. What client k sends, M local optima and the
diagonals of their Fishers, is a mixture of M Gaussians: its posterior, by Laplace's approximation. From the median of
each start's uploads (of an even number the lower of the middle two) the server goes to a mode of the product of these
mixtures; the M modes answer together.

The precision of a Gaussian is `n_k F_km / temperature + precision`. In the product the prior counts once for all
clients: `(N - 1) prior` is subtracted. In these names and defaults the authors' code is meant (`main_FedBEns_diag.py`).

Formulas of fedbens:
    All clients train the same $M$ starts (`models`) to local optima $w_{k1}, \dots, w_{kM}$, and send each with the
    diagonal $F_{km}$ that `fedfisher` measures, too. A client's posterior is taken for a mixture, by Laplace's
    approximation at each optimum, with the temperature $T$ and the `precision` $c$:

    $$
    p_k(w) = \frac1M \sum_m \mathcal N\bigl(w; w_{km}, P_{km}^{-1}\bigr), \qquad P_{km} = \frac{n_k F_{km}}{T} + c.
    $$

    The posterior of all rows is in proportion to the product, in which the `prior` $\mathcal N(0, 1/c_0)$ shall count
    once:

    $$
    \log p(w) = \sum_{k=1}^N \log p_k(w) + (N - 1) \, \frac{c_0}{2} \, \lVert w \rVert^2 + \text{const}.
    $$

    From the median of each start's uploads the server goes to a mode of it, and the $M$ modes answer together. `solver:
    exact` does that by fixed points, on which $\log p$ never falls:

    $$
    r_{km} = \frac{\mathcal N(w; w_{km}, P_{km}^{-1})}{\sum_l \mathcal N(w; w_{kl}, P_{kl}^{-1})}, \qquad
    w \leftarrow \frac{\sum_{k,m} r_{km} P_{km} w_{km}}{\sum_{k,m} r_{km} P_{km} - (N - 1) \, c_0}.
    $$

    `solver: descent` makes `solver_steps` steps of Adam, and keeps the model that is best on the server's own rows.
    Densities of many numbers differ by many orders of magnitude, so that nearly all $r_{km}$ are 0 or 1. With $M = 1$,
    $c_0 = 0$ and a small $c$ it is `fedfisher`.

Deviations:
    1. The authors' server makes 1,000 steps of Adam (`solver: descent`) and stays where its labelled rows say it is
       best. The default here is a mode itself, which a few fixed-point steps reach (`solver: exact`), without rows.
    2. The descent looks at the server's rows at the start, every 50 steps and at the end; theirs behind the first of
       every 50. These rows are a share of all (`validation`) that no client has.
    3. The mixture's weights are equal, which is the authors' default; theirs by the Laplace evidence are left out, and
       so are Kronecker factors and a whole Hessian of the last layer.
    4. A client's prior (`precision` 10) is not that of the product (`prior` 1) in the authors' code. With `prior` 0
       numbers of which nobody knows anything stay the mean of the uploads; otherwise they grow by
       `N precision / (N precision - (N - 1) prior)`.
    5. Clients that do not take part, or have no rows, are no factor of the product.
    6. As FedFisher's 3 and 6: the Fisher is sent whole, is that of the network's own loss, and takes no virtual time.

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
                10.0, real("(0, inf)"), "what every client adds to its curvature (c): the precision of its prior"
            ),
            "prior": Option(
                1.0,
                real("[0, inf)"),
                "precision of the prior that is in every client's posterior and counts once (c_0); 0 has none",
            ),
            **_FISHER,
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
        robust=False,
        optimizer=False,
        coefficients=False,
        schedules=False,
        all_models=True,
        in_rounds="multiplies the posteriors of a round",
    ),
}

LOOKED_STEPS = 50  # from one look at the server's rows to the next


def fedbens(setting: kit.Setting) -> kit.Method:
    """M models `[M, d]` over N clients; traffic of each of a client's M jobs: d numbers down, 2 d up.

    Raises:
        BadInput: the prior of the product is more precise than that of a client.
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
    descent = kit.one_shot.Descent(
        options["solver_steps"], LOOKED_STEPS, kit.one_shot.adam(options["solver_lr"]), setting.score
    )
    phase = kit.federated(
        replace(setting, assign=None),
        assign=kit.schedule.every_model,  # all clients train the M starts
        local=setting.local,  # to M local optima
        compress=kit.dense,
        merge=partial(  # product of the mixtures, a mode of it from each start
            kit.one_shot.mixture_server, laplace=laplace, how=None if options["solver"] == "exact" else descent
        ),
    )
    return kit.Method("fedbens", phase.add(read_curvature(setting)))
