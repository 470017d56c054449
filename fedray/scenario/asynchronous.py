"""Checks of the keys of a scenario whose clients do not wait for rounds (`participation.mode`)."""

from __future__ import annotations

from fedray.core.errors import BadInput
from fedray.core.spec import MethodSpec
from fedray.core.text import quote_value
from fedray.scenario.clients import ParticipationKeys
from fedray.scenario.methods import method_spec_of
from fedray.scenario.schema import Scenario
from fedray.scenario.stacks import is_stack


def explain_rounds(spec: MethodSpec) -> str:
    """Why a method cannot train without rounds, to be read behind its name; empty if it can.

    Example:
        >>> explain_rounds(MethodSpec("a walk", walks=True)), explain_rounds(MethodSpec("FedAvg"))
        ('has no server', '')
    """
    return (
        "has no server" if spec.walks
        else "trains on the pooled data, as one client" if spec.pooled
        else "trains every client by itself" if spec.models == "clients"
        else spec.in_rounds
    )  # fmt: skip


def check_asynchronous(scenario: Scenario) -> None:
    """Raises `BadInput` for what needs rounds, where there are none."""
    keys, name, spec = scenario.participation, scenario.method.name, method_spec_of(scenario.method.name)
    if keys.mode == "sync":
        return
    if why := explain_rounds(spec) or ("with several networks trains in rounds" if is_stack(scenario) else ""):
        raise BadInput(f"participation.mode = {keys.mode}, but {name} {why}: set it to sync")
    mode, plain = f"participation.mode is {keys.mode}", ParticipationKeys()
    for key in ("per_round", "fraction", "overcommit"):
        if getattr(keys, key) != getattr(plain, key) and (key, getattr(keys, key)) != ("fraction", 1):
            remedy = (
                "leave it out"
                if key == "overcommit"
                else "leave it out: participation.concurrency says how many train at a time"
            )
            raise BadInput(
                f"participation.{key} = {quote_value(getattr(keys, key))}, but {mode}, which has no "
                f"participants of a round: {remedy}"
            )
    if keys.selection.name != "uniform" or keys.selection.object is not None:
        raise BadInput(
            f"participation.selection.name = {keys.selection.name}, but {mode}, and idle clients are drawn uniformly: "
            "leave it out"
        )
    if scenario.schedule.rows != "client":
        raise BadInput(
            f"schedule.rows = {scenario.schedule.rows}, but {mode}, and the only rows without rounds are clients: set "
            "it to client"
        )
    if scenario.schedule.kind == "adaptive":
        raise BadInput(f"schedule.kind = adaptive, but {mode}, and it reads the losses of a round: choose another kind")
