r"""DSVGD: particles of the posterior travel from client to client, and each client updates its factor of the posterior.

Source: Kassab, Simeone, *Federated Generalized Bayesian Learning via Distributed Stein Variational Gradient Descent*,
IEEE Transactions on Signal Processing 2022, arXiv 2009.06419, Alg. 2. Names and default values are from the code
kclip/DSVGD.

In each round one client receives the particles, which are the K models. The client moves all of them together by Stein
variational gradient descent (SVGD). They move towards a density in which the likelihood of the client's data replaces
the client's old factor. Other particles, which never leave the client, represent its factor.

Formulas of dsvgd:
    The $K$ models are particles $w_1, \dots, w_K$ of the posterior of all samples. This posterior is the product of the
    prior and of a factor for each client:

    $$
    q(w) = p_0(w) \prod_i t_i(w), \qquad p_0 = \mathcal N(0, 1/c), \qquad t_i = 1 \text{ at first}.
    $$

    $c$ is the `precision`. Let $\alpha$ be the `temperature`, $n_i$ the number of the samples of client $i$, and
    $\ell_i$ their mean loss. At client $i$ the particles move together towards the density $\tilde p_i$:

    $$
    \log \tilde p_i(w) = \log q(w) - \log \bigl(t_i p_0\bigr)(w) + \log p_0(w) - \frac{n_i}{\alpha} \, \ell_i(w).
    $$

    The particles make `local.steps` steps of SVGD. Particle $w_m$ moves along $\phi(w_m)$, a mean of gradients weighted
    by the kernel $k$, plus a term that pushes particles apart. The median is over all $K^2$ pairs:

    $$
    \phi(w_m) = \frac1K \sum_j k(w_j, w_m) \, \nabla \log \tilde p_i(w_j) + \nabla_{w_j} k(w_j, w_m), \qquad
    k(v, w) = e^{-\lVert v - w \rVert^2 / 2h}, \qquad h = \frac{\operatorname{median} \lVert w_j - w_m \rVert^2}{2 \log
    (K + 1)} .
    $$

    A density that is known only by its particles $w_j$ is approximated by the mean of Gaussian kernels of width
    $\lambda$ (`bandwidth`) around the particles. The gradient of the density's logarithm is

    $$
    \nabla \log q(w) = \frac{1}{\lambda^2} \Bigl( \sum_j s_j w_j - w \Bigr), \qquad s = \operatorname{softmax}_j
    \bigl( - \lVert w - w_j
    \rVert^2 / 2 \lambda^2 \bigr) .
    $$

    The client keeps $K$ own particles, which represent $t_i p_0$ and begin as the initial models. After the client's
    training these particles make `factor_steps` steps of SVGD towards the density with the logarithm $\log
    q_{\text{new}} - \log q + \log (t_i p_0)$. The client's factor then contains the change from $q$ to
    $q_{\text{new}}$. The client sends the $K$ models to the server, which sends them to the next client.

    Each step is divided by $10^{-6} + \sqrt g$, where $g$ is a running mean of squares: $g \leftarrow 0.9 \, g + 0.1 \,
    \phi^2$ (`decay`). $g$ starts anew with $g = \phi^2$ in each training and in each move of the client's own
    particles.

    In the first round $q = t_i p_0$, and the training is plain SVGD. At a point that is near only one particle of $q$
    and one particle of $t_i p_0$, the two densities act as a constant force. This force $\nabla \log q - \nabla \log
    (t_i p_0)$ is the difference between the received and the own particle, divided by $\lambda^2$. With $K = 1$ the
    densities have no other effect.

Deviations:
    1. Densities of particles are compared by their logarithms. The authors' code adds 1e-10 to each density. Densities
       of a network's weights are far smaller than 1e-10, so the gradients of q and t_i vanish in the authors' code.
    2. The negative log-likelihood is the network's own loss, summed over the client's samples. The loss is the cross
       entropy, the loss of a Gaussian head, or the squared error. With the squared error, `temperature` is twice the
       variance of the noise. A particle does not contain the precision of the noise.
    3. The first particles are the network's usual initial weights. The authors' code, too, does not draw them from p_0.
    4. Every epoch has a new order of samples. In the authors' code all epochs have the order of the file. All particles
       are trained on the same batches, as in the authors' code.
    5. In the first round the client trains, as in the paper. The first round of the authors' code changes nothing.
    6. In virtual time a step of the client's own particles (`factor_steps`) takes `seconds_per_step`.
    7. With `decay: none` the particles are moved by `local.optimizer` instead of the authors' rule (AdaGrad with a
       decay).
    8. One client trains per round. By default the clients take turns. Several clients per round, and compression, are
       refused.

Example:
    >>> import fedray
    >>> scenario = {"rounds": 4, "clients": 2, "data": {"limit": 400}, "model": {"hidden": [16]}}
    >>> own = {"name": "dsvgd", "models": 4, "factor_steps": 20}
    >>> run = fedray.run(scenario, method=own, local={"lr": 0.03, "steps": 50}, runtime="inline", report=False)
    >>> found = run.summary["metrics"]
    >>> found["accuracy"]["mean"] > found["accuracy_mean"]["mean"] > 0.7
    True
"""

