"""FedDyn: every client bends its objective so that the local optima agree at a stationary point of the global one.

Source: Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, *Federated Learning Based on Dynamic Regularization*,
ICLR 2021, Alg. 1. FedDyn-ensemble is FedDyn under the schedule of Fed-ensemble (FE Table III): one correction `[d]` per
client and model, one server vector per model.

Deviations:
    1. alpha -> 0 does not tend to FedAvg: `h / alpha` stays finite.
    2. Clients do their local epochs, not an exact minimisation (as in the paper's experiments).
    3. With compression a client's correction follows what it computed, the server's what was sent.
    4. Any way to merge uploads may stand for the mean; the server's h then follows the merged delta.
"""

from __future__ import annotations

from dataclasses import replace

from fedray.components.corrections import feddyn_server, zero_buffers
from fedray.core.errors import BadInput
from fedray.core.method import Method
from fedray.core.types import Correction
from fedray.methods.fed_ensemble import fed_ensemble
from fedray.methods.setting import Setting


def feddyn(setting: Setting) -> Method:
    """FedDyn-ensemble with K = 1."""
    return replace(feddyn_ensemble(replace(setting, models=1)), name="feddyn")


def feddyn_ensemble(setting: Setting) -> Method:
    """K models; local gradient `grad - h_i + alpha (w - w_start)`."""
    if setting.optimizer.kind != "none":
        raise BadInput(
            f"server.optimizer = {setting.optimizer.kind}, but FedDyn's server has a step of its own: leave it at none"
        )
    alpha, p = setting.options["alpha"], setting.layout.trainable
    local = replace(
        setting.local,
        pull=setting.local.pull + alpha,
        correction=Correction(
            name="dynamic",
            offset=lambda h, shared: -h,  # line 7: the linear term
            update=lambda h, shared, delta, rate: h - alpha * zero_buffers(delta, p),  # line 8
        ),
    )
    base = fed_ensemble(replace(setting, local=local))
    server = feddyn_server(setting.merging(), setting.state_rows, setting.clients.number, alpha, p)  # lines 11-12
    return Method("feddyn_ensemble", replace(base.phase, server=server))
