r"""IVON-ADMM: ADMM over Gaussians of the weights. Clients train by IVON, and each keeps a factor of the posterior.

Sources: Möllenhoff, Swaroop, Doshi-Velez, Khan, *Federated ADMM from Bayesian Duality*, ICLR 2026, arXiv 2506.13150;
details follow the code team-approx-bayes/bayes-admm (`FedIVON`). The optimizer IVON is from Shen et al., *Variational
Learning is Effective for Large Deep Networks*, ICML 2024.

Formulas of ivon_admm:
    The posterior over the network's weights is a Gaussian $q$, independent in each weight, with mean $m_g$ and
    precision $S_g$. $q$ minimizes the sum of the expected losses of all clients and the divergence from the prior
    $p_0$. The losses are divided by the `temperature` $\tau$, and $p_0$ has the precision $S_0$ (`prior`):

    $$
    \sum_k \frac{n_k}{\tau} \, \mathbb{E}_q \, \ell_k + \mathrm{KL}(q \,\Vert\, p_0), \qquad p_0 = N(0, 1 / S_0).
    $$

    A Gaussian with mean $m$ and precision $S$ has the natural parameters $\lambda = (S m, \, S)$. Each client has its
    own Gaussian $q_k$, with mean $m_k$ and precision $S_k$. The client also has a factor $t_k(w) = \exp(a_k w - b_k w^2
    / 2)$, whose natural parameters $\lambda_k = (a_k, b_k)$ are 0 at first. The paper's duals are $v_k = -a_k$ and $V_k
    = -b_k$. A client starts at $q$, and minimizes its expected loss, a linear term, and the divergence from $q$ with
    the weight $\rho$ (`penalty`):

    $$
    \frac{n_k}{\tau} \, \mathbb{E}_{q_k} \, \ell_k + \mathbb{E}_{q_k} \log t_k + \rho \, \mathrm{KL}(q_k \,\Vert\, q).
    $$

    The client makes steps of IVON. Each step draws $w = m_k + \varepsilon S_k^{-1/2}$, with a standard normal
    $\varepsilon$, and computes the gradient $\hat g$ of the batch at $w$. Let $s = n_k / (\tau \rho)$. Step $j$ changes
    the precision, the mean gradient $g$, and the mean:

    $$
    \begin{aligned}
    F &= s \, \hat g \, \varepsilon \, S_k^{1/2} - b_k / \rho, \qquad y = (1 - \beta_2) \, (F - (S_k - S_g)) / S_k,
    \qquad
    S_k \leftarrow S_k \, (1 + y + y^2 / 2),\\
    g &\leftarrow \beta_1 g + (1 - \beta_1) \, \hat g,\\
    m_k &\leftarrow m_k - \eta \, \frac{s \, g / (1 - \beta_1^j) + (a_k - b_k m_k) / \rho + S_g \, (m_k - m_g)}{S_k}.
    \end{aligned}
    $$

    These are the paper's formulas with $S_k = s \, (h + \delta)$ and $\delta = S_g / s$. A precision stays above 0. The
    client sends $\Delta_k = \lambda(q_k) - \lambda(q)$. The key `dual_step` is the step size $\gamma$ of the client's
    factor:

    $$
    \lambda_k \leftarrow \lambda_k + \gamma \rho \, \Delta_k .
    $$

    The server computes the sum of all $\lambda_k$ from the uploads. The new posterior mixes two terms: the mean of the
    Gaussians of the participants $\mathcal P$, and the product of the prior and all factors. The second term has the
    weight $\alpha$ (`server_step`; the value `admm` means $1 / (1 + \rho N)$):

    $$
    \lambda(q) \leftarrow (1 - \alpha) \Bigl( \lambda(q) + \frac{1}{|\mathcal P|} \sum_{k \in \mathcal P} \Delta_k
    \Bigr) + \alpha \Bigl( (0, S_0) + \sum_{k=1}^N \lambda_k \Bigr).
    $$

    At a fixed point all $q_k$ equal $q$, and $q$ is the product of the prior and all factors. In the first round $q$ is
    the prior. In this round, training begins at the network's usual initial weights, with the standard deviation
    $\log(1 + e^{r})$, where $r$ is the option `rho`. Known cases:

    - With quadratic losses the fixed point is the exact posterior. With $\alpha = \gamma = 1$ one round reaches it.
    - With $\rho = \tau = \alpha = 1$ the method is PVI with the damping $\gamma$.
    - If every client has $n$ samples and $S_k = c$ (`beta2: 1`, and $S_0 = c$), the method is FedDyn. FedDyn's $\alpha$
      is $\tau \rho c / n$, and FedDyn's corrections are $-\tau \lambda_k / n$. The prior also multiplies the server's
      model by $\rho N / (1 + \rho N)$. FedDyn has no such factor.
    - With $\gamma = 0$ the factors stay 1, and the mean of the clients is pulled to the prior.
    - Training diverges if $b_k > \rho S_g + n_k H / \tau$ for a weight, where $H$ is the mean curvature of the client's
      losses. The client's objective then has no minimum, and $S_k$ falls almost to 0. This can happen with a large
      $\gamma$ if the curvature of the losses has fallen since the client learned its factor.

    `samples` networks drawn from $q$ predict together. With `samples: 0` the network with the mean weights predicts.

Deviations:
    1. A client sends lambda(q_k) - lambda(q), from which the server computes the mean and the sum. The authors' clients
       send q_k and their duals, which are twice as many values.
    2. All clients begin with the same standard deviation. In the authors' code it is `1 / sqrt(n h_0 / (tau rho) +
       S_0)`, which depends on the number of samples.
    3. If only some clients take part, the sum still runs over the factors of all N clients, and `admm` uses this N. In
       the authors' code, all clients take part in every round.
    4. If the learning rate is 0 (at the end of a cosine schedule), the precision does not change. By default the
       learning rate is constant (`local.schedule` changes it). The authors use a cosine over all rounds.
    5. The running mean of gradients starts at 0 in every round. In the authors' code the running mean continues.
    6. A precision of q that is not above 0 is replaced by 1e-6. The authors' code would produce NaN.
    7. By default ten draws from q predict. The authors report predictions of 32 draws, and of the mean.
    8. With int8 compression a client's factor changes by the value that the client computed. The server's sum changes
       by the value that was sent. Sparse uploads are refused, because a linear term without its precision would make
       the mean wrong.
    9. With K > 1 there are K posteriors, and each client has one factor for each posterior.
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

from fedray.core.options import MethodSpec, Option, either, real
from fedray.methods import kit
from fedray.methods.pvi import SPECS as PVI
from fedray.methods.pvi import add_factors

SPECS = {
    "ivon_admm": MethodSpec(
        "IVON-ADMM: ADMM between Gaussians over the weights; duals are the clients' factors (Möllenhoff et al. 2026)",
        family="Bayesian",
        options={
            "penalty": Option(
                0.2, real("(0, inf)"), "rho of ADMM, the weight of a client's divergence from the received Gaussian"
            ),
            "dual_step": Option(
                0.001,
                real("[0, 1]"),
                "gamma, the step size of the duals: a client's factor changes by gamma times `penalty` times "
                "the client's change",
            ),
            "server_step": Option(
                "admm",
                either("admm", real("(0, 1]")),
                "alpha, the weight of prior and factors in the next posterior; the clients' mean has the weight "
                "1 - alpha. `admm` is 1 / (1 + `penalty` N)",
            ),
            "temperature": Option(
                0.001,
                real("(0, inf)"),
                "tau, by which the losses of all rows are divided: 1 gives the posterior, less than 1 a narrower one",
            ),
            "prior": Option(1.0, real("(0, inf)"), "S_0, the precision of the prior, whose mean is 0"),
            "beta1": Option(0.9, real("[0, 1)"), "share of earlier gradients in their running mean"),
            "beta2": Option(
                0.9998, real("(0, 1]"), "share of the earlier curvature in its running mean; 1 fixes the precisions"
            ),
            "rho": Option(
                -3.9,
                real("[-20, 20]"),
                "rho of the Gaussian at which training begins in the first round; its standard "
                "deviation is softplus(rho): 0.02 with -3.9",
            ),
            "samples": PVI["pvi"].options["samples"],
        },
        defaults={"method": {"models": 1}, "local": {"optimizer": "sgd", "lr": 5e-5, "batch_size": 32, "epochs": 10}},
        clients=10,
        fixed=("robust", "optimizer", "averages", "coefficients"),
        samples=True,
        in_rounds="mixes the mean of a round's posteriors with all factors",
        private="factor of the posterior",
        draws=True,
        network=add_factors,
        sparse=False,
        step="dual_step",
    ),
}


def ivon_admm(setting: kit.Setting) -> kit.Method:
    """Composes IVON-ADMM with K Gaussians.

    For a Gaussian over p weights, a client receives and sends 2 p + 1 values.
    """
    local, options, p = setting.local, setting.options, setting.layout.sizes[0]
    kit.base.require("IVON-ADMM", local__optimizer=(local.optimizer_name, "sgd"), local__momentum=(local.momentum, 0))
    kit.base.check_own_prior(local, "IVON-ADMM", "method.prior")
    prior, penalty = options["prior"], options["penalty"]
    kept = options["dual_step"] * penalty  # gamma rho
    step = options["server_step"]
    alpha = 1.0 / (1.0 + penalty * setting.clients.number) if step == "admm" else float(step)
    ivon = {key: options[key] for key in ("temperature", "beta1", "beta2")}
    phase = kit.federated(
        # t_k, minus the duals (v_k, V_k), stays
        replace(setting, private=(kit.net.SITE,), memory=(kit.net.SITE,)),
        assign=kit.permutation,  # the clients that take part, who receive q
        local=replace(
            local,  # q_k = argmin n_k / tau E[loss_k] + E[log t_k] + rho KL(q_k || q), by IVON
            step=kit.gaussians.learn_by_ivon(penalty=penalty, prior=prior, p=p, **ivon),
        ),
        compress=kit.dense,
        pieces=[kit.Finish(kit.gaussians.refine_sites(kept, 1.0, prior, p))],  # t_k <- t_k (q_k / q)^(gamma rho)
    )
    # lambda(q) <- (1 - alpha) mean lambda(q_k) + alpha (lambda_0 + sum lambda(t_k))
    server = kit.gaussians.step_by_admm(
        kit.mean(setting.state_rows), setting.state_rows, alpha=alpha, kept=kept, prior=prior, p=p
    )
    return kit.Method(
        "ivon_admm",
        replace(phase, server=server),
        lambda state: kit.gaussians.answer_with_draws(state, setting.seeds, options["samples"], p),
    )
