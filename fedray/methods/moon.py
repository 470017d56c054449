r"""MOON: FedAvg with a contrastive loss that keeps a client's features near those of the broadcast model.

Source: Li, He, Song, *Model-Contrastive Federated Learning*, CVPR 2021, Alg. 1 and equations 3 and 4.

Formulas of moon:
    Features are the inputs of the last layer. A sample $x$ has the features $z$ in the model that is trained,
    $z_{\mathrm{glob}}$ in the broadcast model, and $z_{\mathrm{prev}}$ in the client's last trained model. $s$ is the
    cosine of the angle between two vectors of features. A client minimizes the sum of its loss and a contrastive loss.
    The key `mu` is the weight of the contrastive loss, and $\tau$ is the `temperature`:

    $$
    F_i(v) + \mu \cdot \frac{1}{n_i} \sum_x -\log
    \frac{e^{s(z, z_{\mathrm{glob}}) / \tau}}{e^{s(z, z_{\mathrm{glob}}) / \tau} + e^{s(z, z_{\mathrm{prev}}) / \tau}}.
    $$

    The server averages as FedAvg does.

Deviations:
    1. The paper adds a projection head to its networks, and uses the outputs of this head as features.
    2. A client that trains for the first time has no earlier model, and uses the broadcast model instead. The
       contrastive loss then has no gradient at the first step.
    3. In virtual time a step costs 5/3 of a step of FedAvg, because two more models make a forward pass.

Example:
    >>> import fedray
    >>> scenario = {"rounds": 3, "clients": {"number": 10}, "local": {"lr": 0.03, "epochs": 5}, "runtime": "inline"}
    >>> run = fedray.run(scenario, method={"name": "moon", "mu": 1.0}, report=False)
    >>> print(f"{run.summary['metrics']['accuracy']['mean']:.1f}")
    0.9
"""

from __future__ import annotations

from dataclasses import replace

from fedray.core.errors import BadInput
from fedray.core.options import MethodSpec, Option, real
from fedray.methods import kit

SPECS = {
    "moon": MethodSpec(
        "MOON: a contrastive loss keeps features near those of the broadcast model (Li et al. 2021)",
        family="averaging",
        options={
            "mu": Option(1.0, real("[0, inf)"), "weight of the contrastive loss"),
            "temperature": Option(0.5, real("(0, inf)"), "temperature of the contrastive loss"),
        },
        defaults={"method": {"models": 1}, "server": {"weighting": "examples"}},
        splits=True,
        private="the model that it trained last",
    ),
}


def moon(setting: kit.Setting) -> kit.Method:
    """Composes MOON with K models, `[K, d]`. Each client keeps its last trained model, `[d]`.

    Raises:
        BadInput: The scenario sets `local.loss`.
    """
    if setting.local.loss is not None:
        raise BadInput(f"local.loss = {setting.local.loss.name}, but moon is a loss by itself: leave it out")
    loss = kit.contrast_models(setting.options["mu"], setting.options["temperature"])
    phase = kit.federated(
        setting,
        assign=kit.permutation,  # line 3: the parties
        local=replace(setting.local, loss=loss),  # lines 13-20: l = l_sup + mu l_con
        compress=kit.dense,
        merge=kit.mean,  # line 8: w_{t+1} <- sum of |D_i| / |D| w_i
    )
    return kit.Method("moon", phase)
