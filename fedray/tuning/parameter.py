"""A parameter of a search space: a scenario key, or several, and the values that are tried.

Example:
    >>> Parameter("local.lr", "float", low=0.1, high=0.3, points=3).grid()
    [0.1, 0.2, 0.3]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from optuna import Trial

from fedray.core.errors import BadInput
from fedray.scenario import yaml_text

MOST_POINTS = 100_000  # of a grid
Values = Mapping[str, Any]  # parameter -> value, as Optuna stores it


@dataclass(frozen=True)
class Parameter:
    """A scenario key and its values, or several keys that change together.

    Attributes:
        key: its name: the scenario key, with dots, and behind it in parentheses which case it is, where it is one of
            several; several keys have commas between them, and a choice has a value for each.
        kind: "categorical", "int" or "float".
        choices: the values of a categorical parameter.
        low: the lowest value of a range.
        high: the highest value of a range.
        step: between the values of a range; None means 1 for integers, and any value for floats.
        log: whether a range is searched on a logarithmic scale.
        points: how many values of a range a grid tries; None means all of its steps.
        when: other parameters and the values they must have for this one to count.
        entry: of the space that it is a case of; empty where it is the whole entry.
    """

    key: str
    kind: Literal["categorical", "int", "float"]
    choices: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    log: bool = False
    points: int | None = None
    when: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    entry: str = ""

    @property
    def column(self) -> str:
        """What tables call it: its entry of the space."""
        return self.entry or self.key

    @property
    def keys(self) -> tuple[str, ...]:
        """The scenario keys that it sets."""
        return tuple(key.strip() for key in self.column.split(","))

    @property
    def labels(self) -> list[Any]:
        """The choices as Optuna can store them: a list or a mapping becomes its text."""
        return [
            choice if choice is None or isinstance(choice, bool | int | float | str) else format_value(choice)
            for choice in self.choices
        ]

    def meaning(self, stored: Any) -> Any:
        """The scenario's value of what Optuna stores."""
        if self.kind != "categorical":
            return stored
        return next(c for c, label in zip(self.choices, self.labels, strict=True) if is_same(label, stored))

    def ends(self) -> list[Any]:
        """Every choice, or the lowest and highest value."""
        return self.labels if self.kind == "categorical" else [self._typed(self.low), self._typed(self.high)]

    def grid(self) -> list[Any]:
        """Every value a grid tries."""
        if self.kind == "categorical":
            return self.labels
        if self.points is not None:
            spaced = np.geomspace if self.log else np.linspace
            return [self._typed(v) for v in dict.fromkeys(spaced(self.low, self.high, self.points).tolist())]
        if self.step is None and self.kind == "float":
            raise BadInput(f"space.{self.key} has no step, which a grid needs: give it step or points")
        step = self.step or 1
        if not (self.high - self.low) / step < MOST_POINTS:
            raise BadInput(
                f"space.{self.key} has {(self.high - self.low) / step:.3g} steps, {MOST_POINTS} at most: give points"
            )
        return [self._typed(self.low + i * step) for i in range(int((self.high - self.low) / step + 1e-9) + 1)]

    def suggest(self, trial: Trial) -> Any:
        """The sampler's value for a trial."""
        if self.kind == "categorical":
            return trial.suggest_categorical(self.key, self.labels)
        if self.kind == "int":
            return trial.suggest_int(self.key, int(self.low), int(self.high), step=int(self.step or 1), log=self.log)
        return trial.suggest_float(self.key, self.low, self.high, step=self.step, log=self.log)

    def _typed(self, value: float) -> Any:
        return round(value) if self.kind == "int" else min(max(float(value), self.low), self.high)


def format_value(value: Any) -> str:
    """A value as one line of YAML."""
    if isinstance(value, list) and any(isinstance(one, list) for one in value):
        return f"[{', '.join(map(format_value, value))}]"
    return yaml_text.write_yaml(value).strip().removesuffix("\n...").replace("\n", " ")


def is_same(a: Any, b: Any) -> bool:
    """Whether two values are equal and of one kind (`True` is not 1)."""
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)
