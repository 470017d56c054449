"""References without a federation, through the same scenario keys: what pooling the data, or not sharing at all, gives.

`centralized` and `deep_ensemble` (Lakshminarayanan, Pritzel, Blundell, *Simple and Scalable Predictive Uncertainty
Estimation using Deep Ensembles*, NIPS 2017, section 2.4, without adversarial examples): one client holds every row, and
a round is `local.epochs` passes over it. `local_only`: every client trains a model of its own.

Deviations:
    1. Traffic is counted as if the one client sent its models to a server after each round.
    2. `local_only` answers new clients by the plain average of its N models (`accuracy_mean` is the single client's);
       a known client answers with its own.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedray.components.schedule import Drawn, schedule
from fedray.core.method import Method
from fedray.core.types import IntArray, State
from fedray.methods.fed_ensemble import fed_ensemble
from fedray.methods.setting import Setting


def centralized(setting: Setting) -> Method:
    """One model `[1, d]` on the pooled data: the upper reference."""
    return replace(fed_ensemble(replace(setting, models=1)), name="centralized")


def deep_ensemble(setting: Setting) -> Method:
    """K models `[K, d]`, each trained on the pooled data from its own start and with its own batches."""
    return replace(fed_ensemble(setting), name="deep_ensemble")


def local_only(setting: Setting) -> Method:
    """N models `[N, d]`, client i trains model i: the lower reference."""
    everyone = replace(setting, models=setting.clients.number)
    plan = schedule(setting.clients, 1, setting.seeds, setting.participation, assign_own_model)
    base = fed_ensemble(everyone)
    return Method("local_only", replace(base.phase, schedule=plan), one_model_per_client=True)


def assign_own_model(
    seed: int, t: int, drawn: Drawn, m: IntArray, state: State | None, world: int
) -> tuple[IntArray, IntArray]:
    """The assignment: participant i trains model i."""
    return np.arange(len(drawn.client)), drawn.client
