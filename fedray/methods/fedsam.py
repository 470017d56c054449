r"""FedSAM: FedAvg whose clients descend by the gradient at the worst point near their weights.

Source: Qu, Li, Duan, Liu, Tang, Lu, *Generalized Federated Learning via Sharpness Aware Minimization*, ICML 2022,
FedSAM of Alg. 1. The variant with momentum, MoFedSAM, is left out.

Formulas of fedsam:
    In each local step the client takes the gradient at the worst point of a ball with radius $\rho$ around its weights
    $v$:

    $$
    g = \nabla \ell(v), \qquad \hat g = \nabla \ell\Bigl(v + \rho \, \frac{g}{\lVert g \rVert}\Bigr), \qquad
    v \leftarrow v - \eta \, \hat g .
    $$

    The server averages as FedAvg does.

Deviations:
    1. Only the gradient of the loss on the data is taken at the worst point. Weight decay and the proximal term are
       added afterwards, and then the optimizer of the scenario makes the step.
    2. Running statistics of normalization layers are updated once per batch, at the weights $v$.
    3. In virtual time a step costs as much as two steps of FedAvg, because it has two gradients.

Example:
    >>> import fedray
    >>> scenario = {"rounds": 3, "clients": {"number": 10}, "local": {"lr": 0.03, "epochs": 5}, "runtime": "inline"}
    >>> run = fedray.run(scenario, method={"name": "fedsam", "rho": 0.05}, report=False)
    >>> print(f"{run.summary['metrics']['accuracy']['mean']:.1f}")
    0.9
"""

from __future__ import annotations

from dataclasses import replace

from fedray.core.options import MethodSpec, Option, real
from fedray.methods import kit

SPECS = {
    "fedsam": MethodSpec(
        "FedSAM: clients descend by the gradient at the worst point nearby (Qu et al. 2022)",
        family="averaging",
        options={"rho": Option(0.05, real("[0, inf)"), "radius of the ball in which the worst point is looked for")},
        defaults={"method": {"models": 1}, "server": {"weighting": "examples"}},
        splits=True,
    ),
}


def fedsam(setting: kit.Setting) -> kit.Method:
    """Composes FedSAM with K models, `[K, d]`."""
    around = kit.sharpness_aware(setting.options["rho"])  # lines 7-8: g at w + rho g / |g|
    phase = kit.federated(
        setting,
        assign=kit.permutation,  # line 3: the clients that take part
        # line 9: w <- w - eta_l g
        local=replace(setting.local, gradient=kit.chain(around, setting.local.gradient)),
        compress=kit.dense,
        merge=kit.mean,  # lines 12-13
    )
    return kit.Method("fedsam", phase)
