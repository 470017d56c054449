"""The search space: parameters of scenarios, the grid of their values, and the scenario keys that chosen values set."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from optuna import Trial
from optuna.distributions import FloatDistribution, IntDistribution

from fedray.core.errors import BadInput, quote_value, show_line, suggest_nearest
from fedray.core.options import Check, flag, maybe, one_of, real, whole
from fedray.metrics import classification, regression
from fedray.scenario import nested
from fedray.scenario.identity import is_free
from fedray.scenario.names import is_own
from fedray.tuning.objectives import HELD_OUT_PREFIX, SweepObjective, anything, check_keys

# ---------------------------------------------------------------------------------------------------------------------
# A parameter of a search space: one or more scenario keys, and the values to try.

MOST_POINTS = 100_000  # values of a grid
Values = Mapping[str, Any]  # parameter -> value, as Optuna stores it


@dataclass(frozen=True)
class Parameter:
    """A scenario key and its values, or several keys that change together.

    Attributes:
        key: the name of the parameter: its scenario key, with dots. Where the entry of the space has several cases, the
            case follows in parentheses. Several keys are separated by commas; a choice then has a value for each key.
        kind: "categorical", "int" or "float".
        choices: the values of a categorical parameter.
        low: the lowest value of a range.
        high: the highest value of a range.
        step: the distance between the values of a range; None means 1 for integers, and no steps for floats.
        log: whether a range is searched on a logarithmic scale.
        points: the number of values of a range that a grid tries; None means every step of the range.
        when: the conditions under which the parameter is active: other parameters, and the values they may have.
        entry: the entry of the space, if the parameter is one of several cases of the entry; else empty.

    Example:
        >>> Parameter("local.lr", "float", low=0.1, high=0.3, points=3).grid()
        [0.1, 0.2, 0.3]
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
        """Returns the name of the parameter's column in tables, which is its entry of the space."""
        return self.entry or self.key

    @property
    def keys(self) -> tuple[str, ...]:
        """Returns the scenario keys that the parameter sets."""
        return tuple(key.strip() for key in self.column.split(","))

    @property
    def labels(self) -> list[Any]:
        """Returns the choices as Optuna can store them; lists and mappings become text."""
        return [
            choice if choice is None or isinstance(choice, bool | int | float | str) else format_value(choice)
            for choice in self.choices
        ]

    def meaning(self, stored: Any) -> Any:
        """Converts a value as Optuna stores it to the value for the scenario."""
        if self.kind != "categorical":
            return stored
        return next(c for c, label in zip(self.choices, self.labels, strict=True) if is_same(label, stored))

    def ends(self) -> list[Any]:
        """Returns every choice, or the lowest and the highest value of a range."""
        return self.labels if self.kind == "categorical" else [self._typed(self.low), self._typed(self.high)]

    def grid(self) -> list[Any]:
        """Returns every value that a grid tries."""
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
        """Returns the value that the sampler suggests for a trial."""
        if self.kind == "categorical":
            return trial.suggest_categorical(self.key, self.labels)
        if self.kind == "int":
            return trial.suggest_int(self.key, int(self.low), int(self.high), step=int(self.step or 1), log=self.log)
        return trial.suggest_float(self.key, self.low, self.high, step=self.step, log=self.log)

    def _typed(self, value: float) -> Any:
        return round(value) if self.kind == "int" else min(max(float(value), self.low), self.high)


def format_value(value: Any) -> str:
    """Formats a value as one line of YAML."""
    if isinstance(value, list) and any(isinstance(one, list) for one in value):
        return f"[{', '.join(map(format_value, value))}]"
    return nested.write_yaml(value).strip().removesuffix("\n...").replace("\n", " ")


def is_same(a: Any, b: Any) -> bool:
    """Returns whether two values are equal and of the same kind (`True` is not 1)."""
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


# ---------------------------------------------------------------------------------------------------------------------
# The search space: parameters of scenarios, the grid of their values, and the scenario keys that chosen values set.

FORBIDDEN = {
    **dict.fromkeys(("data.hold_out", "data.test_clients"), "trials would be compared on different data"),
    "evaluate": "trials would be measured differently",
}
RANGE: dict[str, Check] = {
    "type": one_of("int", "float", "categorical"),
    "low": real("(-inf, inf)"),
    "high": real("(-inf, inf)"),
    "step": maybe(real("(0, inf)")),
    "log": flag,
    "points": maybe(whole(2, 1000)),
    **dict.fromkeys(("choices", "when"), anything),  # read before the others
}


