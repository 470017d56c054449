"""References without a federation, through the same scenario keys: what pooling the data, or not sharing at all, gives.

`centralized` and `deep_ensemble` (Lakshminarayanan, Pritzel, Blundell, *Simple and Scalable Predictive Uncertainty
Estimation using Deep Ensembles*, NIPS 2017, section 2.4, without adversarial examples): one client holds every row, and
a round is `local.epochs` passes over it. `local_only`: every client trains a model of its own.

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

import numpy as np

from fedray.methods import kit


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
    return kit.Method("local_only", replace(phase, schedule=plan, down_vectors=0), one_model_per_client=True)


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
    return np.arange(len(drawn.client)), drawn.client
