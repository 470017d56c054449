"""The options of FENS, and what acts only where clients train an aggregator together.

Example:
    >>> explain_idle_aggregation("server.lr", {"aggregator": "mean"})
    'method.aggregator is mean, which nobody trains'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedray.core.spec import MethodSpec, Needs, Option
from fedray.core.validators import one_of, real, whole

TRAINED = ("neural", "client_weights", "class_weights")  # aggregators that clients train; the others have no numbers
FIXED = ("mean", "label_shares", "voting")
_IS_TRAINED = Needs("method.aggregator", TRAINED)
_OPTIONS = {
    "aggregator": Option("neural", one_of(*TRAINED, *FIXED)),
    "proxy": Option(0.1, real("(0, 1)"), _IS_TRAINED),
    "width": Option(2, whole(1, 1000), Needs("method.aggregator", ("neural",))),
    "meta_rounds": Option(500, whole(1, 10**7), _IS_TRAINED),
    "meta_lr": Option(1.0, real("(0, inf)"), _IS_TRAINED),
    "meta_batch": Option(128, whole(1, 10**6), _IS_TRAINED),
    "meta_steps": Option(1, whole(1, 10**6), _IS_TRAINED),
}
FENS_SPECS = {
    "fens": MethodSpec(
        "FENS: clients train alone and send their networks once, then train what joins them (Allouah et al. 2024)",
        models="clients",
        options=_OPTIONS,
        defaults={
            "method": {"models": 1},
            "rounds": 1,
            "server": {"optimizer": "adam", "lr": 0.001, "weighting": "examples"},
        },
        clients=20,
        schedules=False,
        in_rounds="trains its parts one after another, in rounds",
        parts=True,
    ),
}
_SECOND = ("server.", "participation.per_round", "participation.fraction", "participation.selection")


def explain_idle_aggregation(key: str, options: Mapping[str, Any]) -> str:
    """Why a dotted key cannot act beside an aggregator that is not trained; empty if it can."""
    kind = options.get("aggregator")
    if kind not in FIXED:
        return ""
    if key.startswith("clients.tiers.") and key.endswith(".downlink"):
        return f"method.aggregator is {kind}, and nothing is sent to the clients"
    return f"method.aggregator is {kind}, which nobody trains" if key.startswith(_SECOND) else ""
