"""The options of methods whose models are Gaussians over the network's weights."""

from __future__ import annotations

from fedray.scenario.spec import Limit, MethodSpec, Option
from fedray.scenario.validators import either, real, whole

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
        mean_field="prior",
        private="Gaussian over its weights",
        limits=(Limit("zeta", 0, "local training (pfedbayes whose Gaussians are near nothing)"),),
    ),
    "pvi": MethodSpec(
        "PVI: each client has a factor of one Gaussian over the weights, and refines it (Ashman et al. 2022)",
        options={
            "damping": Option("clients", either("clients", real("(0, 1]"))),
            "prior": Option(1.0, real("(0, inf)")),
            "rho": Option(-3.44, real("[-20, 20]")),
            "samples": Option(10, whole(0, 10**4)),
        },
        defaults={
            "method": {"models": 1},
            "local": {"optimizer": "adam", "lr": 0.002, "batch_size": 512, "steps": 100},
        },
        clients=10,
        robust=False,
        sparse=False,
        optimizer=False,
        averages=False,
        coefficients=False,
        samples=True,
        in_rounds="adds all of what its clients' factors change by, whenever they come",
        mean_field="site",
        private="factor of the posterior",
        step="damping",
    ),
    "ivon_admm": MethodSpec(
        "IVON-ADMM: ADMM between Gaussians over the weights; duals are the clients' factors (Möllenhoff et al. 2026)",
        options={
            "penalty": Option(0.2, real("(0, inf)")),
            "dual_step": Option(0.001, real("[0, 1]")),
            "server_step": Option("admm", either("admm", real("(0, 1]"))),
            "temperature": Option(0.001, real("(0, inf)")),
            "prior": Option(1.0, real("(0, inf)")),
            "beta1": Option(0.9, real("[0, 1)")),
            "beta2": Option(0.9998, real("(0, 1]")),
            "rho": Option(-3.9, real("[-20, 20]")),
            "samples": Option(10, whole(0, 10**4)),
        },
        defaults={
            "method": {"models": 1},
            "local": {"optimizer": "sgd", "lr": 5e-5, "batch_size": 32, "epochs": 10},
        },
        clients=10,
        robust=False,
        optimizer=False,
        averages=False,
        coefficients=False,
        samples=True,
        sparse=False,
        in_rounds="mixes the mean of a round's posteriors with all factors",
        mean_field="site",
        private="factor of the posterior",
        step="dual_step",
    ),
}
