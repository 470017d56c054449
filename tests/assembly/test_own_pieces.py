"""Keys beside a method of one's own that takes the place of a part: the run dropped them, and its record kept them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small import scenario

from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study
from fedray.components.servers import mean
from fedray.core.errors import FedrayError, ScenarioWarning
from fedray.methods import Compress, Compressed, Method, Plan, Setting, federated
from fedray.scenario.loader import read_scenario

KEYS = scenario({"rounds": 1, "report": False, "data": {"limit": 90}, "clients": {"number": 4}})
SOME = {"participation": {"per_round": 2}}
OORT = {"participation": {"per_round": 2, "selection": "oort"}}


def compose(make: Callable[[Setting], Method], keys: dict[str, Any]) -> Method:
    return build_study(read_scenario(scenario(KEYS, {"method": {"models": 2}}, keys)), UserObjects(method=make)).method


def own_server(setting: Setting) -> Method:
    return Method("own", replace(federated(setting), server=mean(setting.state_rows)))


def own_merge(setting: Setting) -> Method:
    return Method("own", federated(setting, merge=lambda rows, _weighting: mean(rows)))


def own_schedule(setting: Setting) -> Method:
    def schedule(t: int, _state: Any) -> Plan:
        client = np.arange(setting.clients.number)
        return Plan(client, (client + t) % setting.models, 0 * client)

    return Method("own", replace(federated(setting), schedule=schedule))


def own_compress(setting: Setting) -> Method:
    whole = Compress(lambda client, _tier: 0 * client, lambda uploads: Compressed(uploads.delta))
    return Method("own", replace(federated(setting), compress=whole))


def built_on(setting: Setting) -> Method:
    """Every part calls the one that the keys have made, or the setting's piece of it."""
    phase = federated(setting)
    server = phase.server._replace(step=lambda state, stats, t: phase.server.step(state, stats, t))
    compress = phase.compress._replace(apply=lambda uploads: phase.compress.apply(uploads))

    def schedule(t: int, state: Any) -> Plan:
        if t:
            return phase.schedule(t, state)
        client = setting.participation(setting.seeds[0], t).client
        return Plan(client, 0 * client, 0 * client)

    return Method("own", replace(phase, server=server, compress=compress, schedule=schedule))


@pytest.mark.parametrize(
    ("make", "keys", "line"),
    [
        (own_server, {"server": {"robust": "median"}}, r"server\.robust = median cannot act, because own has a server"),
        (own_server, {"server": {"optimizer": "adam"}}, r"server\.optimizer = adam cannot act"),
        (own_server, {"server": {"weighting": "examples"}}, r"server\.weighting = examples cannot act"),
        (own_merge, {"server": {"weighting": "examples"}}, r"server\.weighting = .* let merge\(rows, weighting\) read"),
        (own_schedule, SOME, r"participation\.per_round = 2 cannot act, .* let the schedule call setting\.participati"),
        (own_schedule, OORT, r"participation\.selection = oort cannot act"),
        (own_schedule, {"schedule": {"kind": "random"}}, r"schedule\.kind = random cannot act"),
        (own_compress, {"compress": {"kind": "int8"}}, r"compress\.kind = int8 cannot act"),
    ],
)
def test_a_key_whose_part_a_method_replaces_was_silent(
    make: Callable[[Setting], Method], keys: dict[str, Any], line: str
) -> None:
    with pytest.warns(ScenarioWarning, match=line):
        compose(make, keys)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compose(make, {})
        compose(built_on, keys)


def test_a_schedule_that_reads_how_many_take_part_drops_the_selection_alone() -> None:
    def first(setting: Setting) -> Method:
        client = np.arange(setting.participants)
        plan = Plan(client, 0 * client, 0 * client)
        return Method("own", replace(federated(setting), schedule=lambda _t, _state: plan))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compose(first, SOME)
    with pytest.warns(ScenarioWarning, match=r"participation\.selection = oort cannot act") as said:
        compose(first, OORT)
    assert len(said) == 1


def test_a_schedule_that_needs_a_state_is_told_when_there_is_none() -> None:
    def reading(setting: Setting) -> Method:
        phase = federated(setting)

        def schedule(t: int, state: Any) -> Plan:
            return phase.schedule(t + 0 * len(state.models), state)

        return Method("own", replace(phase, schedule=schedule))

    schedule = compose(reading, {}).phase.schedule
    with pytest.raises(FedrayError, match=r"schedule raised .*NoneType.*: its state is None where a run is planned"):
        schedule(0, None)


def test_a_merge_that_reads_the_weighting_is_left_in_peace() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        compose(lambda setting: Method("own", federated(setting, merge=mean)), {"server": {"weighting": "examples"}})
        compose(
            lambda setting: Method(
                "own", replace(federated(setting), server=mean(setting.state_rows, setting.weighting))
            ),
            {"server": {"weighting": "examples"}},
        )
    assert [str(one.message) for one in said] == []
