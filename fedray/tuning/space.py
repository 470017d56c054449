"""The search space: parameters of scenarios, the grid they span, and the scenario that a choice of values means.

Example:
    >>> space = read_space({"local.lr": [0.1, 0.3], "local.epochs": {"type": "int", "low": 1, "high": 2}})
    >>> enumerate_grid(space)[1]
    {'local.lr': 0.1, 'local.epochs': 2}
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from optuna import Trial

from fedray.core.errors import BadInput
from fedray.core.text import quote_value, suggest_nearest
from fedray.scenario import yaml_text
from fedray.scenario.identity import is_free
from fedray.scenario.validators import Check, flag, maybe, one_of, real, whole

MOST_POINTS = 100_000  # of a grid
FORBIDDEN = {
    "data.hold_out": "trials would be compared on different data",
    "evaluate": "trials would be measured differently",
}
RANGE: dict[str, Check] = {
    "type": one_of("int", "float", "categorical"),
    "low": real("(-inf, inf)"),
    "high": real("(-inf, inf)"),
    "step": maybe(real("(0, inf)")),
    "log": flag,
    "points": maybe(whole(2, 1000)),
}
Values = Mapping[str, Any]  # parameter -> value, as Optuna stores it


@dataclass(frozen=True)
class Parameter:
    """A scenario key and its values, or several keys that change together.

    Attributes:
        key: of the scenario, with dots; several ones have commas between them, and a choice has a value for each.
        kind: "categorical", "int" or "float".
        choices: the values of a categorical parameter.
        low: the lowest value of a range.
        high: the highest value of a range.
        step: between the values of a range; None means 1 for integers, and any value for floats.
        log: whether a range is searched on a logarithmic scale.
        points: how many values of a range a grid tries; None means all of its steps.
        when: other parameters and the values they must have for this one to count.
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

    @property
    def keys(self) -> tuple[str, ...]:
        """The scenario keys that it sets."""
        return tuple(key.strip() for key in self.key.split(","))

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


def read_space(given: Any) -> tuple[Parameter, ...]:
    """The parameters of a sweep file, each after those its `when` names."""
    if not isinstance(given, Mapping) or not given:
        raise BadInput("space is missing or empty: give it scenario keys, such as local.lr: [0.1, 0.3]")
    space: list[Parameter] = []
    for name, entry in given.items():
        keys = [key.strip() for key in str(name).split(",")]
        for place, key in enumerate(keys):
            if not key:
                raise BadInput(f"space.{name} names no key beside a comma: write the keys as in local.lr, local.epochs")
            banned = next((FORBIDDEN[name] for name in FORBIDDEN if f"{key}.".startswith(f"{name}.")), "")
            if banned or is_free(key):
                raise BadInput(f"space.{key} cannot be searched ({banned or 'it changes no result'}): drop it")
            if key in (*keys[:place], *(key for one in space for key in one.keys)):
                raise BadInput(f"space.{name}: {key} is in the space twice: remove one of the two")
        space.append(_parameter(str(name), entry, space))
        if len(keys) > 1:
            _check_joint(space[-1])
    return tuple(space)


def _check_joint(parameter: Parameter) -> None:
    """Raises `BadInput` where a choice does not have a value for each of several keys."""
    wanted = f"write a list of choices, each a list of {len(parameter.keys)} values, one for each key"
    if parameter.kind != "categorical":
        raise BadInput(f"space.{parameter.key} is a range of several keys: {wanted}")
    for choice in parameter.choices:
        if not isinstance(choice, list) or len(choice) != len(parameter.keys):
            raise BadInput(f"space.{parameter.key} holds {quote_value(choice)}: {wanted}")


def _parameter(key: str, entry: Any, before: Sequence[Parameter]) -> Parameter:
    path = f"space.{key}"
    if isinstance(entry, list):
        return Parameter(key, "categorical", _choices(path, entry))
    if not isinstance(entry, Mapping):
        raise BadInput(
            f"{path} = {quote_value(entry)} is not a range: write a list, or {{type: float, low: 0.1, high: 1}}"
        )
    when = _when(path, entry.get("when"), before)
    rest = {name: value for name, value in entry.items() if name != "when"}
    if "choices" in rest or rest.get("type") == "categorical":
        extra = sorted(set(rest) - {"choices", "type"})
        if extra or rest.get("type", "categorical") != "categorical":
            raise BadInput(f"{path}.{(extra or ['type'])[0]} cannot stand beside choices: drop one of the two")
        return Parameter(key, "categorical", _choices(f"{path}.choices", rest.get("choices")), when=when)
    return _range(path, key, rest, when)


def _choices(path: str, given: Any) -> tuple[Any, ...]:
    if not isinstance(given, list) or not given or len(given) > 1000:
        raise BadInput(f"{path} = {quote_value(given)} is not a list of 1 to 1000 values: write it as [a, b]")
    labels = [quote_value(choice, 10_000) for choice in given]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise BadInput(f"{path} holds {twice[:60]} twice: remove one of the two")
    return tuple(given)


