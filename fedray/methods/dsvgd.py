"""DSVGD: particles of the posterior travel from client to client, and each client replaces its own factor of it.

Source: Kassab, Simeone, *Federated Generalized Bayesian Learning via Distributed Stein Variational Gradient Descent*,
IEEE Transactions on Signal Processing 2022, arXiv 2009.06419, Alg. 2; names and numbers as in kclip/DSVGD.

The K models are particles of `q(w) = p_0(w) prod_k t_k(w)`. In each round one client gets them. It moves all of them
together, by SVGD, to `q / t_k exp(-losses / temperature)`: its old factor is divided out, and its rows are put in. What
has changed goes to its new factor, `t_k <- t_k q_new / q`, by SVGD of particles of its own, which never leave it. As
in the authors' code these stand for `t_k p_0` and begin as the first particles, so that `t_k = 1` needs no other form.

Deviations:
    1. Densities of particles are compared by their logarithms. The authors' code adds 1e-10 to each density, and those
       of a network's weights lie below that by hundreds of powers of ten: there neither q nor t_k has a gradient.
    2. A likelihood is the network's own loss, summed over the client's rows: cross entropy, squared errors (where
       `temperature` is twice the variance of the noise), or a Gaussian head. No particle has the noise's precision.
    3. First particles are the network's usual first weights, and no draws from p_0, as in the authors' code.
    4. Batches go through the rows in a new order in every epoch; theirs keep the order of the file. All particles of a
       client see the same ones, as theirs do.
    5. The paper's round 1 trains. The authors' code changes nothing in its round 1.
    6. The steps of the client's own particles (`factor_steps`) take no virtual time.
    7. `decay: none` moves particles by `local.optimizer` instead of the authors' rule (AdaGrad with a decay).
    8. One client a round, in turn or as another selection has it; several are refused. Uploads are not compressed.

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
from fedray.methods import kit


def dsvgd(setting: kit.Setting) -> kit.Method:
    """K particles `[K, d]`, one client a round; traffic of each of its K jobs: d numbers down, d up.

    Raises:
        BadInput: Several clients take part in a round, uploads are compressed, or clients train with an optimizer of
            their own, weight decay or a pull.
    """
    options, decay = setting.options, setting.options["decay"]
    _check_rounds(setting)
    _check_local(setting.local, decay)
    target = kit.particles.Target(options["temperature"], options["precision"], options["bandwidth"])
    phase = kit.federated(
        replace(setting, assign=None),
        assign=kit.clusters.every_model,  # the scheduled client downloads all particles
        local=replace(
            setting.local,
            # L steps of q, L' of t_k
            particles=kit.particles.approach(target, setting.models, options["factor_steps"]),
            step=None if decay == "none" else kit.particles.divide_by_root(decay),
        ),
        compress=kit.dense,
        merge=kit.mean,  # of one client: what it sends is what the next one gets
    )
    return kit.Method("dsvgd", phase)


def _check_rounds(setting: kit.Setting) -> None:
    """Refuses what would make q another one than the product of the factors that clients keep."""
    if setting.participants > 1:
        raise BadInput(
            f"participation invites {setting.participants} clients a round, but clients of DSVGD train one after "
            "another: set participation.per_round to 1, without overcommit"
        )
    if setting.compress is not None:
        raise BadInput(
            "the section compress shortens uploads, but a client of DSVGD keeps the factor of all that it has trained: "
            "leave it out"
        )


def _check_local(local: kit.Local, decay: float | str) -> None:
    """Refuses other optimizers and other priors than the method's own."""
    kit.base.check_own_prior(local, "DSVGD", "method.precision")
    if decay != "none" and (local.optimizer != "sgd" or local.momentum):
        key, value = ("momentum", local.momentum) if local.optimizer == "sgd" else ("optimizer", local.optimizer)
        raise BadInput(
            f"local.{key} = {value}, but method.decay is {decay:g}, whose steps are divided by their own root: set "
            "method.decay to none, or leave it out"
        )