def read_space(given: Any) -> tuple[Parameter, ...]:
    """Reads the section `space` of a sweep file; returns its parameters.

    A parameter comes after the parameters that its `when` names.

    Example:
        >>> lr = [{"choices": [0.1, 1], "when": {"local.optimizer": "sgd"}}]
        >>> space = read_space({"local.optimizer": ["sgd", "adam"], "local.lr": lr})
        >>> space[1].key, space[1].keys
        ('local.lr (sgd)', ('local.lr',))
        >>> enumerate_grid(space)[1]
        {'local.optimizer': 'sgd', 'local.lr (sgd)': 1}
    """
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
        found = _read_entry(str(name), entry, space)
        wanted = f"write a list of choices, each a list of {len(keys)} values, one for each key"
        for parameter in found if len(keys) > 1 else ():
            if parameter.kind != "categorical":
                raise BadInput(f"space.{parameter.key} is a range of several keys: {wanted}")
            for choice in parameter.choices:
                if not isinstance(choice, list) or len(choice) != len(keys):
                    raise BadInput(f"space.{parameter.key} holds {quote_value(choice)}: {wanted}")
        space += found
    return tuple(space)


def _read_entry(name: str, entry: Any, before: Sequence[Parameter]) -> list[Parameter]:
    """Reads an entry of the space: one parameter, or one for each case, of which at most one is ever active."""
    if not isinstance(entry, list) or not any(isinstance(case, Mapping) and "when" in case for case in entry):
        return [_parameter(name, entry, before)]
    found: list[Parameter] = []
    for number, case in enumerate(entry):
        path = f"space.{name}[{number}]"
        if not isinstance(case, Mapping) or not case.get("when"):
            raise BadInput(f"{path} has no when, as the others have: say for which values of another key it counts")
        one = _parameter(name, case, before, path)
        for other in found:  # never both active: their `when` name a common key, with different values
            theirs = dict(other.when)
            pairs = [(values, theirs[key]) for key, values in one.when if key in theirs]
            if any(not any(is_same(a, b) for a in mine for b in yours) for mine, yours in pairs):
                continue
            raise BadInput(f"{path}.when may hold together with one above it: give each another value of one key")
        case_name = ", ".join(str(value) for _, values in one.when for value in values)
        found.append(replace(one, key=f"{name} ({case_name})", entry=name))
    return found


def _parameter(key: str, entry: Any, before: Sequence[Parameter], path: str = "") -> Parameter:
    path = path or f"space.{key}"
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
    check_keys(f"{path}.", given, RANGE, "a range")
    for name in ("type", "low", "high"):
        if given.get(name) is None:
            raise BadInput(f"{path}.{name} is missing: a range has type (int or float), low and high")
    low, high, step = given["low"], given["high"], given.get("step")
    log, points, kind = given.get("log", False), given.get("points"), given["type"]
    if points is not None and step is not None:
        raise BadInput(f"{path}.points = {points}, but step is {step:g}: give one of the two")
    try:  # Optuna checks the range
        if kind == "float":
            FloatDistribution(low, high, log=log, step=step)
        else:
            IntDistribution(low, high, log=log, step=step or 1)
    except ValueError as error:
        raise BadInput(f"{path} is no range ({show_line(error).rstrip('.')}): correct it") from None
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
    """Returns whether the conditions of a parameter hold."""
    return all(key in chosen and any(is_same(chosen[key], v) for v in values) for key, values in parameter.when)


def keep_active(space: Sequence[Parameter], values: Sequence[Any]) -> dict[str, Any]:
    """Returns the values of the active parameters, by the keys of the parameters."""
    chosen: dict[str, Any] = {}
    for parameter, value in zip(space, values, strict=True):
        if is_active(parameter, chosen):
            chosen[parameter.key] = value
    return chosen


def enumerate_grid(space: Sequence[Parameter]) -> list[dict[str, Any]]:
    """Lists every combination once, varying the last parameter fastest; inactive parameters are left out."""
    size = math.prod(len(parameter.grid()) for parameter in space)
    if size > MOST_POINTS:
        raise BadInput(f"space has {size} grid points: {MOST_POINTS} at most; use sampler random, or fewer values")
    found: dict[str, dict[str, Any]] = {}
    for values in itertools.product(*(parameter.grid() for parameter in space)):
        chosen = keep_active(space, values)
        found.setdefault(repr(chosen), chosen)
    return list(found.values())


