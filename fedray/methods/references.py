r"""Composes reference methods, which train on the samples of all clients together, or on each client's samples alone.

`deep_ensemble` is from Lakshminarayanan, Pritzel, Blundell, *Simple and Scalable Predictive Uncertainty Estimation
using Deep Ensembles*, NIPS 2017, section 2.4, without adversarial examples.

Formulas of centralized:
    One client holds all samples, and a round is `local.epochs` passes over them: $w \leftarrow \mathrm{Train}(w; F)$
    with $F = \sum_i \frac{n_i}{n} F_i$.

Formulas of local_only:
    A client that takes part in a round trains its own model: $w_i \leftarrow \mathrm{Train}(w_i; F_i)$. Nothing is
    averaged. Client $i$ predicts with $w_i$. For a new client the mean of all models' predictions is the prediction.

Formulas of deep_ensemble:
    $K$ networks with outputs $\mu_w(x), \sigma_w^2(x)$ train on the pooled data, each from its own start. Their loss is
    a Gaussian's negative log-likelihood without its constant:

    $$
    \ell(w; x, y) = \frac{1}{2} \log \sigma_w^2(x) + \frac{(y - \mu_w(x))^2}{2 \, \sigma_w^2(x)}.
    $$

    The mixture of the networks' Gaussians gives the mean and the variance of the prediction:

    $$
    \mu(x) = \frac{1}{K} \sum_k \mu_k(x), \qquad \sigma^2(x) = \frac{1}{K} \sum_k \bigl(\sigma_k^2(x) +
    \mu_k^2(x)\bigr) - \mu^2(x).
    $$

    For classification set `model.objective` to `auto`: the loss is then the cross entropy, and the mean of the
    networks' probabilities predicts.

Deviations:
    1. In `centralized` and `deep_ensemble` traffic is counted as if a single client sent its models to a server after
       each round.
    2. In `local_only` each client sends its model after each round, because new clients need all models. These bytes
       count as `up_bytes`. Nothing is sent down, because a client continues from its own model. `accuracy_mean` is the
       mean accuracy of the single models.

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
        fixed=("averages", "coefficients", "schedules"),
    ),
    "local_only": MethodSpec(
        "one model for each client, nothing is shared: the lower reference",
        family="references",
        models="clients",
        defaults={"method": {"models": 1}, "evaluate": {"personal": True}},
        fixed=("averages", "coefficients", "schedules"),
        downloads=False,
        own_models=True,
    ),
    "deep_ensemble": MethodSpec(
        "K independent networks with a Gaussian head on the pooled data (Lakshminarayanan et al. 2017)",
        family="references",
        defaults={"model": {"objective": "gaussian_nll"}},
        pooled=True,
        fixed=("averages", "coefficients", "schedules"),
    ),
}


def centralized(setting: kit.Setting) -> kit.Method:
    """Composes one model `[1, d]` that is trained on the samples of all clients, as an upper reference."""
    return kit.Method("centralized", kit.federated(replace(setting, models=1)))  # the single client holds all samples


def deep_ensemble(setting: kit.Setting) -> kit.Method:
    """Composes K models `[K, d]`, each trained on the samples of all clients, with its own start and batches."""
    return kit.Method("deep_ensemble", kit.federated(setting))  # the single client trains all K models


def local_only(setting: kit.Setting) -> kit.Method:
    """Composes N models `[N, d]` as a baseline. Only client i trains model i."""
    own = replace(setting, models=setting.clients.number, assign=None)
    phase = kit.federated(own, assign=own_model, pieces=[kit.Vectors(model=False)])
    return kit.Method("local_only", phase, one_model_per_client=True)


def own_model(_models: int, _rows: str) -> kit.schedule.Assignment:
    """Returns the rule that client i trains model i."""
    return lambda _now, drawn, _per_client, _state: (kit.numpy.arange(len(drawn.client)), drawn.client)


def set_alone(setting: kit.Setting) -> kit.Setting:
    """Returns the setting of a phase in which all clients train models of their own, and the server joins nothing."""
    return replace(
        setting,
        models=setting.clients.number,
        assign=None,
        participation=kit.schedule.invite_all(setting.clients),
        optimizer=kit.servers.Optimizer(),
        robust=kit.setting.Robust(),
        coefficients=None,
    )
