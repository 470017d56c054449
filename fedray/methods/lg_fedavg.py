r"""LG-FedAvg: the last layers are averaged, and the other layers stay with the client.

Source: Liang, Liu, Ziyin, Allen, Auerbach, Salakhutdinov, Morency, *Think Locally, Act Globally: Federated Learning
with Local and Global Representations*, 2020, Alg. 1. A layer is a module that owns trainable tensors. Private layers
and their running statistics are not sent, so their bytes are not counted.

Formulas of lg_fedavg:
    LG-FedAvg is FedPer with the parts exchanged: the last `shared_layers` layers $h$ are averaged, and the layers $b_i$
    before them stay with the client.

    $$
    (b_i, u_i) \leftarrow \mathrm{Train}\bigl((b_i, h); F_i\bigr), \qquad h \leftarrow h + \sum_{i \in S} p_i \, (u_i -
    h).
    $$

Deviations:
    1. Private layers start from the server's initial model, the same for every client.
    2. The metrics of new clients (`accuracy`, ...) are metrics of the server's own model, whose private layers were
       never trained. Use `personal_accuracy` instead. The paper's ensemble of all local models, which predicts for new
       clients, is left out.

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

from fedray.core.options import MethodSpec, Option, whole
from fedray.methods import kit

SPECS = {
    "lg_fedavg": MethodSpec(
        "LG-FedAvg: the last layers are averaged, the others stay with the client (Liang et al. 2020)",
        family="personal models",
        options={"shared_layers": Option(1, whole(0, 1000), "how many of the last layers are averaged")},
        defaults={"method": {"models": 1}, "server": {"weighting": "examples"}},
        own_models=True,
        private="the other layers",
    ),
}


def lg_fedavg(setting: kit.Setting) -> kit.Method:
    """Composes LG-FedAvg, which is FedAvg over the last layers of the model."""
    layers, shared = kit.personal.trained_layers(setting.layout), setting.options["shared_layers"]
    private = layers[: max(0, len(layers) - shared)]  # line 5: only the last layers are sent
    phase = kit.federated(replace(setting, private=private), assign=kit.permutation, merge=kit.mean)  # lines 3-6
    return kit.Method("lg_fedavg", phase)
