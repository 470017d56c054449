"""FedSAM: FedAvg whose clients descend by the gradient at the worst point nearby.

Source: Qu, Li, Duan, Liu, Tang, Lu, *Generalized Federated Learning via Sharpness Aware Minimization*, ICML 2022,
FedSAM of Alg. 1 (its variant with momentum, MoFedSAM, is not here).

Deviations:
    1. The neighborhood is of the data's gradient alone: weight decay and the proximal term join afterwards, and then
       the optimizer of the scenario.
    2. Running statistics of normalization layers see a batch once, at w.
    3. Virtual time counts a step as a step, though it has two gradients.

Example:
    >>> import fedray
    >>> scenario = {"rounds": 3, "clients": {"number": 10}, "local": {"lr": 0.03, "epochs": 5}, "runtime": "inline"}
    >>> run = fedray.run(scenario, method={"name": "fedsam", "rho": 0.05}, report=False)
    >>> print(f"{run.summary['metrics']['accuracy']['mean']:.1f}")
    0.9
"""

from __future__ import annotations

from dataclasses import replace

from fedray.components.compression import dense
from fedray.components.gradients import chain, sharpness_aware
from fedray.components.schedule import permutation
from fedray.components.servers import mean
from fedray.core.method import Method
from fedray.methods.base import federated
from fedray.methods.setting import Setting


def fedsam(setting: Setting) -> Method:
    """One or K models `[K, d]` over N clients."""
    around = sharpness_aware(setting.options["rho"])  # lines 7-8: g at w + rho g / |g|
    phase = federated(
        setting,
        assign=permutation,  # line 3: the clients that take part
        local=replace(setting.local, gradient=chain(around, setting.local.gradient)),  # line 9: w <- w - eta_l g
        compress=dense,
        merge=mean,  # lines 12-13
    )
    return Method("fedsam", phase)
