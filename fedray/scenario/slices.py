"""The methods whose weak clients train a part of the network, as scenarios know them; without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedray.core.spec import MethodSpec, Option
from fedray.core.validators import flag
from fedray.scenario.clients import TierKeys

_TIERS: dict[str, Any] = {  # the devices of SHEFL, whose weak ones train narrow networks instead of fewer
    "hpc": {"share": 0.5, "seconds_per_step": 0.002, "uplink": 12.5e6},
    "lpc": {"share": 0.5, "width": 0.25, "seconds_per_step": 0.01, "uplink": 1.25e6},
}
_SAME: dict[str, Any] = {
    "options": {"scaler": Option(False, flag)},
    "defaults": {"method": {"models": 1}, "clients": {"tiers": _TIERS}},
    "robust": False,
    "optimizer": False,
    "coefficients": False,
    "in_rounds": "averages what the clients of a round have trained, part by part",
    "slices": True,
}
SLICE_SPECS: Mapping[str, MethodSpec] = {
    "heterofl": MethodSpec(
        "HeteroFL: a tier trains the first channels of every layer, as wide as it can (Diao et al. 2021)",
        own_models=True,
        **_SAME,
    ),
    "fedrolex": MethodSpec("FedRolex: HeteroFL whose slices roll over the channels (Alam et al. 2022)", **_SAME),
}


def explain_idle_width(key: str, tiers: Mapping[str, TierKeys], spec: MethodSpec, name: str) -> str:
    """Why a key of slices cannot act; empty if it can, or is no such key.

    Args:
        key: dotted.
        tiers: of the scenario.
        spec: of the method.
        name: of the method.

    Example:
        >>> explain_idle_width("clients.tiers.a.width", {"a": TierKeys(width=0.5)}, MethodSpec("plain"), "fedavg")
        'every client of fedavg trains the whole network'
    """
    if key.startswith("clients.tiers.") and key.endswith(".width") and not spec.slices:
        return f"every client of {name} trains the whole network"
    cuts_nothing = all(tier.width == 1 for tier in tiers.values())
    return "no tier has a width below 1" if key == "method.scaler" and cuts_nothing and spec.slices else ""