def enumerate_corners(space: Sequence[Parameter]) -> Iterator[tuple[Parameter, dict[str, Any]]]:
    """Yields each parameter with the values of trials in which the parameter is active and at one of its ends.

    The first check of a sweep tries these trials. The ends are all choices, or the lowest and the highest value.
    """
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
    """Converts values as Optuna stores them to overrides of a scenario."""
    out: dict[str, Any] = {}
    for parameter in space:
        if parameter.key in chosen:
            value = parameter.meaning(chosen[parameter.key])
            out |= zip(parameter.keys, value if len(parameter.keys) > 1 else [value], strict=True)
    return out


def read_params(space: Sequence[Parameter], cells: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the scenario keys that a trial set, with their values, from the trial's row of the table of trials.

    Args:
        space: the parameters of the sweep.
        cells: the trial's row of the table, by column. A cell is None if the trial has no value for this parameter, or
            the value None.

    Example:
        >>> space = read_space({"predict.gamma": [None, 5.0], "model.hidden": [[8], [16]]})
        >>> read_params(space, {"predict.gamma": None, "model.hidden": "[16]"})
        {'predict.gamma': None, 'model.hidden': [16]}
    """
    chosen: dict[str, Any] = {}
    for parameter in space:
        cell = cells.get(parameter.column)
        if not is_active(parameter, chosen):
            continue
        if parameter.kind != "categorical":
            chosen |= {} if cell is None else {parameter.key: cell}
        else:
            found = [label for label in parameter.labels if is_same(label, cell) or format_value(label) == cell]
            chosen |= {parameter.key: found[0]} if found else {}
    return to_overrides(space, chosen)


# ---------------------------------------------------------------------------------------------------------------------
# Checks whether the data and the scenario of a sweep have numbers for its objectives.

PERSONAL = tuple(f"personal_{name}" for name in ("accuracy", "p10", "worst", "nll", "brier", "ece"))
PERSONAL_TARGETS = tuple(
    f"personal_{name}" for name in ("rmse", "rmse_p90", "rmse_worst", "nll", "coverage_95", "width_95")
)
SETS = ("conformal_coverage", "conformal_coverage_clients", "conformal_coverage_client_worst")  # with predict.conformal
OOD = ("ood_auroc", "ood_auroc_knowledge", "ood_fpr95", "ood_entropy")  # with evaluate.ood
CLASS_SETS = (*SETS, "conformal_coverage_class_worst", "conformal_size", "conformal_size_clients")
TARGET_SETS = (*SETS, "conformal_width", "conformal_width_clients")


def check_producible(objectives: Sequence[SweepObjective], classes: int, data: str, own: Collection[str] = ()) -> None:
    """Checks that a scenario has numbers for every objective.

    Args:
        objectives: the objectives of the sweep.
        classes: the number C of classes of the data; 0 for regression.
        data: the name of the data set, for the message.
        own: the names of the user's metrics that the scenario measures.

    Raises:
        BadInput: an objective belongs to the other task (classification or regression).

    Example:
        >>> from fedray.tuning.objectives import read_objective
        >>> check_producible([read_objective("o", "accuracy"), read_objective("o", "bytes")], classes=10, data="digits")
    """
    if classes:
        scores = classification.classification_scores(np.full((1, 2, 2), 0.5), np.array([0, 1]))
        known = [*scores, *PERSONAL, *CLASS_SETS, *OOD]
    else:
        known = [*regression.regression_scores(np.zeros((1, 2)), np.zeros(2)), *PERSONAL_TARGETS, *TARGET_SETS]
    known += [name for one in own for name in (one, f"{one}_min", f"{one}_mean", f"{one}_max", f"personal_{one}")]
    for objective in objectives:
        inner = objective.metric.removeprefix(HELD_OUT_PREFIX)
        if objective.kind != "total" and inner not in known:
            if is_own("metric", inner):
                raise BadInput(
                    f"objectives: {objective.name} is your own metric, which the scenario does not measure: add it "
                    "to its evaluate.metrics"
                )
            kind = "classes" if classes else "real targets"
            remedy = suggest_nearest(inner, known, f"choose one of {', '.join(known)}")
            raise BadInput(f"objectives: {objective.name} cannot be had from {data}, which has {kind}: {remedy}")
