"""The search space: parameters of scenarios, the grid they span, and the scenario that a choice of values means.

Example:
    >>> lr = [{"choices": [0.1, 1], "when": {"local.optimizer": "sgd"}}]
    >>> space = read_space({"local.optimizer": ["sgd", "adam"], "local.lr": lr})
    >>> space[1].key, space[1].keys
    ('local.lr (sgd)', ('local.lr',))
    >>> enumerate_grid(space)[1]
    {'local.optimizer': 'sgd', 'local.lr (sgd)': 1}
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedray.core.errors import BadInput
from fedray.core.text import quote_value, suggest_nearest
from fedray.scenario.identity import is_free
from fedray.scenario.validators import Check, flag, maybe, one_of, real, whole
from fedray.tuning.parameter import MOST_POINTS, Parameter, Values, format_value, is_same

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
        found = _read_entry(str(name), entry, space)
        for parameter in found if len(keys) > 1 else ():
            _check_joint(parameter)
        space += found
    return tuple(space)


def _read_entry(name: str, entry: Any, before: Sequence[Parameter]) -> list[Parameter]:
    """The parameter of an entry of the space, or of a list of cases one for each, of which one at most counts."""
    if not isinstance(entry, list) or not any(isinstance(case, Mapping) and "when" in case for case in entry):
        return [_parameter(name, entry, before)]
    found: list[Parameter] = []
    for number, case in enumerate(entry):
        path = f"space.{name}[{number}]"
        if not isinstance(case, Mapping) or not case.get("when"):
            raise BadInput(f"{path} has no when, as the others have: say for which values of another key it counts")
        one = _parameter(name, case, before, path)
        if not all(_exclude(one, other) for other in found):
            raise BadInput(f"{path}.when may hold together with one above it: give each another value of one key")
        case_name = ", ".join(str(value) for _, values in one.when for value in values)
        found.append(replace(one, key=f"{name} ({case_name})", entry=name))
    return found


def _exclude(one: Parameter, other: Parameter) -> bool:
    """Whether two parameters never count together: both name a key in `when`, with other values."""
    values = dict(other.when)
    return any(not any(is_same(a, b) for a in mine for b in values[key]) for key, mine in one.when if key in values)


def _check_joint(parameter: Parameter) -> None:
    """Raises `BadInput` where a choice does not have a value for each of several keys."""
    wanted = f"write a list of choices, each a list of {len(parameter.keys)} values, one for each key"
    if parameter.kind != "categorical":
        raise BadInput(f"space.{parameter.key} is a range of several keys: {wanted}")
    for choice in parameter.choices:
        if not isinstance(choice, list) or len(choice) != len(parameter.keys):
            raise BadInput(f"space.{parameter.key} holds {quote_value(choice)}: {wanted}")


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


def read_params(space: Sequence[Parameter], cells: Mapping[str, Any]) -> dict[str, Any]:
    """The scenario keys that a trial set, with their values, from its row of the table of trials.

    Args:
        space: the parameters.
        cells: by column; None where the trial has no value, or the value None.

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
