"""A case of a user's own object: what the user gives, and what one line must say; a small world to try it in."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from fedray.data import Split, classification
from fedray.data.types import Dataset

SCENARIO: dict[str, Any] = {
    "rounds": 2,
    "runtime": "inline",
    "report": False,
    "method": {"models": 2},
    "clients": {"number": 4},
    "local": {"lr": 0.05, "batch_size": 8, "epochs": 1},
    "checkpoint": {"every": 1},
}


class Case(NamedTuple):
    """One object of a user.

    Attributes:
        kind: Data, model or method.
        title: What is wrong with it.
        thing: A loader `thing()`, a function that makes a network `thing()`, or a composition `thing(setting)`.
        says: A pattern that the one line has; None: the run must work.
        keys: Changes of the scenario, section by section.
        is_raised: Whether the user's own exception is shown, with the line of their code.
    """

    kind: str
    title: str
    thing: Callable[..., Any]
    says: str | None = None
    keys: Mapping[str, Any] = {}
    is_raised: bool = False

    @property
    def name(self) -> str:
        """Returns the name under which the object is registered."""
        return f"{self.kind}_{re.sub('[^a-z0-9]+', '_', self.title.lower())}".strip("_")


_COUNTS: list[list[int]] = []


def count_calls() -> list[int]:
    """Returns a list to which each call adds an entry. `forget_calls` empties it."""
    _COUNTS.append([])
    return _COUNTS[-1]


def forget_calls() -> None:
    """Lets objects that go wrong in a later call begin again."""
    for calls in _COUNTS:
        calls.clear()


def inputs(n: int = 72) -> Any:
    """Returns features `[n, 4]`, always the same."""
    return np.random.default_rng(0).normal(size=(n, 4)).astype(np.float32)


def labels(n: int = 72) -> Any:
    """Returns labels 0 to 2, `[n]`."""
    return np.arange(n) % 3


def good_data() -> Dataset:
    """Returns a data set without any mistake."""
    x, y = inputs(), labels()
    return classification("good", Split(x[:48], y[:48]), Split(x[48:], y[48:]), ("a", "b", "c"))


def good_model() -> nn.Module:
    """Returns a network without any mistake."""
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
