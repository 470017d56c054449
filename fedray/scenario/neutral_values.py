"""Values of keys that say that nothing special is done: they are true, and accepted, also where the key cannot act.

Example:
    >>> is_neutral("participation.mode", "sync"), is_neutral("clients.tiers.weak.width", 1.0), is_neutral("rounds", 1)
    (True, True, False)
"""

from __future__ import annotations

import math
import re
from typing import Any

_NEUTRAL: dict[str, tuple[Any, ...]] = {  # key -> values; * stands for the name of a tier
    "server.weighting": ("uniform",),
    "server.coefficients": ("fedavg",),
    "server.lr": (1,),
    "compress.ratio": (1,),
    "compress.resource_ratio": (1,),
    "schedule.kind": ("permutation", "walk"),  # a walk is refused where there is a server
    "schedule.rows": ("client",),
    "clients.number": (1,),  # where all rows are one client's
    "clients.tiers.*.share": (1,),
    "clients.tiers.*.models_per_round": (1,),
    "clients.tiers.*.width": (1,),
    "data.partition.name": ("iid",),
    "participation.selection.name": ("uniform",),
    "participation.mode": ("sync",),
    "participation.alpha": (1,),
    "participation.staleness": ("constant",),
    "model.objective": ("auto",),
    "participation.overcommit": (1,),
    "participation.fraction": (1,),
    "participation.per_round": (1,),  # where all rows are one client's
    "local.lr_decay": (1,),
    "local.schedule.kind": ("constant",),
    "local.schedule.gamma": (1,),
    "predict.gamma": (math.inf,),
    "predict.average": ("probabilities",),
    "vary": ("all",),
    "lanes": ("auto",),
    "clients.device": ("auto",),
    "graph.transition": ("uniform",),
}


def is_neutral(key: str, value: Any) -> bool:
    """Whether the value of a key says that nothing special is done.

    Args:
        key: dotted.
        value: what it is set to.
    """
    return value in _NEUTRAL.get(re.sub(r"(?<=^clients\.tiers\.)[^.]+", "*", key), ())
