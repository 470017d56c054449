"""The client selections and schedules as scenarios know them: text, options, and what they do not combine with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedray.core.errors import BadInput
from fedray.core.spec import NameSpec, Option
from fedray.core.validators import maybe, real, whole
from fedray.scenario.stacks import is_stack

if TYPE_CHECKING:
    from fedray.scenario.schema import Scenario

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


def check_selection(scenario: Scenario) -> None:
    """Refuses a client selection where something else chooses the clients, or keeps the losses.

    Raises:
        BadInput: One line with the reason.
    """
    keys = scenario.participation.selection
    if keys.name == "uniform" and keys.object is None:
        return
    key = f"participation.selection.name = {keys.name}"
    if scenario.schedule.kind == "walk":
        raise BadInput(f"{key}, but in a random walk the holders of models take part: leave it out")
    if scenario.schedule.rows == "stratum":
        raise BadInput(
            f"{key}, but schedule.rows is stratum, whose strata choose one client each: set schedule.rows to slot or "
            "client, or leave the selection at uniform"
        )
    if is_stack(scenario) and keys.name != "fair":
        raise BadInput(f"{key}, but the bases of a stack have losses of their own: choose uniform or fair")
