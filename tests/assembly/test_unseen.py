"""Classes that no client can learn are said before a run begins."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import fedray
from fedray.core.errors import ScenarioWarning

KEYS: dict[str, Any] = {"rounds": 1, "clients": 4, "runtime": "inline", "report": False, "method": "fedavg"}
X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
ABC = np.array(["a", "b", "c"])[np.arange(60) % 3]


def test_a_class_of_the_test_rows_alone_is_said() -> None:
    known = ABC != "c"
    line = (
        r"^data \w+: no client has a training row of class c, which has 5 of 15 test rows: no model can learn it, "
        r"and accuracy can hardly exceed 0.6667: give training rows of it, or leave it out of the test rows$"
    )
    with pytest.warns(ScenarioWarning, match=line):
        fedray.run(KEYS, data=((X[known], ABC[known]), (X[:15], ABC[:15])))


def test_a_warning_names_the_line_of_the_users_program() -> None:
    """It named a line within fedray."""
    with pytest.warns(ScenarioWarning, match="no client has a training row of class c") as caught:
        fedray.run(KEYS, data=((X[ABC != "c"], ABC[ABC != "c"]), (X[:15], ABC[:15])))
    assert caught[0].filename == __file__


def test_classes_whose_rows_are_dealt_to_nobody_are_said() -> None:
    def two_thirds(labels: Any, clients: int, _generator: Any, _options: Any) -> Any:
        return [np.flatnonzero(labels == 0)[c::clients] for c in range(clients)]

    line = r"of classes b, c \(2 classes\), which have 8 of 12 test rows: .* exceed 0.3333: deal such rows to clients"
    with pytest.warns(ScenarioWarning, match=line):
        fedray.run(KEYS, data=(X, ABC), partition=two_thirds)


def test_nothing_is_said_of_data_that_can_be_learned() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fedray.run(KEYS, data=(X, ABC))
        fedray.run(KEYS, data=(X, X[:, 0]))
        fedray.run({**KEYS, "data": {"name": "synthetic", "classes": 500, "samples": 2, "test": 600}})
    assert [str(one.message) for one in caught if issubclass(one.category, ScenarioWarning)] == []
