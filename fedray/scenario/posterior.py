"""The methods whose clients sample a posterior, as scenarios know them; without torch."""

from __future__ import annotations

from collections.abc import Mapping

from fedray.scenario.spec import Limit, MethodSpec, Option
from fedray.scenario.validators import either, real, whole

POSTERIOR_SPECS: Mapping[str, MethodSpec] = {
    "fedpa": MethodSpec(
        "FedPA: clients sample their posterior; the way to its mean is sent by its precision (Al-Shedivat et al. 2021)",
        options={
            "samples": Option(4, whole(1, 10**4)),
            "rho": Option(0.1, real("[0, inf)")),
            "burn_in": Option(0, whole(0, 10**7)),
            "mixing": Option(0.2, real("[0, 1)")),
        },
        defaults={"method": {"models": 1}, "server": {"weighting": "examples"}},
        limits=(
            Limit("samples", 1, "FedAvg with averaged iterates (a covariance needs two samples)"),
            Limit("rho", 0, "FedAvg with averaged iterates (the covariance shrinks to the identity)"),
        ),
    ),
    "dsvgd": MethodSpec(
        "DSVGD: particles of the posterior go from client to client; each renews its factor (Kassab, Simeone 2022)",
        options={
            "temperature": Option(1.0, real("(0, inf)")),
            "precision": Option(2.718, real("[0, inf)")),
            "bandwidth": Option(0.55, real("(0, inf)")),
            "factor_steps": Option(200, whole(0, 10**6)),
            "decay": Option(0.9, either("none", real("[0, 1)"))),
        },
        defaults={
            "method": {"models": 20},
            "participation": {"per_round": 1, "selection": {"name": "round_robin"}},
            "local": {"optimizer": "sgd", "lr": 0.001, "batch_size": 100, "steps": 200},
        },
        clients=2,
        robust=False,
        optimizer=False,
        averages=False,
        coefficients=False,
        schedules=False,
        all_models=True,
        in_rounds="trains one client after another",
        private="particles of its factor",
        limits=(Limit("models", 1, "an estimate of the posterior's mode (one particle has no neighbours)"),),
    ),
}
