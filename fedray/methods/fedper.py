r"""FedPer, FedBN and FedRep: FedAvg over a part of the network, while the other part stays with each client.

Sources: Arivazhagan, Aggarwal, Singh, Choudhary, *Federated Learning with Personalization Layers*, 2019, Alg. 1 and 2
(FedPer: the last layers stay); Li, Jiang, Zhang, Kamp, Dou, *FedBN: Federated Learning on Non-IID Features via Local
Batch Normalization*, ICLR 2021, Alg. 1 (the normalization layers stay); Collins, Hassani, Mokhtari, Shakkottai,
*Exploiting Shared Representations for Personalized Federated Learning*, ICML 2021, Alg. 1 (FedRep: like FedPer, but a
client first trains its head, and then the body).

FedPer and FedBN differ only in the default of the key `local.private` (`head` or `norm`). This key may also name other
layers, and other methods have it, too.

Formulas of fedper:
    A model consists of two parts, $w = (b, h_i)$. All clients share the body $b$, and each client has its own head
    $h_i$ (the last layer).

    $$
    (u_i, h_i) \leftarrow \mathrm{Train}\bigl((b, h_i); F_i\bigr), \qquad b \leftarrow b + \sum_{i \in S} p_i \, (u_i -
    b).
    $$

Formulas of fedbn:
    FedBN is FedPer with a different $h_i$: the normalization layers with their running statistics.

Formulas of fedrep:
    FedRep is FedPer with local training in two parts. First only the head is trained, and then only the body:

    $$
    h_i \leftarrow \mathrm{Train}\bigl(h_i; F_i(b, \cdot)\bigr), \qquad u_i = \mathrm{Train}\bigl(b; F_i(\cdot,
    h_i)\bigr).
    $$

    Of the epochs of a local training (`local.epochs`), the last `body_epochs` train the body, and the others train the
    head. A client that trains less (the epochs of its tier, `participation.partial`) gives the body the same fraction
    of its steps, at least one step. With `local.steps` this fraction is `body_epochs` / 10.

Deviations:
    1. Private layers start from the server's initial model, the same for every client.
    2. The metrics of new clients (`accuracy`, ...) are metrics of the server's own model, whose private layers were
       never trained. Use `personal_accuracy` instead.
    3. FedRep trains with SGD. While a part is fixed, its velocity is 0.

Example:
    >>> import fedray
    >>> scenario = {"rounds": 3, "clients": {"number": 10}, "data": {"partition": {"name": "classes", "classes": 2}}}
    >>> for method in ("fedper", "fedrep"):
    ...     run = fedray.run(scenario, method=method, local__lr=0.1, runtime="inline", report=False)
    ...     up = run.clients["up_bytes"][0].as_py()  # all but the last layer: 64 x 50 weights and 50 biases
    ...     print(f"{method} {up} {run.summary['metrics']['personal_accuracy']['mean']:.1f}")
    fedper 13000 1.0
    fedrep 13000 1.0
"""

from __future__ import annotations

from dataclasses import replace

from fedray.core.errors import BadInput
from fedray.core.options import MethodSpec, Option, whole
from fedray.methods import kit

_FEDPER = MethodSpec(
    "FedPer: the last layer stays with the client, the others are averaged (Arivazhagan et al. 2019)",
    family="personal models",
    defaults={"method": {"models": 1}, "server": {"weighting": "examples"}, "local": {"private": ["head"]}},
    splits=True,
    own_models=True,
    private="the last layer",
)
SPECS = {
    "fedper": _FEDPER,
    "fedbn": replace(
        _FEDPER,
        text="FedBN: normalization layers stay with the client, the others are averaged (Li et al. 2021)",
        defaults={**_FEDPER.defaults, "local": {"private": ["norm"]}},
        private="normalization layers",
    ),
    "fedrep": replace(
        _FEDPER,
        text="FedRep: as FedPer, and a client trains its last layer first, then the others (Collins et al. 2021)",
        options={"body_epochs": Option(1, whole(1, 10**6), "epochs, the last of `local.epochs`, that train the body")},
    ),
}


def fedper(setting: kit.Setting) -> kit.Method:
    """Composes FedPer, which is FedAvg over the layers that do not stay with the client."""
    return kit.Method("fedper", kit.federated(setting))  # Alg. 1, lines 4-7: the base layers are sent and averaged


def fedbn(setting: kit.Setting) -> kit.Method:
    """Composes FedBN, which is FedAvg over the layers that do not stay with the client."""
    return kit.Method("fedbn", kit.federated(setting))  # lines 9-13: every layer is averaged unless it is a BN layer


def fedrep(setting: kit.Setting) -> kit.Method:
    """Composes FedRep.

    Raises:
        BadInput: Clients do not train with SGD, or no layer is private, or no step is left for the head.
    """
    local, body, epochs = setting.local, setting.options["body_epochs"], setting.local.epochs or 10
    kit.base.require("FedRep", local__optimizer=(local.optimizer_name, "sgd"), local__nesterov=(local.nesterov, False))
    if not setting.private or body >= epochs or local.steps == 1:
        raise BadInput(
            f"method.body_epochs = {body} of local.epochs = {epochs} (or of several local.steps) train the body, and "
            "the others a head of local.private: raise local.epochs, or name a head"
        )
    head = kit.torch.from_numpy(setting.layout.mask(setting.private)[: setting.layout.trainable])
    # lines 8-11: the head, then the representation
    turns = kit.train_in_turns(head, body, epochs, local.momentum)
    phase = kit.federated(setting, local=replace(local, momentum=0.0, step=turns))
    return kit.Method("fedrep", phase)
