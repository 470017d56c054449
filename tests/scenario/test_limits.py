"""Settings in which a method is another one, and what a method's specification decides instead of its name."""

from __future__ import annotations

from typing import Any

import pytest

from fedray.core.errors import BadInput
from fedray.methods import METHOD_SPECS
from fedray.scenario.loader import read_scenario
from fedray.scenario.relevance import name_limits
from fedray.scenario.rows import is_stack
from fedray.scenario.schema import Scenario

LIMITS = [(name, limit) for name, spec in METHOD_SPECS.items() for limit in spec.limits if limit.key != "width"]


def read(name: str, *, more: Any = None, **options: Any) -> Scenario:
    return read_scenario({"method": {"name": name, **options}, **(more or {})}, explicit=False)


@pytest.mark.parametrize(("name", "limit"), LIMITS, ids=[f"{name}-{limit.key}" for name, limit in LIMITS])
def test_a_limit_is_said_where_a_scenario_has_it(name: str, limit: Any) -> None:
    assert name_limits(read(name, **{limit.key: limit.value})) == [
        f"method.{limit.key} = {limit.value} makes it {limit.text}"
    ]
    assert name_limits(read(name, **{limit.key: 2})) == []


@pytest.mark.parametrize("name", ["heterofl", "fedrolex"])
def test_slices_that_cut_nothing_are_said(name: str) -> None:
    def limits(width: float, models: int) -> list[str]:
        return name_limits(read(name, models=models, more={"clients": {"tiers": {"a": {"width": width}, "b": {}}}}))

    assert limits(1, 1) == [f"clients.tiers.*.width = 1 makes it FedAvg ({name} that cuts nothing)"]
    assert limits(1, 2) == [f"clients.tiers.*.width = 1 makes it Fed-ensemble ({name} that cuts nothing)"]
    assert limits(0.5, 1) == []


def test_what_is_said_of_a_method_was_decided_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A specification under another name gets the same limits, rules and refusals."""
    for name in ("fedprox", "stacking", "fens", "feddf", "ifca"):
        monkeypatch.setitem(METHOD_SPECS, f"other_{name}", METHOD_SPECS[name])
    assert name_limits(read("other_fedprox", mu=0)) == name_limits(read("fedprox", mu=0)) != []
    networks = [{"name": "linear"}, {"name": "mlp"}]
    assert is_stack(read("other_stacking")) and is_stack(read("other_feddf", networks=networks))
    assert not is_stack(read("other_feddf"))
    late = {"participation": {"overcommit": 1.5}}
    assert all(read(name, more=late).participation.overcommit == 1.5 for name in ("fedprox", "local_only"))
    for more, names in (
        ({"participation": {"mode": "buffered"}}, ("stacking", "fens")),
        ({"predict": {"dropout_at_test": True}}, ("stacking", "fens", "ifca")),
        (late, ("fens",)),
    ):
        for name in names:
            said = []
            for one in (name, f"other_{name}"):
                with pytest.raises(BadInput) as caught:
                    read(one, more=more)
                said.append(str(caught.value).replace(one, "it"))
            assert said[0] == said[1], (name, more)
