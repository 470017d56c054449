"""The methods whose weak clients train a part of the network, as scenarios know them; without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedray.scenario.spec import MethodSpec, Option
from fedray.scenario.validators import flag

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
