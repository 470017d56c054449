"""LG-FedAvg: the last layers are averaged, the others stay with the client.

Source: Liang, Liu, Ziyin, Allen, Auerbach, Salakhutdinov, Morency, *Think Locally, Act Globally: Federated Learning
with Local and Global Representations*, 2020, Alg. 1. A layer is a module that owns trainable tensors; `shared_layers`
says how many of the last ones are shared. What is private is neither sent nor counted, BatchNorm's statistics included.

Deviations:
    1. Private layers start from the server's initial model, the same for every client.
    2. The metrics of new clients (`accuracy`, ...) are those of the server's own model, whose private layers were never
       trained: read `personal_accuracy`. The paper's ensemble of all local models for new clients is not simulated.

Example:
    >>> import fedray
    >>> scenario = {"method": {"name": "lg_fedavg", "shared_layers": 1}, "rounds": 3, "clients": {"number": 10}}
    >>> scenario["data"] = {"partition": {"name": "classes", "classes": 2}}
    >>> run = fedray.run(scenario, local__lr=0.1, evaluate__personal=True, runtime="inline", report=False)
    >>> run.clients["up_bytes"][0].as_py()  # the last layer, 50 x 10 weights and 10 biases, of 4 bytes each
    2040
    >>> print(f"{run.summary['metrics']['personal_accuracy']['mean']:.1f}")
    1.0
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fedray.components.aggregation import mean
from fedray.components.compression import restrict_to_columns
from fedray.components.schedule import permutation
from fedray.core.method import Method
from fedray.core.types import Layout
from fedray.methods.base import federated, make_compressor
from fedray.methods.setting import Setting


def lg_fedavg(setting: Setting) -> Method:
    """FedAvg over the last layers of `[d]`."""
    layout, shared = setting.layout, setting.options["shared_layers"]
    layers = trained_layers(layout)
    private = layers[: max(0, len(layers) - shared)]
    phase = federated(setting, assign=permutation, merge=mean)  # lines 3-6: local steps on all layers, then the mean
    if not private:
        return Method("lg_fedavg", phase)
    columns = torch.from_numpy(np.flatnonzero(~layout.mask(private)))
    shared_part = make_compressor(replace(setting, layout=drop_layers(layout, private)))
    compress = restrict_to_columns(shared_part, columns, layout.d)  # line 5: only the shared layers are sent
    return Method("lg_fedavg", replace(phase, private=private, compress=compress))


def trained_layers(layout: Layout) -> tuple[str, ...]:
    """The modules that own trainable tensors, in the order of the row."""
    trained = np.cumsum(layout.sizes) <= layout.trainable
    return tuple(dict.fromkeys(n.rpartition(".")[0] for n, own in zip(layout.names, trained, strict=True) if own))


def drop_layers(layout: Layout, layers: tuple[str, ...]) -> Layout:
    """The layout of what is left when some layers are taken out."""
    stay = [(n, s) for n, s in zip(layout.names, layout.shapes, strict=True) if n.rpartition(".")[0] not in layers]
    trainable = int((~layout.mask(layers))[: layout.trainable].sum())
    counters = tuple(name for name in layout.counters if name.rpartition(".")[0] not in layers)
    return Layout(tuple(n for n, _ in stay), tuple(s for _, s in stay), trainable, counters)
