"""Values of keys that say that nothing special is done: they are true, and accepted, also where the key cannot act."""

from __future__ import annotations

import math
from typing import Any

NEUTRAL_VALUES: dict[str, Any] = {
    "server.weighting": "uniform",
    "server.coefficients": "fedavg",
    "schedule.kind": "permutation",
    "participation.selection.name": "uniform",
    "participation.mode": "sync",
    "model.objective": "auto",
    "participation.overcommit": 1,
    "participation.fraction": 1,
    "local.lr_decay": 1,
    "local.schedule.kind": "constant",
    "local.schedule.floor": 0,
    "predict.gamma": math.inf,
    "predict.average": "probabilities",
    "vary": "all",
    "clients.device": "auto",
    "clients.tf32": False,
    "graph.transition": "uniform",
}
