"""The client selections and schedules as scenarios know them: text and options."""

from __future__ import annotations

from collections.abc import Mapping

from fedray.core.spec import NameSpec, Option
from fedray.core.validators import maybe, real, whole

SELECTION_SPECS: Mapping[str, NameSpec] = {
    "uniform": NameSpec("every client of a tier with the same odds, without replacement"),
    "examples": NameSpec("odds in proportion to the samples of a client, without replacement"),
    "power_of_choice": NameSpec(
        "of d candidates the clients with the largest known losses (Cho et al. 2020, rpow-d)",
        {"candidates": Option(None, maybe(whole(1, 10**9)))},
    ),
    "oort": NameSpec(
        "by statistical utility and speed, with exploration (Lai et al. 2021)",
        {"exploration": Option(0.9, real("[0, 1]")), "penalty": Option(2.0, real("[0, 100]"))},
    ),
    "round_robin": NameSpec("the clients of all tiers in turn, by their ids"),
    "fair": NameSpec("the same clients for an age of K rounds, every client in as many ages as the others"),
}
SCHEDULE_SPECS: Mapping[str, NameSpec] = {
    "permutation": NameSpec("every row trains every model once in K rounds (Fed-ensemble)"),
    "random": NameSpec("uniformly random models in every round"),
    "balanced": NameSpec("cyclic shifts of one permutation, equally many jobs of each model"),
    "adaptive": NameSpec("odds grow with a model's last loss at the client"),
    "walk": NameSpec("models walk over a graph of clients, without a server"),
}
READS_LOSSES = ("power_of_choice", "oort")  # and a user's own, which may
