"""What a coordinator does where something fails before its first round."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from small import of_method, scenario

from fedray.assembly.registry import UserObjects
from fedray.core.errors import FedrayError
from fedray.runtime.ray import coordinator
from fedray.scenario.loader import read_scenario


def test_actors_that_cannot_say_anything_about_themselves_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    class Failing:
        def __init__(self, *_given: Any) -> None: ...

        def facts(self) -> dict[str, Any]:
            raise FedrayError("no facts")

        def close(self) -> None:
            closed.append(self)

    monkeypatch.setattr(coordinator, "RayRuntime", Failing)
    monkeypatch.setattr(coordinator, "log", logging.getLogger("fedray.test"))
    made = coordinator.Coordinator(read_scenario(scenario()), UserObjects(), str(tmp_path))
    with pytest.raises(FedrayError, match="no facts"):
        made.run()
    assert len(closed) == 1


def test_where_nodes_have_other_kernels_the_students_of_the_server_are_computed_by_torch_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that goes on where all nodes have the same ones would have other bits."""

    class Disagreeing:
        lanes, actors = "torch", ()

        def __init__(self, *_given: Any) -> None:
            self.counts: dict[str, int] = {}

        def facts(self) -> dict[str, Any]:
            return {"engine": {"name": "mlp"}}

        def close(self) -> None: ...

    seen = []

    def keep(study: Any, *_given: Any, digests: Any, **_more: Any) -> dict[str, Any]:
        seen.append((study.lanes, digests["engine"]["lanes"]))
        return {}

    monkeypatch.setattr(coordinator, "RayRuntime", Disagreeing)
    monkeypatch.setattr(coordinator, "run_session", keep)
    monkeypatch.setattr(coordinator, "log", logging.getLogger("fedray.test"))
    keys = read_scenario(of_method("fedbe", {"lanes": "auto"}))
    coordinator.Coordinator(keys, UserObjects(), str(tmp_path)).run()
    assert seen == [("torch", "torch")]
