r"""PVI: one Gaussian over the weights that is a prior times a factor of each client, who refine their factors.

Sources: Bui, Nguyen, Swaroop, Turner, *Partitioned Variational Inference: A Unified Framework Encompassing Federated
and Continual Learning*, 2018, arXiv 1811.11206, Alg. 1; Ashman, Bui, Nguyen, Markou, Weller, Swaroop, Turner,
*Partitioned Variational Inference: A Framework for Probabilistic Federated Learning*, 2022, arXiv 2202.12275, with all
clients at once; details are those of MattAshman/pvi.

The posterior q is `p(w) t_1(w) ... t_N(w)`, independent Gaussians, so that natural parameters add up. A client takes
its own factor out, which leaves the cavity `q / t_k`, and learns the q_k of most `E[log p(D_k | w)] - KL(q_k || q /
t_k)`. By what q_k differs from q, damped, its factor changes, and so does q at the server. Factors start at 1, and q as
the prior N(0, 1 / prior). A row holds q by means and rhos, the client's factor by its natural parameters, and one
number that says whether q is still the prior. The factor stays with the client.

Formulas of pvi:
    The posterior over the network's $p$ weights is a product of Gaussians, of the prior and of a factor of each client,
    independent in each weight: $q(w) = p(w) \prod_k t_k(w)$. With natural parameters $\lambda = (\mu / \sigma^2, \, 1 /
    \sigma^2)$ it is a sum,

    $$
    \lambda = \lambda_0 + \sum_k \lambda_k, \qquad \lambda_0 = (0, c), \qquad \lambda_k = 0 \text{ at first,}
    $$

    with `prior` $c$. A client receives $q$ (means, and $\rho$ with $\sigma = \log(1 + e^{\rho})$), takes its factor
    out, and descends from $q$ by

    $$
    F_k(q_k) = \mathbb{E}_{\varepsilon} \, \ell_k(\mu_k + \sigma_k \varepsilon) + \frac{1}{n_k} \,
    \mathrm{KL}\!\left(q_k \,\Vert\, q / t_k\right)
    $$

    in $\mu_k$ and $\rho_k$, with a draw $\varepsilon \sim N(0, I)$ a step: this is variational inference on its rows,
    with the cavity $q / t_k$ as the prior. With the damping $\rho$ it sends the change, and keeps its new factor:

    $$
    \Delta_k = \rho \, (\lambda(q_k) - \lambda(q)), \qquad \lambda_k \leftarrow \lambda_k + \Delta_k, \qquad
    \lambda \leftarrow \lambda + \sum_{k \in S} \Delta_k .
    $$

    That is $2p$ numbers in each direction, and one that says whether $q$ is still the prior; training then begins at
    the network's usual first weights. The posterior stays the prior times all factors. With `damping: clients`, $1 /
    N$, and all clients in a round it is the mean of the $q_k$ in natural parameters. For a linear model with Gaussian
    noise and uncorrelated inputs its fixed point is the exact posterior; one client with `damping: 1` does plain
    variational inference. Where a precision is not above 0, of a cavity or of $q$, it is taken for $10^{-6}$.

    The answer is the mean of those of `samples` networks that are drawn from $q$, or with 0 that of the network of the
    mean weights.

Deviations:
    1. A precision of a cavity or of q that is not above 0 is taken for 1e-6, and the linear term stays; factors may
       have any sign. The authors' code ends with an error, or takes absolute values (`enforce_pos_var`). With a
       `damping` of at most 1 / N no precision of q becomes so.
    2. One draw of the weights a step, the same for all rows of a batch; theirs are ten, of each row's activations.
    3. In the first round training begins at the network's usual first weights with the deviation softplus(`rho`); the
       authors' code draws means from (-0.1, 0.1), with a variance of 1e-3 or so. Later it begins at q, as theirs.
    4. `damping: clients` is 1 / N also where only some clients take part; nobody else's factor changes.
    5. Ten draws from q answer (`samples`), theirs are 100; their noise is the same in every round.
    6. With int8 a client's factor changes by what it computed, and q by what was sent, so that q is no longer the prior
       times the factors. Sparse uploads are refused: a linear term that comes without its precision moves a mean far
       away, and digits were answered as by chance, with error feedback too.
    7. With K > 1 there are K posteriors, and each client has a factor of each.
    8. Running statistics of normalization layers are averaged as in FedAvg.

Example:
    >>> import fedray
    >>> scenario = {"rounds": 4, "runtime": "inline", "data": {"partition": {"name": "dirichlet", "alpha": 1.0}}}
    >>> run = fedray.run(scenario, method="pvi", local__lr=0.01, local__batch_size=64, report=False)
    >>> bool(run.summary["metrics"]["accuracy"]["mean"] > 0.5)
    True
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedray.core.options import MethodSpec, Option, either, real, whole
from fedray.methods import kit


def add_factors(net: Any, options: Mapping[str, Any], _shape: tuple[int, ...], name: str) -> Any:
    """Puts the network under a Gaussian over its weights, and a client's factor of that."""
    return kit.net.Partitioned(net, options["rho"], name)


