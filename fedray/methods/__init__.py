"""The papers, one file each, as compositions of schedules, local training, servers and predictions.

`METHODS` is the one registry: name -> function from a `Setting` to a `Method`.
"""

from __future__ import annotations

from collections.abc import Callable

from fedray.core import Method
from fedray.methods.fed_ensemble import fed_ensemble
from fedray.methods.fedag import fedag
from fedray.methods.fedavg import fedavg, fedprox
from fedray.methods.setting import Setting
from fedray.methods.shefl import shefl

Composition = Callable[[Setting], Method]

METHODS: dict[str, Composition] = {
    "fed_ensemble": fed_ensemble,
    "fedavg": fedavg,
    "fedprox": fedprox,
    "shefl": shefl,
    "fedag": fedag,
}
