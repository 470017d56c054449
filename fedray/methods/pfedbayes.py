r"""pFedBayes: each client keeps a Gaussian over its weights. The Gaussian's prior is learned from all clients.

Source: Zhang, Li, Li, Huang, Gu, *Personalized Federated Learning via Variational Bayesian Inference*, ICML 2022, arXiv
2206.07977, Alg. 1. Details follow AllenBeau/pFedBayes, an unofficial implementation.

A row of the state holds two Gaussians: the client's own q, and its copy w of the global Gaussian. q is a private layer,
as in FedPer, and is not sent.

Formulas of pfedbayes:
    A model is a Gaussian $N(\mu, \sigma^2)$ over each of the network's $p$ weights, with $\sigma = \log(1 + e^{\rho})$.
    Each client keeps its own Gaussian $q_i$. The prior of $q_i$ is the client's copy $w_i$ of the global Gaussian $w =
    N(\nu, \tau^2)$. Each step draws $\varepsilon \sim N(0, I)$, and changes $\mu$ and $\rho$ by the gradient of the sum
    of the expected loss and the divergence from $w_i$. The key `zeta` is the weight of the divergence:

    $$
    F_i(q) = \mathbb{E}_{\varepsilon} \, \ell_i(\mu + \sigma \varepsilon) + \frac{\zeta}{n_i} \, \mathrm{KL}(q \,\Vert\,
    w_i), \qquad
    \mathrm{KL}(q \,\Vert\, w) = \sum_j \log \frac{\tau_j}{\sigma_j} + \frac{\sigma_j^2 + (\mu_j - \nu_j)^2}{2
    \tau_j^2} - \frac12.
    $$

    After every `personal_steps` such steps the copy $w_i$ makes one step by $\frac{\zeta}{n_i} \nabla_w \mathrm{KL}(q_i
    \,\Vert\, w)$. This step changes $\nu$ and the copy's own $\rho$. Each of the two Gaussians has its own optimizer
    (Adam), with the same learning rate. The client keeps $q_i$ and sends $w_i$, which has $2p$ values. The server
    averages means and rhos:

    $$
    w \leftarrow (1 - \beta) \, w + \beta \, \frac{1}{|S|} \sum_{i \in S} w_i .
    $$

    By default $\beta$ is 1. For a different $\beta$ set `server.optimizer: momentum`, `server.momentum: 0`, and
    `server.lr` to $\beta$. Clients of the run predict with the mean of their $q_i$ (`personal_accuracy`), and new
    clients with the mean of $w$. With $\zeta = 0$ and narrow Gaussians a client trains alone.

Deviations:
    1. Each personal step uses a new batch. The unofficial code makes five personal steps on each batch, and then one
       step of w. Here `local.steps` counts personal steps. The code's R = 20 therefore corresponds to 100 steps. Alg. 1
       makes one step of w after each personal step (set `personal_steps: 1` for this).
    2. The noise $\varepsilon$ of the unofficial code has a standard deviation of 0.001.
    3. The divergence has the weight `zeta / n_i` relative to the mean loss, as in the paper. In the unofficial code the
       weight is 1 / (R B).
    4. Adam's moments start at 0 in each local training. In the unofficial code they are kept.
    5. The first q of a client is the global Gaussian of the round in which the client first takes part. The first means
       are the network's usual first weights (`model.weight_sd: 0.1` draws them as the unofficial code does).
    6. The network with the mean weights predicts. The unofficial code draws the weights once, with a standard deviation
       of 2.
    7. Running statistics of normalization layers are averaged as in FedAvg.

Example:
    >>> import fedray
    >>> data = {"limit": 600, "partition": {"name": "classes", "classes": 5}}
    >>> scenario = {"rounds": 2, "data": data, "runtime": "inline"}
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
    """Returns a network whose parameters are two Gaussians: the client's own, and its copy of the global one."""
    return kit.net.MeanField(net, options["rho"], name)


SPECS = {
    "pfedbayes": MethodSpec(
        "pFedBayes: each client keeps a Gaussian over its weights, near the global Gaussian (Zhang et al. 2022)",
        family="personal models",
        options={
            "zeta": Option(
                10.0,
                real("[0, inf)"),
                "weight of the divergence of a client's Gaussian from the global one; this weight is divided by "
                "the client's number of rows",
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
        network=add_gaussians,
    ),
}


def pfedbayes(setting: kit.Setting) -> kit.Method:
    """Composes pFedBayes with K Gaussians. For each Gaussian, a client receives and sends 2 p values (means and rhos).

    Raises:
        BadInput: Clients train with an optimizer other than Adam or SGD, with weight decay, or with a proximal term.
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
