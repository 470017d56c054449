"""pFedBayes: each client keeps a Gaussian over its weights, whose prior is the mean of what all clients make of it.

Source: Zhang, Li, Li, Huang, Gu, *Personalized Federated Learning via Variational Bayesian Inference*, ICML 2022, arXiv
2206.07977, Alg. 1. The details below are those of AllenBeau/pFedBayes, an unofficial implementation.

A row holds two Gaussians, the client's own q and its copy w of the global one, of p means and p numbers rho each;
`softplus(rho)` is the standard deviation. q is a private layer: it is neither sent nor averaged, and all that stays,
travels and is counted does so as in FedPer. The server's own q is its w, with which new clients start and answer.

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

from dataclasses import replace

from fedray.core.errors import BadInput
from fedray.methods import kit


def pfedbayes(setting: kit.Setting) -> kit.Method:
    """One or K Gaussians over N clients; traffic: 2 p numbers up, and 2 p down (means and rhos).

    Raises:
        BadInput: clients train with an optimizer of their own, with weight decay, or with a pull; or the networks have
            no Gaussians.
    """
    if setting.layout.names[: kit.weights.PARTS] != kit.weights.NAMES:
        raise BadInput(
            "the networks have no Gaussians over their weights: set method.name = pfedbayes, which makes them"
        )
    local, options, p = setting.local, setting.options, setting.layout.trainable // kit.weights.PARTS
    kit.base.check_own_prior(local, "pFedBayes", "method.zeta")
    # ClientUpdate: q and w in turns
    steps = kit.gaussians.learn_posterior(local, options["zeta"], options["personal_steps"], p)
    phase = kit.federated(
        replace(setting, private=(kit.weights.OWN,)),  # q stays, w is sent
        assign=kit.permutation,  # the clients that take part
        local=replace(local, step=steps, momentum=0.0),
        merge=kit.mean,  # w <- (1 - beta) w + beta mean w_i
    )
    return kit.Method("pfedbayes", replace(phase, server=kit.gaussians.answer_with_prior(phase.server, p)))
