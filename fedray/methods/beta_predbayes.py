"""β-Predictive Bayes: clients send samples of their posterior once; beta says how far their answers multiply.

Source: Hasan, Zhang, Guo, Chen, Poupart, *Calibrated One Round Federated Learning with Bayesian Inference in the
Predictive Space*, AAAI 2024, arXiv 2312.09817; details are those of the authors' code (hasanmohsin/betaPredBayesFL).

A client samples M networks by cyclical SGHMC. The mean of their probabilities is its answer p_k. The product of all p_k
(BCM) is right where clients have different rows of one kind, and too sure where they have seen other labels; their
mean Q is too unsure. Between the two lies `log p_beta = beta log P + (1 - beta) log Q + const`, and the server finds
the beta of least log loss on labelled rows of its own.

Deviations:
    1. The noise has `temperature` 1 by default, so that samples are those of the client's posterior, with n its own
       rows. The authors' code has n of all clients' rows together and a temperature of 1 / n, which is little noise.
    2. The place in a cycle is the share of its steps that are done, and samples are taken at equal distances in the
       part with noise. In the code batches and epochs count, and its cosine reads the batch size for the number of
       batches. `local.momentum` is 1 - a: the code's a is 0.9.
    3. The server's rows (`server_data`, 0.2) are taken from the clients at random, also for a fixed `beta`, so that all
       values of it have the same samples. Prior shares of the classes are equal in the product, as in the code.
    4. Products are sums of logarithms, and nothing is cut off at 1e-41.
    5. The fit takes the virtual time that its steps take on the device of client 0, and no bytes.
    6. The last step, distillation into one network, is `Run.distil`, for any method. Regression is left out.
    7. A client whose training fails, that drops out, or that has no rows, answers with its first network. One with
       fewer steps than samples sends some of them twice, which is said, and cycles of one or two steps have no noise.
       In later rounds the chains go on, at rest, and the last round's samples count.
    8. Normalization layers with running statistics are refused: each sample would need its own.

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
from fedray.methods import kit
from fedray.methods.references import assign_own_model


def beta_predbayes(setting: kit.Setting) -> kit.Method:
    """N times M samples `[N, M p]`, those of client i in row i; then beta `[1, 1]`, which the server fits.

    `fedray.simulation.stacking` makes one study of the two.

    Raises:
        BadInput: clients train with another optimizer than SGD, the network has running statistics, or there are fewer
            samples than are to be kept.
    """
    stack = setting.stack
    if stack is None or stack.meta is None:
        raise BadInput("method.name = beta_predbayes: its samples come from a scenario: run it by fedray.run")
    _check(setting.local, setting.layout)
    alone = replace(
        setting,
        models=setting.clients.number,
        optimizer=kit.setting.Optimizer(),
        robust=kit.setting.Robust(),
        coefficients=None,
    )
    own = kit.schedule.schedule(
        setting.clients, 1, setting.seeds, kit.schedule.invite_all(setting.clients), assign_own_model
    )
    samples = kit.federated(alone, local=_sample(setting))  # steps 1 and 2: cSGHMC, one upload
    epochs, batch = (setting.options[key] for key in ("beta_epochs", "beta_batch"))
    descent = kit.Local(optimizer="adam", lr=stack.meta_lr, epochs=epochs, batch_size=batch)
    plain = replace(alone, models=1, layout=stack.meta.layout, compress=None)
    fit = kit.federated(plain, local=descent)  # step 5: beta by the server's rows; steps 3 and 4 are its network
    parts = (replace(samples, schedule=own), fit)
    return kit.Method("beta_predbayes", parts[0], parts=parts)


def read_cycles(options: Mapping[str, Any]) -> kit.one_shot.Cycles:
    """When chains take samples, from the options.

    Args:
        options: of the method.
    """
    return kit.one_shot.Cycles(
        options["cycles"], options["samples_per_cycle"], options["samples"], options["exploration"]
    )


def _sample(setting: kit.Setting) -> kit.Local:
    """Local training by SGHMC."""
    local, cycles = setting.local, read_cycles(setting.options)
    if cycles.samples > cycles.number * cycles.per_cycle:
        raise BadInput(
            f"method.samples = {cycles.samples}, but {cycles.number} x {cycles.per_cycle} are taken (method.cycles, "
            "method.samples_per_cycle): lower it, or raise one of these"
        )
    p, temperature = setting.layout.trainable // cycles.samples, setting.options["temperature"]
    return replace(local, step=kit.one_shot.sample_posterior(cycles, local.momentum, temperature, p), momentum=0.0)


def _check(local: kit.Local, layout: kit.Layout) -> None:
    """Refuses what the sampler would leave out, or share among samples."""
    if local.optimizer_name != "sgd":
        raise BadInput(f"local.optimizer = {local.optimizer_name}, but beta_predbayes samples by SGHMC: set it to sgd")
    if layout.d > layout.trainable or layout.counters:
        raise BadInput(
            "model: a normalization layer has running statistics, of which each sample would need its own: choose one "
            "without, as model.norm = layer"
        )
