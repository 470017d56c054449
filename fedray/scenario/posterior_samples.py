"""The options of methods whose clients send samples of their posterior, and what cannot act beside them.

Example:
    >>> explain_idle_invitation("participation.per_round", SAMPLE_SPECS["beta_predbayes"])
    'every client samples in each round'
"""

from __future__ import annotations

from fedray.scenario.spec import MethodSpec, Needs, Option
from fedray.scenario.validators import either, real, whole

FIT = "fit"  # of `method.beta`: the server finds it
_IS_FITTED = Needs("method.beta", (FIT,))
_OPTIONS = {
    "samples": Option(6, whole(1, 1000)),
    "cycles": Option(5, whole(1, 10**4)),
    "samples_per_cycle": Option(2, whole(1, 10**4)),
    "exploration": Option(0.6, real("[0, 1)")),
    "temperature": Option(1.0, real("[0, inf)")),
    "beta": Option(FIT, either(FIT, real("[0, 1]"))),
    "server_data": Option(0.2, real("[0, 1)")),
    "beta_epochs": Option(10, whole(1, 10**6), _IS_FITTED),
    "beta_lr": Option(0.01, real("(0, inf)"), _IS_FITTED),
    "beta_batch": Option(100, whole(1, 10**6), _IS_FITTED),
}
SAMPLE_SPECS = {
    "beta_predbayes": MethodSpec(
        "β-Predictive Bayes: clients sample their posteriors; answers lie between the product and the mean of theirs "
        "(Hasan et al. 2024)",
        models="clients",
        options=_OPTIONS,
        defaults={
            "method": {"models": 1},
            "rounds": 1,
            "local": {"lr": 0.1, "momentum": 0.1, "weight_decay": 0.0005, "batch_size": 100, "epochs": 25},
        },
        clients=5,
        robust=False,
        optimizer=False,
        averages=False,
        coefficients=False,
        schedules=False,
        downloads=False,
        in_rounds="trains its parts one after another, in rounds",
        parts=True,
        sampled=True,
    ),
}
_INVITED = ("participation.per_round", "participation.fraction", "participation.selection")


def explain_idle_invitation(key: str, spec: MethodSpec) -> str:
    """Why a dotted key cannot act where every client samples in each round; empty if it can."""
    return "every client samples in each round" if spec.sampled and key.startswith(_INVITED) else ""