from __future__ import annotations

from dataclasses import replace

from fedray.core.errors import BadInput
from fedray.core.options import MethodSpec, Option, either, real, whole
from fedray.methods import kit

SPECS = {
    "dsvgd": MethodSpec(
        "DSVGD: posterior particles go from client to client; each client updates its factor (Kassab, Simeone 2022)",
        family="Bayesian",
        options={
            "temperature": Option(
                1.0,
                real("(0, inf)"),
                "alpha, by which the losses of all rows are divided: 1 gives the posterior, less than 1 a narrower one",
            ),
            "precision": Option(
                2.718, real("[0, inf)"), "c, precision of each weight's prior (e in the authors' code); 0: no prior"
            ),
            "bandwidth": Option(
                0.55, real("(0, inf)"), "lambda, the width of the Gaussian kernels that turn particles into a density"
            ),
            "factor_steps": Option(200, whole(0, 10**6), "steps of a client's own particles after its training"),
            "decay": Option(
                0.9,
                either("none", real("[0, 1)")),
                "share of the earlier squares in the running mean whose root divides each step; `none` uses "
                "`local.optimizer` instead",
            ),
        },
        defaults={
            "method": {"models": 20},
            "participation": {"per_round": 1, "selection": {"name": "round_robin"}},
            "local": {"optimizer": "sgd", "lr": 0.001, "batch_size": 100, "steps": 200},
        },
        clients=2,
        fixed=("robust", "optimizer", "averages", "coefficients", "schedules"),
        all_models=True,
        in_rounds="trains one client after another",
        private="particles of its factor",
    ),
}


def dsvgd(setting: kit.Setting) -> kit.Method:
    """Composes K models `[K, d]`, which are the particles. One client per round trains all of them.

    The client has K jobs, one for each particle. A job receives and sends d values.

    Raises:
        BadInput: Several clients take part in a round, or uploads are compressed. Local training has weight decay, a
            proximal term, or Nesterov's momentum. The optimizer is not SGD without momentum (with `decay: none`,
            neither SGD nor Adam).
    """
    options, decay = setting.options, setting.options["decay"]
    if setting.participants > 1 or setting.compress is not None:  # q would not be the product of the clients' factors
        raise BadInput(
            "clients of DSVGD train one after another and send all that they have trained: set participation.per_round "
            "to 1, and leave participation.overcommit and the section compress out"
        )
    kit.base.check_own_prior(setting.local, "DSVGD", "method.precision")
    if decay != "none":
        name, momentum = setting.local.optimizer, setting.local.momentum
        kit.base.require("DSVGD (method.decay)", local__optimizer=(name, "sgd"), local__momentum=(momentum, 0))
    density = {key: options[key] for key in ("temperature", "precision", "bandwidth")}
    phase = kit.federated(
        replace(setting, assign=None),
        assign=kit.schedule.every_model,  # the scheduled client downloads all particles
        local=replace(setting.local, step=None if decay == "none" else kit.particles.divide_by_root(decay)),
        compress=kit.dense,
        # L steps of the particles of q, and L' steps of the particles of t_k
        pieces=[kit.particles.approach(setting.models, options["factor_steps"], **density)],
        merge=kit.mean,  # the mean over one client: the next client receives what this client sent
    )
    return kit.Method("dsvgd", phase)