SPECS = {
    "pvi": MethodSpec(
        "PVI: each client has a factor of one Gaussian over the weights, and refines it (Ashman et al. 2022)",
        family="Bayesian",
        options={
            "damping": Option(
                "clients",
                either("clients", real("(0, 1]")),
                "rho, the share of a client's change that is applied; `clients` is one over the number of clients",
            ),
            "prior": Option(1.0, real("(0, inf)"), "precision of the prior, whose mean is 0"),
            "rho": Option(
                -3.44,
                real("[-20, 20]"),
                "rho of the Gaussian at which training begins in the first round; its standard "
                "deviation is softplus(rho): 0.032 with -3.44",
            ),
            "samples": Option(
                10,
                whole(0, 10**4),
                "S, how many networks are drawn from the posterior to answer; with 0 that of the mean weights answers",
            ),
        },
        defaults={
            "method": {"models": 1},
            "local": {"optimizer": "adam", "lr": 0.002, "batch_size": 512, "steps": 100},
        },
        clients=10,
        robust=False,
        optimizer=False,
        averages=False,
        coefficients=False,
        samples=True,
        in_rounds="adds all of what its clients' factors change by, whenever they come",
        private="factor of the posterior",
        mean_field="site",
        network=add_factors,
        sparse=False,
        step="damping",
    ),
}


def pvi(setting: kit.Setting) -> kit.Method:
    """One or K Gaussians over N clients; traffic: 2 p + 1 numbers in each direction."""
    local, options, p = setting.local, setting.options, setting.layout.sizes[0]
    kit.base.check_own_prior(local, "PVI", "method.prior")
    prior, damping = options["prior"], options["damping"]
    rho = 1.0 / setting.clients.number if damping == "clients" else float(damping)
    phase = kit.federated(
        replace(setting, private=(kit.net.SITE,), memory=(kit.net.SITE,)),  # t_k stays
        assign=kit.permutation,  # the clients that take part, who receive q
        local=replace(
            local,
            # q_k = argmax E[log p(D_k | w)] - KL(q_k || q / t_k)
            step=kit.gaussians.learn_from_cavity(local, prior, p),
            momentum=0.0,
        ),
        compress=kit.dense,
        pieces=[kit.Finish(kit.gaussians.refine_sites(rho, rho, prior, p))],  # t_k <- t_k (q_k / q)^rho
    )
    # q <- q prod_k (q_k / q)^rho
    server = kit.gaussians.add_sites(kit.mean(setting.state_rows), setting.state_rows, prior, p)
    return kit.Method(
        "pvi",
        replace(phase, server=server),
        lambda state: kit.gaussians.answer_with_draws(state, setting.seeds, options["samples"], p),
    )