def _range(path: str, key: str, given: Mapping[str, Any], when: Any) -> Parameter:
    for name, value in given.items():
        if name not in RANGE:
            remedy = suggest_nearest(
                str(name), [*RANGE, "choices", "when"], f"it has {', '.join(RANGE)}, choices, when"
            )
            raise BadInput(f"{path}.{name} is not a key of a range: {remedy}")
        try:
            RANGE[name](value)
        except ValueError as wrong:
            raise BadInput(f"{path}.{name} = {quote_value(value)} {wrong}") from None
    for name in ("type", "low", "high"):
        if given.get(name) is None:
            raise BadInput(f"{path}.{name} is missing: a range has type (int or float), low and high")
    low, high, step = given["low"], given["high"], given.get("step")
    log, points, kind = given.get("log", False), given.get("points"), given["type"]
    if low > high:
        raise BadInput(f"{path}.low = {low:g}, but {path}.high is {high:g}: lower it or raise {path}.high")
    if log and low <= 0:
        raise BadInput(f"{path}.low = {low:g}, but a log range is above 0: raise it or drop log")
    if log and step is not None:
        raise BadInput(f"{path}.step = {step:g}, but a log range has no steps: drop one of the two")
    if points is not None and step is not None:
        raise BadInput(f"{path}.points = {points}, but step is {step:g}: give one of the two")
    if step is not None and not math.isfinite((high - low) / step):
        raise BadInput(f"{path}.step = {step:g} is too small for {low:g} to {high:g}: raise it")
    if step is not None and abs((high - low) / step - round((high - low) / step)) > 1e-6:
        raise BadInput(f"{path}.step = {step:g} does not lead from {low:g} to {high:g}: give one that does")
    for name, value in (("low", low), ("high", high), ("step", step)):
        if kind == "int" and value is not None and float(value) != round(value):
            raise BadInput(f"{path}.{name} = {value:g} is not a whole number: give one, or type: float")
    number = float(step) if step is not None else None
    return Parameter(key, kind, (), float(low), float(high), number, log, points, when)


def _when(path: str, given: Any, before: Sequence[Parameter]) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    if given is None:
        return ()
    if not isinstance(given, Mapping) or not given:
        raise BadInput(f"{path}.when = {quote_value(given)} is not a condition: write {{compress.kind: [topk]}}")
    known = {parameter.key: parameter for parameter in before}
    conditions = []
    for key, values in given.items():
        wanted = tuple(values) if isinstance(values, list) else (values,)
        parent = known.get(key)
        if parent is None:
            raise BadInput(f"{path}.when.{key} is not a parameter above {path}: add it to the space, before {path}")
        for value in wanted:
            inside = isinstance(value, int | float) and parent.low <= value <= parent.high
            if not (any(is_same(value, c) for c in parent.labels) if parent.kind == "categorical" else inside):
                raise BadInput(
                    f"{path}.when.{key} = {quote_value(value)} is no value of space.{key}: choose one of its values"
                )
        conditions.append((key, wanted))
    return tuple(conditions)


def is_active(parameter: Parameter, chosen: Values) -> bool:
    """Whether a parameter's conditions hold."""
    return all(key in chosen and any(is_same(chosen[key], v) for v in values) for key, values in parameter.when)


def enumerate_grid(space: Sequence[Parameter]) -> list[dict[str, Any]]:
    """Every combination once, the last parameter fastest; a parameter that does not count is left out."""
    size = 1
    for parameter in space:
        size *= len(parameter.grid())
    if size > MOST_POINTS:
        raise BadInput(f"space has {size} grid points: {MOST_POINTS} at most; use sampler random, or fewer values")
    found: dict[str, dict[str, Any]] = {}
    for values in itertools.product(*(parameter.grid() for parameter in space)):
        chosen: dict[str, Any] = {}
        for parameter, value in zip(space, values, strict=True):
            if is_active(parameter, chosen):
                chosen[parameter.key] = value
        found.setdefault(repr(chosen), chosen)
    return list(found.values())


def enumerate_corners(space: Sequence[Parameter]) -> Iterator[tuple[Parameter, dict[str, Any]]]:
    """Each parameter at each of its ends, with values that its conditions need: what a sweep checks at the start."""
    known = {parameter.key: parameter for parameter in space}

    def needed(parameter: Parameter) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, values in parameter.when:
            out |= {**needed(known[key]), key: values[0]}
        return out

    for parameter in space:
        for value in parameter.ends():
            yield parameter, {**needed(parameter), parameter.key: value}


def to_overrides(space: Sequence[Parameter], chosen: Values) -> dict[str, Any]:
    """What stored values mean as overrides of a scenario."""
    out: dict[str, Any] = {}
    for parameter in space:
        if parameter.key in chosen:
            value = parameter.meaning(chosen[parameter.key])
            out |= zip(parameter.keys, value if len(parameter.keys) > 1 else [value], strict=True)
    return out
