r"""PVI: a Gaussian over the weights is the product of a prior and the clients' factors. Each client refines its factor.

Sources: Bui, Nguyen, Swaroop, Turner, *Partitioned Variational Inference: A Unified Framework Encompassing Federated
and Continual Learning*, 2018, arXiv 1811.11206, Alg. 1; Ashman, Bui, Nguyen, Markou, Weller, Swaroop, Turner,
*Partitioned Variational Inference: A Framework for Probabilistic Federated Learning*, 2022, arXiv 2202.12275, in the
variant in which all clients train at once. Details follow the code MattAshman/pvi.

A row of the state holds q and the client's factor, which stays with the client.

Formulas of pvi:
    The posterior over the network's $p$ weights is the product of a prior and a factor per client, $q(w) = p_0(w)
    \prod_k t_k(w)$. Posterior, prior and factors are Gaussians, independent in each weight. In the natural parameters
    $\lambda = (\mu / \sigma^2, \, 1 / \sigma^2)$ the product is a sum. The prior has the precision $c$ (the key
    `prior`):

    $$
    \lambda = \lambda_0 + \sum_k \lambda_k, \qquad \lambda_0 = (0, c), \qquad \lambda_k = 0 \text{ at first.}
    $$

    A client receives $q$ as means and values $r$ with $\sigma = \log(1 + e^{r})$. The client divides $q$ by its own
    factor. The training starts at $q$, and minimizes the expected loss plus the divergence from the quotient (the
    cavity):

    $$
    F_k(q_k) = \mathbb{E}_{\varepsilon} \, \ell_k(\mu_k + \sigma_k \varepsilon) + \frac{1}{n_k} \,
    \mathrm{KL}\!\left(q_k \,\Vert\, q / t_k\right).
    $$

    Each step changes $\mu_k$ and $r_k$, and uses one draw $\varepsilon \sim N(0, I)$. This is variational inference on
    the client's samples, with the cavity as the prior. The client multiplies its change by $\rho$ (`damping`). It sends
    the damped change and keeps its new factor:

    $$
    \Delta_k = \rho \, (\lambda(q_k) - \lambda(q)), \qquad \lambda_k \leftarrow \lambda_k + \Delta_k, \qquad
    \lambda \leftarrow \lambda + \sum_{k \in S} \Delta_k .
    $$

    A client receives and sends $2p$ values, and one more value that tells whether $q$ is still the prior. As long as
    $q$ is the prior, training begins at the network's usual initial weights. The posterior remains the product of the
    prior and all factors. With `damping: clients` ($\rho = 1 / N$) and all clients in a round, the new posterior is the
    mean of the $q_k$ in natural parameters.

    For a linear model with Gaussian noise and uncorrelated inputs the fixed point is the exact posterior. One client
    with `damping: 1` does plain variational inference.

    `samples` networks drawn from $q$ predict together. With `samples: 0` the network with the mean weights predicts.

Deviations:
    1. If a precision of a cavity or of q is not above 0, 1e-6 replaces this precision. The linear term does not change.
       The precisions of factors may have any sign. The authors' code ends with an error, or takes absolute values
       (`enforce_pos_var`). With a `damping` of at most 1 / N the precisions of q stay above 0.
    2. Each step uses one draw of the weights for all samples of a batch. The authors' code draws the activations
       instead, ten times for each sample.
    3. In the first round the standard deviation at the start is softplus(`rho`). The authors' code draws means from
       (-0.1, 0.1), with a variance of about 1e-3.
    4. `damping: clients` means 1 / N even if only some clients take part.
    5. By default ten draws from q predict, with the same noise in every round. In the authors' code 100 draws predict.
    6. With int8 compression a client's factor changes by the value that the client computed. q changes by the value
       that was sent, so q is not exactly the product. Sparse uploads are refused, because a linear term without its
       precision moves a mean far away.
    7. With K > 1 there are K posteriors, and each client has one factor for each posterior.
    8. Running statistics of normalization layers are averaged as in FedAvg.

Example:
    >>> import fedray
    >>> scenario = {"rounds": 2, "runtime": "inline", "data": {"partition": {"name": "dirichlet", "alpha": 1.0}}}
    >>> run = fedray.run(scenario, method="pvi", local__lr=0.02, local__batch_size=64, report=False)
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
    """Returns a network whose parameters are a Gaussian over the weights of `net`, and a client's factor."""
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
                "S, networks drawn from the posterior to predict; with 0 the network with the mean weights predicts",
            ),
        },
        defaults={
            "method": {"models": 1},
            "local": {"optimizer": "adam", "lr": 0.002, "batch_size": 512, "steps": 100},
        },
        clients=10,
        fixed=("robust", "optimizer", "averages", "coefficients"),
        samples=True,
        in_rounds="adds the whole change of every factor, however late it arrives",
        private="factor of the posterior",
        draws=True,
        network=add_factors,
        sparse=False,
        step="damping",
    ),
}


def pvi(setting: kit.Setting) -> kit.Method:
    """Composes PVI with K Gaussians."""
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
