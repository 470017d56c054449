"""What a coordinator does where something fails before its first round."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from small import scenario

from fedray.assembly.user_objects import UserObjects
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
