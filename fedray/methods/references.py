r"""References without a federation by the same scenario keys: what pooling the data, or not sharing at all, gives.

`centralized` and `deep_ensemble` (Lakshminarayanan, Pritzel, Blundell, *Simple and Scalable Predictive Uncertainty
Estimation using Deep Ensembles*, NIPS 2017, section 2.4, without adversarial examples): one client holds every row, and
a round is `local.epochs` passes over it. `local_only`: every client trains a model of its own.

Formulas of centralized:
    One client holds all rows, and a round is `local.epochs` passes over them: $w \leftarrow \mathrm{Train}(w; F)$ with
    $F = \sum_i \frac{n_i}{n} F_i$.

Formulas of local_only:
    $w_i \leftarrow \mathrm{Train}(w_i; F_i)$ in every round in which client $i$ takes part. Nothing is averaged. A
    known client answers with $w_i$, a new one gets the average of all answers. For that average client $i$ sends $w_i$
    after each round, and these bytes count as `up_bytes`; it goes on from the $w_i$ that it has, so nothing is sent
    down.

Formulas of deep_ensemble:
    $K$ networks with outputs $\mu_w(x), \sigma_w^2(x)$ train on the pooled data, each from its own start, by

    $$
    \ell(w; x, y) = \frac{1}{2} \log \sigma_w^2(x) + \frac{(y - \mu_w(x))^2}{2 \, \sigma_w^2(x)},
    $$

    and the answer has the moments of their mixture,

    $$
    \mu(x) = \frac{1}{K} \sum_k \mu_k(x), \qquad \sigma^2(x) = \frac{1}{K} \sum_k \bigl(\sigma_k^2(x) +
    \mu_k^2(x)\bigr) - \mu^2(x).
    $$

    With classes (set `model.objective` to `auto`) the loss is the cross entropy, and the mean of the networks'
    probabilities answers.

Deviations:
    1. Traffic is counted as if the one client sent its models to a server after each round.
    2. `local_only` answers new clients by the plain average of its N models (`accuracy_mean` is the single client's);
       a known client answers with its own. For that average each client sends its model after each round, and these
       bytes count; it goes on from its own model, so that nothing is sent down.

Example:
    >>> import fedray
    >>> scenario = {"data": {"partition": {"name": "classes", "classes": 2}}, "rounds": 1, "clients": {"number": 10}}
    >>> for name in ("local_only", "centralized"):
    ...     run = fedray.run(scenario, method=name, local={"epochs": 5, "lr": 0.03}, runtime="inline", report=False)
    ...     print(f"{name} {run.summary['metrics']['accuracy_mean']['mean']:.1f}")
    local_only 0.2
    centralized 0.9
"""

from __future__ import annotations

from dataclasses import replace

from fedray.core.options import MethodSpec
from fedray.methods import kit

SPECS = {
    "centralized": MethodSpec(
        "one model on the pooled data: the upper reference",
        family="references",
        models="one",
        defaults={"method": {"models": 1}},
        pooled=True,
        averages=False,
        coefficients=False,
        schedules=False,
    ),
    "local_only": MethodSpec(
        "one model for each client, nothing is shared: the lower reference",
        family="references",
        models="clients",
        defaults={"method": {"models": 1}, "evaluate": {"personal": True}},
        averages=False,
        coefficients=False,
        schedules=False,
        downloads=False,
        own_models=True,
    ),
    "deep_ensemble": MethodSpec(
        "K independent networks with a Gaussian head on the pooled data (Lakshminarayanan et al. 2017)",
        family="references",
        defaults={"model": {"objective": "gaussian_nll"}},
        pooled=True,
        averages=False,
        coefficients=False,
        schedules=False,
    ),
}


def centralized(setting: kit.Setting) -> kit.Method:
    """One model `[1, d]` on the pooled data: the upper reference."""
    return kit.Method("centralized", kit.federated(replace(setting, models=1)))  # its one client holds every row


def deep_ensemble(setting: kit.Setting) -> kit.Method:
    """K models `[K, d]`, each trained on the pooled data from its own start and with its own batches."""
    return kit.Method("deep_ensemble", kit.federated(setting))  # its one client trains all K models


def local_only(setting: kit.Setting) -> kit.Method:
    """N models `[N, d]`, client i trains model i: the lower reference."""
    plan = kit.schedule.schedule(setting.clients, 1, setting.seeds, setting.participation, assign_own_model)
    phase = kit.federated(replace(setting, models=setting.clients.number))
    return kit.Method(
        "local_only", replace(phase.add(kit.Vectors(model=False)), schedule=plan), one_model_per_client=True
    )


def assign_own_model(
    _now: kit.schedule.WorldRound, drawn: kit.schedule.Drawn, _per_client: kit.types.IntArray, _state: kit.State | None
) -> tuple[kit.types.IntArray, kit.types.IntArray]:
    """The assignment rule: participant i trains model i.

    Args:
        _now: the round.
        drawn: the participants.
        _per_client: models of each participant.
        _state: of the server.
    """
    return kit.numpy.arange(len(drawn.client)), drawn.client
