"""SCAFFOLD: control variates against client drift.

Source: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, *SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning*, ICML 2020, Alg. 1 with option II. Two vectors `[d]` travel each way. With K > 1 there are one c and one c_i
for each model.

Deviations:
    1. Option II divides by the steps the client really did, `steps * lr`.
    2. The controls are sent whole where the delta is compressed.
    3. A control stays as it is where the learning rate is 0 (`local.schedule`).

Example:
    >>> import fedray
    >>> scenario = {"rounds": 3, "clients": {"number": 10}, "local": {"lr": 0.03}}
    >>> run = fedray.run({**scenario, "method": {"name": "scaffold"}}, runtime="inline", report=False)
    >>> print(f"{run.summary['metrics']['accuracy']['mean']:.1f}")
    0.9
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedray.components.corrections import CONTROL, scaffold_server, zero_buffers
from fedray.components.schedule import permutation
from fedray.components.servers import mean
from fedray.core.errors import BadInput
from fedray.core.local import Correction
from fedray.core.method import Method
from fedray.methods.base import federated, make_server
from fedray.methods.setting import Setting


def scaffold(setting: Setting) -> Method:
    """One or K models `[K, d]`; the local gradient is `grad - c_i + c`."""
    local, p = setting.local, setting.layout.trainable
    if local.optimizer_name != "sgd" or local.momentum:
        key, value = ("momentum", local.momentum) if local.momentum else ("optimizer", local.optimizer_name)
        raise BadInput(f"local.{key} = {value}, but SCAFFOLD's controls are means of plain SGD's gradients: use that")

    def update(own: Tensor, shared: Tensor | None, delta: Tensor, rate: Tensor) -> Tensor:
        assert shared is not None
        new = zero_buffers(own - shared - delta / rate, p)  # line 12, option II
        return torch.where(rate > 0, new, own)  # at a learning rate of 0 no gradient is known

    def offset(own: Tensor, shared: Tensor | None) -> Tensor:
        assert shared is not None
        return shared - own  # line 10

    phase = federated(
        setting,
        assign=permutation,  # line 4: the clients S that take part
        local=replace(local, correction=Correction("control", offset, update, shared=CONTROL)),  # lines 7-12
    )
    server = scaffold_server(make_server(setting, mean), setting.state_rows, setting.clients.number)  # lines 16-17
    return Method(
        "scaffold",
        replace(
            phase,
            server=server,
            down_vectors=2,  # line 5: x and c
            up_vectors=1,  # line 13: beside the model's delta the control's
        ),
    )
