"""The options of methods whose models are Gaussians over the network's weights.

Example:
    >>> MEAN_FIELD_SPECS["pfedbayes"].options["zeta"].default
    10.0
"""

from __future__ import annotations

from fedray.scenario.spec import Limit, MethodSpec, Option
from fedray.scenario.validators import real, whole

MEAN_FIELD_SPECS = {
    "pfedbayes": MethodSpec(
        "pFedBayes: each client keeps a Gaussian over its weights, near the clients' mean one (Zhang et al. 2022)",
        options={
            "zeta": Option(10.0, real("[0, inf)")),
            "rho": Option(-2.5, real("[-20, 20]")),
            "personal_steps": Option(5, whole(1, 10**6)),
        },
        defaults={
            "method": {"models": 1},
            "local": {"optimizer": "adam", "lr": 0.001, "batch_size": 100, "steps": 100},
            "evaluate": {"personal": True},
        },
        clients=10,
        own_models=True,
        mean_field=True,
        private="Gaussian over its weights",
        limits=(Limit("zeta", 0, "local training (pfedbayes whose Gaussians are near nothing)"),),
    ),
}
