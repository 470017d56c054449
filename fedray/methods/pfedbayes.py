r"""pFedBayes: each client keeps a Gaussian over its weights, whose prior is the mean of what all clients make of it.

Source: Zhang, Li, Li, Huang, Gu, *Personalized Federated Learning via Variational Bayesian Inference*, ICML 2022, arXiv
2206.07977, Alg. 1. The details below are those of AllenBeau/pFedBayes, an unofficial implementation.

A row holds two Gaussians, the client's own q and its copy w of the global one, of p means and p numbers rho each;
`softplus(rho)` is the standard deviation. q is a private layer: it is neither sent nor averaged, and all that stays,
travels and is counted does so as in FedPer. The server's own q is its w, with which new clients start and answer.

Formulas of pfedbayes:
    A model is a Gaussian over the network's $p$ weights, $N(\mu, \sigma^2)$ in each of them with $\sigma = \log(1 +
    e^{\rho})$. Each client keeps one of its own, $q_i$; the global one $w$ is its prior. With a draw $\varepsilon \sim
    N(0, I)$ a step, the client descends by

    $$
    F_i(q) = \mathbb{E}_{\varepsilon} \, \ell_i(\mu + \sigma \varepsilon) + \frac{\zeta}{n_i} \, \mathrm{KL}(q \,\Vert\,
    w_i), \qquad
    \mathrm{KL}(q \,\Vert\, w) = \sum_j \log \frac{\tau_j}{\sigma_j} + \frac{\sigma_j^2 + (\mu_j - \nu_j)^2}{2
    \tau_j^2} - \frac12
    $$

    for $w = N(\nu, \tau^2)$, in $\mu$ and $\rho$. Behind every `personal_steps` such steps its copy $w_i$ of the global
    Gaussian makes one by $\frac{\zeta}{n_i} \nabla_w \mathrm{KL}(q_i \,\Vert\, w)$, in $\nu$ and in its $\rho$. Both
    have an optimizer of their own (Adam) with the same rate. The client keeps $q_i$ and sends $w_i$: $2p$ numbers in
    each direction. The server averages means and rhos,

    $$
    w \leftarrow (1 - \beta) \, w + \beta \, \frac{1}{|S|} \sum_{i \in S} w_i .
    $$

    $\beta$ is 1, or `server.lr` with `server.optimizer: momentum` and `server.momentum: 0`. Known clients answer with
    the mean of their $q_i$ (`personal_accuracy`), new ones with that of $w$. With $\zeta = 0$ and narrow Gaussians a
    client trains alone.

Deviations:
    1. A batch is of one personal step. The unofficial code takes five on each batch, and one of w behind them; here
       `local.steps` counts personal steps, so that its R = 20 is 100 steps. Alg. 1 has one of each:
       `personal_steps: 1`.
    2. One draw of the weights a step, standard normal. The unofficial code's draws have a deviation of 0.001.
    3. The divergence weighs `zeta / n_i` beside the mean loss, as the paper's; the unofficial code has 1 / (R B).
    4. Adam starts without memory in each local training; the unofficial code's goes on.
    5. The first q of a client is the global Gaussian when it first takes part, and the means are the network's usual
       first weights (`model.weight_sd: 0.1` draws them as the unofficial code does).
    6. Answers are those of the mean weights. (The unofficial code draws once, with the deviation of 2.)
    7. The paper's beta is `server.optimizer: momentum` with `server.lr` beta and `server.momentum` 0; without an
       optimizer beta is 1.
    8. Running statistics of normalization layers are averaged as in FedAvg.

Example:
    >>> import fedray
    >>> scenario = {"rounds": 3, "data": {"partition": {"name": "classes", "classes": 5}}, "runtime": "inline"}
    >>> run = fedray.run(scenario, method="pfedbayes", local__lr=0.01, report=False)
    >>> metrics = run.summary["metrics"]
    >>> metrics["personal_accuracy"]["mean"] > metrics["accuracy"]["mean"]
    True
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedray.core.options import MethodSpec, Option, real, whole
from fedray.methods import kit


def add_gaussians(net: Any, options: Mapping[str, Any], _shape: tuple[int, ...], name: str) -> Any:
    """Puts the network under a Gaussian over its weights, and the prior of that."""
    return kit.net.MeanField(net, options["rho"], name)


SPECS = {
    "pfedbayes": MethodSpec(
        "pFedBayes: each client keeps a Gaussian over its weights, near the clients' mean one (Zhang et al. 2022)",
        family="personal models",
        options={
            "zeta": Option(
                10.0,
                real("[0, inf)"),
                "weight of the divergence of a client's Gaussian from the global one, which is divided "
                "by the client's rows",
            ),
            "rho": Option(
                -2.5,
                real("[-20, 20]"),
                "rho of the first Gaussians, whose standard deviation is softplus(rho): 0.079 with -2.5",
            ),
            "personal_steps": Option(
                5, whole(1, 10**6), "steps of a client's Gaussian for one step of its copy of the global one"
            ),
        },
        defaults={
            "method": {"models": 1},
            "local": {"optimizer": "adam", "lr": 0.001, "batch_size": 100, "steps": 100},
            "evaluate": {"personal": True},
        },
        clients=10,
        own_models=True,
        private="Gaussian over its weights",
        mean_field="prior",
        network=add_gaussians,
    ),
}


def pfedbayes(setting: kit.Setting) -> kit.Method:
    """One or K Gaussians over N clients; traffic: 2 p numbers up, and 2 p down (means and rhos).

    Raises:
        BadInput: clients train with an optimizer of their own, with weight decay, or with a pull.
    """
    local, options, p = setting.local, setting.options, setting.layout.trainable // kit.net.PARTS
    kit.base.check_own_prior(local, "pFedBayes", "method.zeta")
    # ClientUpdate: q and w in turns
    steps = kit.gaussians.learn_posterior(local, options["zeta"], options["personal_steps"], p)
    phase = kit.federated(
        replace(setting, private=(kit.net.OWN,)),  # q stays, w is sent
        assign=kit.permutation,  # the clients that take part
        local=replace(local, step=steps, momentum=0.0),
        merge=kit.mean,  # w <- (1 - beta) w + beta mean w_i
    )
    return kit.Method("pfedbayes", replace(phase, server=kit.gaussians.answer_with_prior(phase.server, p)))
