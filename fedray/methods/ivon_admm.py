"""IVON-ADMM: ADMM between Gaussians over the weights, whose duals are the clients' factors, with steps of IVON.

Sources: Möllenhoff, Swaroop, Doshi-Velez, Khan, *Federated ADMM from Bayesian Duality*, ICLR 2026, arXiv 2506.13150;
details are those of team-approx-bayes/bayes-admm (`FedIVON`). Its optimizer is that of Shen et al., *Variational
Learning is Effective for Large Deep Networks*, ICML 2024.

All clients look for one Gaussian q of least `sum_k n_k / tau E_q[loss_k] + KL(q || p)`, with the prior p = N(0, 1 /
S_0). Each has one of its own, q_k, and a factor t_k, which is minus the paper's duals: `v_k = -linear`, `V_k =
-precision`. A client learns the q_k of least `n_k / tau E[loss_k] + E[log t_k] + rho KL(q_k || q)`; its factor then
moves by gamma rho times the change of the natural parameters, lambda. The server mixes the mean of the q_k with what
prior and factors say: `(1 - alpha) mean lambda(q_k) + alpha (lambda_0 + sum lambda(t_k))`. Where all q_k are q, this is
the product of prior and factors. A row is that of PVI, which this method is with rho = tau = alpha = 1.

Deviations:
    1. A client sends lambda(q_k) - lambda(q), from which the server knows both terms. The authors' clients send q_k and
       their duals, and twice the numbers.
    2. In the first round training begins at the network's usual first weights, as theirs, with the deviation
       softplus(`rho`) for all; theirs is `1 / sqrt(n h_0 / (tau rho) + S_0)`, which depends on the rows.
    3. Where some clients take part, the mean is theirs, and the sum that of all factors; alpha has all N clients. The
       authors' clients all take part in every round.
    4. A learning rate of 0, the end of a cosine, leaves the precision where it is, too. The learning rate falls only
       where `local.schedule` says so; the authors' is a cosine over all rounds.
    5. The running mean of gradients begins anew in every round; theirs goes on.
    6. A precision of q that is not above 0 is taken for 1e-6. Theirs would be a NaN.
    7. One draw of the weights a step. Ten draws from q answer (`samples`), or its mean, as theirs (which report both,
       with 32 draws).
    8. With int8 a factor changes by what its client computed, and the server by what was sent. Sparse uploads are
       refused: a linear term that comes without its precision throws the mean away.
    9. With K > 1 there are K posteriors, and each client has a factor of each.
    10. Running statistics of normalization layers are averaged as in FedAvg.

Example:
    >>> import fedray
    >>> scenario = {"rounds": 4, "runtime": "inline", "data": {"partition": {"name": "dirichlet", "alpha": 1.0}}}
    >>> run = fedray.run(scenario, method="ivon_admm", local__lr=1e-4, local__epochs=2, report=False)
    >>> bool(run.summary["metrics"]["accuracy"]["mean"] > 0.5)
    True
"""

from __future__ import annotations

from dataclasses import replace

from fedray.core.errors import BadInput
from fedray.methods import kit


def ivon_admm(setting: kit.Setting) -> kit.Method:
    """One or K Gaussians over N clients; traffic: 2 p + 1 numbers in each direction."""
    if setting.layout.names[: len(kit.weights.SITE_NAMES)] != kit.weights.SITE_NAMES:
        raise BadInput("the networks have no Gaussians with factors: set method.name = ivon_admm, which makes them")
    local, options, p = setting.local, setting.options, setting.layout.sizes[0]
    _check_local(local)
    prior, penalty = options["prior"], options["penalty"]
    kept = options["dual_step"] * penalty  # gamma rho
    alpha = kit.gaussians.find_server_step(options["server_step"], penalty, setting.clients.number)
    weights = kit.gaussians.Weights(penalty, options["temperature"], prior)
    phase = kit.federated(
        replace(setting, private=(kit.weights.SITE,)),  # t_k, minus the duals (v_k, V_k), stays
        assign=kit.permutation,  # the clients that take part, who receive q
        local=replace(
            local,  # q_k = argmin n_k / tau E[loss_k] + E[log t_k] + rho KL(q_k || q), by IVON
            step=kit.gaussians.learn_by_ivon(weights, options["beta1"], options["beta2"], p),
            finish=kit.gaussians.refine_sites(kept, 1.0, prior, p),  # t_k <- t_k (q_k / q)^(gamma rho)
        ),
        compress=kit.dense,
    )
    server = (
        kit.gaussians.step_by_admm(  # lambda(q) <- (1 - alpha) mean lambda(q_k) + alpha (lambda_0 + sum lambda(t_k))
            kit.mean(setting.state_rows), setting.state_rows, alpha=alpha, kept=kept, prior=prior, p=p
        )
    )
    return kit.Method(
        "ivon_admm",
        replace(phase, server=server, memory=(kit.weights.SITE,)),
        lambda state: kit.gaussians.answer_with_draws(state, setting.seeds, options["samples"], p),
    )


def _check_local(local: kit.Local) -> None:
    """Refuses another optimizer, and what would change the clients' loss."""
    if local.optimizer_name != "sgd":
        name = local.optimizer_name
        raise BadInput(f"local.optimizer = {name}, but IVON-ADMM has one of its own, IVON: leave it at sgd")
    if local.momentum:
        raise BadInput(f"local.momentum = {local.momentum:g}, but IVON-ADMM's is method.beta1: set it to 0")
    kit.base.check_own_prior(local, "IVON-ADMM", "method.prior")
