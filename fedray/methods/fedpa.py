r"""FedPA: FedAvg whose clients send the direction to their posterior mean, multiplied by the posterior's precision.

Source: Al-Shedivat, Gillenwater, Xing, Rostamizadeh, *Federated Learning via Posterior Averaging: A New Perspective and
Practical Algorithms*, ICLR 2021, arXiv 2010.05273.

If the clients' posteriors are Gaussians N(m_i, S_i), the global posterior is their product. Its mode minimizes the sum
of `1/2 (w - m_i)' S_i^-1 (w - m_i)` over the clients. FedPA descends by the gradients `S_i^-1 (w - m_i)` of this sum.
FedAvg replaces all S_i by the identity. If clients differ and make several steps, FedAvg therefore ends at a different
point. A client samples its posterior while it trains (iterate-averaged SGD).

Formulas of fedpa:
    In the first `burn_in` rounds FedPA is FedAvg. Later, the first steps of a client's training (the fraction `mixing`)
    are not used. The other steps $s$ are cut into $\ell$ windows (`samples`) of equal length, $W_1, \dots, W_\ell$. The
    mean $x_t$ of SGD's iterates $v_s$ in window $t$ is a sample of the client's posterior. The samples have the mean
    $\bar x$. Their covariance is mixed with the identity matrix. The key `rho` ($\rho$) sets the weights of covariance
    and identity:

    $$
    x_t = \frac{1}{|W_t|} \sum_{s \in W_t} v_s, \qquad \bar x = \frac1\ell \sum_t x_t, \qquad
    \hat\Sigma = r I + (1 - r) \, \frac{1}{\ell - 1} \sum_t (x_t - \bar x)(x_t - \bar x)^\top, \qquad
    r = \frac{1}{1 + (\ell - 1) \rho}.
    $$

    The client sends $\Delta_i = \hat\Sigma^{-1} (\bar x - w)$, and the server averages as FedAvg does
    (`server.optimizer` acts on the mean). The inverse is computed without a matrix. Let $\bar x_t$ be the mean of the
    first $t$ samples, and $A_1 = I$:

    $$
    y_t = x_t - \bar x_{t-1}, \quad z_t = A_{t-1} y_t, \quad \gamma_t = \rho \, \frac{t-1}{t}, \quad
    A_t = A_{t-1} - \frac{\gamma_t \, z_t z_t^\top}{1 + \gamma_t \, z_t^\top y_t}, \qquad
    \Delta_i = \frac1r \, A_\ell \, (\bar x - w).
    $$

    $A_\ell$ is stored as the vectors $z_t$ with their coefficients. This takes $\ell^2 d$ operations and $\ell$
    vectors. With $\ell = 1$ or $\rho = 0$ FedPA is FedAvg with averaged iterates.

    Along a direction in which the samples have the variance $\sigma^2$, a client's step is multiplied by $(1 + (\ell -
    1) \rho) / (1 + (\ell - 1) \rho \, \sigma^2)$. For networks $\sigma^2$ is usually far below 1. The multiplier is
    then nearly $1 + (\ell - 1) \rho$ in all directions, and a larger $\rho$ mainly means a larger server step. Tune
    $\rho$ together with `server.lr`.

Deviations:
    1. The authors' code skips the first epochs and takes one sample in each later epoch. With `local.epochs` 5,
       `mixing` 0.2 and `samples` 4 the windows here are the same as in their code with one skipped epoch.
    2. A client with fewer steps than l takes one sample per step.
    3. The defaults of `mixing` and `samples` are from the authors' example for EMNIST. The default of `rho` is from
       their code. In the example, 400 of 1,500 rounds are burn-in, and clients and server have momentum (0.9 for the
       server, with `server.lr` 0.5).
    4. Float buffers (running statistics of normalization layers) have no posterior. They are averaged as in FedAvg.
    5. Computing the upload from the samples takes no virtual time.

Example:
    >>> import fedray
    >>> scenario = {"rounds": 3, "clients": {"number": 10}, "local": {"lr": 0.1, "epochs": 5}, "runtime": "inline"}
    >>> run = fedray.run(scenario, method={"name": "fedpa", "burn_in": 1}, report=False)
    >>> print(f"{run.summary['metrics']['accuracy']['mean']:.1f}")
    0.9
"""

from __future__ import annotations

from fedray.core.options import MethodSpec, Option, real, whole
from fedray.methods import kit

SPECS = {
    "fedpa": MethodSpec(
        "FedPA: clients sample posteriors, and send the precision times the step to the mean (Al-Shedivat et al. 2021)",
        family="Bayesian",
        options={
            "samples": Option(
                4,
                whole(1, 10**4),
                "l, the number of samples in a local training; each is the mean over a window of steps",
            ),
            "rho": Option(
                0.1, real("[0, inf)"), "the samples' covariance has (l - 1) rho times the weight of the identity"
            ),
            "burn_in": Option(0, whole(0, 10**7), "rounds of FedAvg before the first one in which clients sample"),
            "mixing": Option(0.2, real("[0, 1)"), "share of the steps of a local training before its first sample"),
        },
        defaults={"method": {"models": 1}, "server": {"weighting": "examples"}},
    ),
}


def fedpa(setting: kit.Setting) -> kit.Method:
    """Composes FedPA with K models, `[K, d]`. A client receives and sends as many bytes as in FedAvg."""
    options = setting.options
    sampled = kit.Windows(
        kit.one_shot.correct_by_precision(options["rho"]),  # S_i^-1 (w - m_i) of the samples, in time l^2 p
        number=options["samples"],  # means over windows of SGD's iterates
        mixing=options["mixing"],
        burn_in=options["burn_in"],  # rounds of FedAvg first
    )
    phase = kit.federated(
        setting,
        assign=kit.permutation,  # the clients that take part, from the broadcast w
        compress=kit.dense,
        pieces=[sampled],  # local sampling instead of local descent
        merge=kit.mean,  # a step by the mean delta, or by `server.optimizer` if it is set
    )
    return kit.Method("fedpa", phase)
