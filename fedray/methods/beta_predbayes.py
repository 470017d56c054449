r"""β-Predictive Bayes: the prediction lies between the product and the mean of the clients' Bayesian predictions.

Source: Hasan, Zhang, Guo, Chen, Poupart, *Calibrated One Round Federated Learning with Bayesian Inference in the
Predictive Space*, AAAI 2024, arXiv 2312.09817; details follow the authors' code (hasanmohsin/betaPredBayesFL).

A client samples M networks by cyclical SGHMC (stochastic gradient Hamiltonian Monte Carlo), and sends them once. The
product of the clients' predictions (a Bayesian committee machine) is right if the data of all clients come from one
distribution. If clients have different labels, the product is too confident. The mean of the clients' predictions is
not confident enough. An exponent beta mixes the product and the mean. The server chooses beta on its own labelled data.

Formulas of beta_predbayes:
    Client $k$ starts at its own initial weights $w$, and samples its posterior by SGHMC. A training has $L$ steps, $s =
    0, \dots, L - 1$. The steps form $c$ cycles (`cycles`) of the length $L / c$, which may be a fraction. The
    fractional part $r_s \in [0, 1)$ of $s c / L$ is the position of step $s$ in its cycle. Each step changes the
    velocity $b$ and moves $w$. The learning rate $\eta_s$ falls from $\eta$ (`local.lr`) to 0 in each cycle. $T$ is the
    `temperature`:

    $$
    b \leftarrow (1 - a) \, b - \eta_s \, g + \mathbb{1}_s \sqrt{\frac{2 a \, \eta_s T}{n_k}} \; \varepsilon, \qquad w
    \leftarrow w + b,
    \qquad \eta_s = \frac{\eta}{2} \left(1 + \cos \pi r_s\right).
    $$

    The friction is $a = 1 -$ `local.momentum`. $g$ is the gradient of the mean loss of a batch, with weight decay.
    $n_k$ is the number of the client's training samples, without those that the server took. $\varepsilon$ is a
    standard normal number for each weight. The velocity is 0 at the start of a local training, and is not reset between
    cycles. The noise is added in the later part of a cycle: $\mathbb{1}_s$ is 1 if $r_s \ge e$ (`exploration`), and 0
    otherwise.

    A cycle gives $q$ sampled networks (`samples_per_cycle`). Sample $j = 1, \dots, q$ of cycle $i = 0, \dots, c - 1$ is
    $w$ after $\bigl\lceil (i + e + (1 - e) \, j / q) \, L / c \bigr\rceil$ steps. The last sample is taken at the end
    of the cycle.

    On a quadratic mean loss with curvature $h$, at a small constant rate, the variance of $w$ is $T / (n_k h)$. For $T
    = 1$ this is the variance of the posterior. The client sends its last $M$ samples (`samples`). Their mean prediction
    is $p_k$. $P$ is the normalized product of all $p_k$, and $Q$ is the mean of all $p_k$:

    $$
    p_k(y \mid x) = \frac1M \sum_m p(y \mid x, w_{km}), \qquad
    P(y \mid x) \propto \prod_{k=1}^N p_k(y \mid x), \qquad Q(y \mid x) = \frac1N \sum_k p_k(y \mid x).
    $$

    The prediction $p_\beta$ lies between $P$ and $Q$:

    $$
    \log p_\beta(y \mid x) = \beta \log P(y \mid x) + (1 - \beta) \log Q(y \mid x) - \log \sum_{y'} e^{\beta \log P(y'
    \mid x) + (1 - \beta) \log Q(y' \mid x)}
    $$

    If $\beta > 1$, $1 - \beta$ is replaced by 0. If $\beta < 0$, the factor $\beta$ of $\log P$ is replaced by 0.
    `beta: fit` finds the $\beta$ with the smallest $-\sum \log p_\beta(y \mid x)$ on the server's samples. The fit uses
    Adam ($\beta_1 = 0.9$, $\beta_2 = 0.999$), starts at 0.5, and makes `beta_epochs` passes over these samples in
    batches of `beta_batch`.

    Between 0 and 1 the log loss is a convex function of $\beta$. The fit may give a $\beta$ above 1. Then the
    prediction is $P^\beta$, normalized to sum 1. With a $\beta$ below 0 it is $Q^{1 - \beta}$, normalized. A step of
    Adam moves $\beta$ by about `beta_lr`. If the server has few samples, choose a larger `beta_lr` or more
    `beta_epochs`. If `beta` is a number, nothing is fitted.

Deviations:
    1. By default the noise has the `temperature` 1, so that a client samples its posterior. In the authors' code n_k is
       the number n of samples of all clients together, and the temperature is 1 / n. The noise is then small.
    2. The position in a cycle is the fraction of the cycle's steps that are done. In the part of a cycle that has
       noise, samples are taken at equal intervals. The authors' code counts batches and epochs, and its cosine uses the
       batch size instead of the number of batches.
    3. The server takes a random share of the clients' samples (`server_data`, by default 0.2), even if `beta` is fixed.
       So runs with different `beta` train on the same samples. All classes have the same prior probability, as in the
       authors' code.
    4. Products are computed as sums of logarithms. So even probabilities below 1e-41 affect a product.
    5. The fit costs no bytes. A step of the fit takes `server.seconds_per_step`, which is 0 by default.
    6. The paper's last step distils the result into one network. `Run.distil` does this for any method. The
       paper's regression is not implemented.
    7. A client that drops out, has no training samples, or fails in training predicts with its initial network. If a
       client makes fewer steps than `samples`, it sends some networks twice. By default cycles of one or two steps have
       no noise. In later rounds a client continues with $b = 0$, and only the networks of the last round predict.
    8. Normalization layers with running statistics are refused, because each sample would need its own statistics.

Example:
    >>> import fedray
    >>> scenario = {"data": {"partition": {"name": "classes", "classes": 4}}, "local": {"batch_size": 20, "epochs": 6}}
    >>> for beta in (0, "fit", 1):
    ...     method = {"name": "beta_predbayes", "beta": beta, "samples": 2, "cycles": 1}
    ...     found = fedray.run(scenario, method=method, runtime="inline", report=False).summary["metrics"]
    ...     print(beta, *(f"{found[name]['mean']:.1f}" for name in ("accuracy", "nll")))
    0 0.9 1.1
    fit 0.9 0.3
    1 0.9 0.3
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedray.core.errors import BadInput
from fedray.core.options import MethodSpec, Needs, Option, either, real, whole
from fedray.methods import kit
from fedray.methods.references import own_model, set_alone

FIT = "fit"  # the value of `method.beta` with which the server finds beta
_IS_FITTED = Needs("method.beta", (FIT,))


def add_samples(net: Any, options: Mapping[str, Any], _shape: tuple[int, ...], name: str) -> Any:
    """Returns a network whose parameters are several samples of the weights of `net`."""
    return kit.net.Samples(net, options["samples"], name)


def join_samples(net: kit.types.Net, clients: int, classes: int, rounds: int, options: Mapping[str, Any]) -> Any:
    """Returns the stack (two layers of models) of β-Predictive Bayes. A meta model combines the clients' networks.

    The stack's first layer has the models that each client sampled from its posterior. The meta model is the scalar
    beta.

    Raises:
        BadInput: Beta is to be fitted, but the server has no samples.
    """
    fitted = options["beta"] == FIT
    if fitted and not options["server_data"]:
        raise BadInput(
            "method.server_data = 0, but method.beta = fit: give the server a share of the rows, or give method.beta a "
            "number"
        )
    return kit.stacking.Stack(
        bases=(kit.stacking.Base(net, clients),),
        meta=kit.stacking.build_interpolation(classes, 0.5 if fitted else float(options["beta"])),
        rounds=rounds,
        meta_rounds=int(fitted),
        meta_lr=options["beta_lr"],
        meta_optimizer="adam",
        combine="mean",
        at_server=True,
        answers_at_once=True,
        name="beta_predbayes",
    )


SPECS = {
    "beta_predbayes": MethodSpec(
        "β-Predictive Bayes: clients sample their posteriors; predictions lie between their product and their mean "
        "(Hasan et al. 2024)",
        family="one shot",
        models="clients",
        classes=True,
        options={
            "samples": Option(6, whole(1, 1000), "M, how many samples each client sends: the last ones that it takes"),
            "cycles": Option(
                5,
                whole(1, 10**4),
                "cycles of the learning rate in a local training, each of which begins anew with the whole rate",
            ),
            "samples_per_cycle": Option(
                2, whole(1, 10**4), "samples that a client takes in each cycle, the last one at its end"
            ),
            "exploration": Option(
                0.6,
                real("[0, 1)"),
                "share of a cycle without noise, before the part with noise in which the samples are taken",
            ),
            "temperature": Option(
                1.0,
                real("[0, inf)"),
                "T, by which the variance of the noise is multiplied: 1 samples the posterior, 0 is SGD with momentum",
            ),
            "beta": Option(
                FIT,
                either(FIT, real("[0, 1]")),
                "1 answers with the product of the clients' answers, 0 with their mean; `fit` finds the number on "
                "the server's rows",
            ),
            "server_data": Option(
                0.2,
                real("[0, 1)"),
                "share of the training rows that the server holds instead of the clients, with labels, to find beta",
            ),
            "beta_epochs": Option(
                10, whole(1, 10**6), "passes over the server's rows to find beta, which begins at 0.5", _IS_FITTED
            ),
            "beta_lr": Option(0.01, real("(0, inf)"), "learning rate of Adam for beta", _IS_FITTED),
            "beta_batch": Option(100, whole(1, 10**6), "rows of a batch for beta", _IS_FITTED),
        },
        defaults={
            "method": {"models": 1},
            "rounds": 1,
            "local": {"lr": 0.1, "momentum": 0.1, "weight_decay": 0.0005, "batch_size": 100, "epochs": 25},
        },
        clients=5,
        fixed=("robust", "optimizer", "averages", "coefficients", "schedules"),
        downloads=False,
        in_rounds="trains its parts one after another, in rounds",
        parts=True,
        sampled=True,
        server_steps=True,
        stack=join_samples,
        network=add_samples,
    ),
}


def beta_predbayes(setting: kit.Setting) -> kit.Method:
    """Composes two trainings: the clients sample networks, and then the server fits beta.

    In the first training, each of N clients samples M networks of p parameters, `[N, M p]`. In the second training,
    beta is the model, `[1, 1]`.

    `fedray.simulation.stacking` joins the two trainings into one run.

    Raises:
        BadInput: Clients train with an optimizer other than SGD, the network has running statistics, or `cycles` times
            `samples_per_cycle` is less than `samples`.
    """
    stack = setting.stack
    assert stack is not None and stack.meta is not None
    kit.base.require(
        "beta_predbayes (SGHMC)",
        local__optimizer=(setting.local.optimizer_name, "sgd"),
        local__nesterov=(setting.local.nesterov, False),
    )
    if setting.layout.d > setting.layout.trainable or setting.layout.counters:
        raise BadInput(
            "model: a normalization layer has running statistics, of which each sample would need its own: choose one "
            "without, as model.norm = layer"
        )
    alone = set_alone(setting)
    samples = kit.federated(alone, assign=own_model, local=_sample(setting))  # steps 1 and 2: cSGHMC, one upload
    epochs, batch = (setting.options[key] for key in ("beta_epochs", "beta_batch"))
    descent = kit.Local(optimizer="adam", lr=stack.meta_lr, epochs=epochs, batch_size=batch)
    plain = replace(alone, models=1, layout=stack.meta.layout, compress=None, participation=setting.participation)
    fit = kit.federated(plain, local=descent)  # step 5: fit beta on the server's samples; the stack does steps 3, 4
    parts = (samples, fit)
    return kit.Method("beta_predbayes", parts[0], parts=parts)


def _sample(setting: kit.Setting) -> kit.Local:
    """Returns local training by stochastic gradient Hamiltonian Monte Carlo."""
    local, options = setting.local, setting.options
    cycles = kit.one_shot.Cycles(
        options["cycles"], options["samples_per_cycle"], options["samples"], options["exploration"]
    )
    if cycles.samples > cycles.number * cycles.per_cycle:
        raise BadInput(
            f"method.samples = {cycles.samples}, but {cycles.number} x {cycles.per_cycle} are taken (method.cycles, "
            "method.samples_per_cycle): lower it, or raise one of these"
        )
    p = setting.layout.trainable // cycles.samples
    step = kit.one_shot.sample_posterior(cycles, local.momentum, options["temperature"], p)
    return replace(local, step=step, momentum=0.0)
