"""The objectives of a sweep: numbers from the history of a training, scored on held-out data, not on the test set."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedray.core.errors import (
    BadInput,
    FedrayError,
    format_bytes,
    format_number,
    format_seconds,
    name_score,
    quote_value,
    suggest_nearest,
    warn_user,
)
from fedray.core.options import Check, maybe, one_of, real, text
from fedray.metrics.scores import has_direction, lower_is_better, reaches_target, read_at_budget

Row = Mapping[str, Any]  # one evaluated round of one world; keys: round, up_bytes, sim_seconds, hold_out_*
HELD_OUT_PREFIX = "hold_out_"
SYNONYMS = {"worst_client_accuracy": "personal_worst", "virtual_seconds": "sim_seconds"}
BYTES = "bytes"  # bytes up and down: the sum of two columns
TOTALS = (BYTES, "up_bytes", "down_bytes", "sim_seconds")
DIGITS = 12  # significant digits of a value
REACH = {"bytes_to_": BYTES, "up_bytes_to_": "up_bytes", "seconds_to_": "sim_seconds", "rounds_to_": "round"}
WITHIN = {"within_bytes": BYTES, "within_up_bytes": "up_bytes", "within_seconds": "sim_seconds"}
INFERENCE = {  # keys of `predict` that change no model -> objectives that the key acts on
    "average": "accuracy or rmse",
    "gamma": "personal_accuracy or personal_rmse",
    "noise": "nll",
    "conformal": "conformal_size or conformal_width",
}
anything: Check = lambda value: value  # noqa: E731 (checked by whoever knows the kind)
KEYS: dict[str, Check] = {
    "name": text,
    "direction": maybe(one_of("maximize", "minimize")),
    "target": maybe(real("(-inf, inf)")),
    **{key: maybe(real("(0, inf)")) for key in WITHIN},
}


@dataclass(frozen=True)
class SweepObjective:
    """An objective of a sweep: one number computed from a training.

    Attributes:
        name: the objective's name in the sweep file.
        kind: how the value is computed. "final": the value of `metric` at the last evaluated round; with a limit, at
            the last evaluated round where `axis` is at most `limit`. "total": the last value of `metric`, which is a
            running total. "reach": the value of `axis` where `metric` first reaches `limit`; infinity if that never
            happens.
        metric: the column of the rounds that the value is taken from.
        direction: whether to "maximize" or "minimize" the value.
        axis: the column that `limit` bounds ("final"), or that the value is taken from ("reach"); empty without a
            limit.
        limit: a budget of `axis` ("final"), or a target of `metric` ("reach"); None without budget and target.
    """

    name: str
    kind: Literal["final", "total", "reach"]
    metric: str
    direction: Literal["maximize", "minimize"]
    axis: str = ""
    limit: float | None = None

    @property
    def needs_history(self) -> bool:
        """Returns whether the value depends on more than the last evaluated round."""
        return self.limit is not None

    @property
    def is_personal(self) -> bool:
        """Returns whether the objective needs known clients to be evaluated one by one."""
        return self.metric.startswith(f"{HELD_OUT_PREFIX}personal")

    def is_decided(self, row: Row) -> bool:
        """Returns whether the rounds after this one can no longer change the value."""
        if self.limit is None:
            return False
        if self.kind == "reach":
            value = row.get(self.metric)  # some scores do not exist before the first round
            return value is not None and reaches_target(self.metric, value, self.limit)
        return read_cost(row, self.axis) > self.limit


def read_cost(row: Row, name: str) -> float:
    """Returns a number of an evaluated round: a column, or the sum of the bytes up and down.

    Example:
        >>> read_cost({"up_bytes": 30, "down_bytes": 70}, "bytes"), read_cost({"up_bytes": 30}, "up_bytes")
        (100.0, 30.0)
    """
    return float(row["up_bytes"] + row.get("down_bytes", 0)) if name == BYTES else float(row[name])


def check_keys(path: str, given: Mapping[str, Any], table: Mapping[str, Check], what: str, prefix: str = "") -> None:
    """Refuses keys of a sweep file that a table does not list, and values that the check of their key refuses.

    Args:
        path: the section of the file that holds the keys, with a dot at the end; empty at the top level.
        given: the keys and their values.
        table: the check of each key.
        what: the name of the thing with these keys, for the message.
        prefix: the text before the key that a message suggests.

    Raises:
        BadInput: a key is unknown, or a value is impossible.
    """
    for key, value in given.items():
        if key not in table:
            remedy = suggest_nearest(str(key), table, f"it has {', '.join(table)}", prefix=prefix)
            raise BadInput(f"{path}{key} is not a key of {what}: {remedy}")
        try:
            table[key](value)
        except ValueError as wrong:
            raise BadInput(f"{path}{key} = {quote_value(value)} {wrong}") from None


def read_objective(path: str, given: Any) -> SweepObjective:
    """Reads an objective from its entry in a sweep file: a name or `{name, direction, target, within_bytes, ...}`.

    Example:
        >>> read_objective("objectives[0]", {"name": "rounds_to_accuracy", "target": 0.9}).axis
        'round'
    """
    entry = {"name": given} if isinstance(given, str) else given
    if not isinstance(entry, Mapping):
        raise BadInput(
            f"{path} = {quote_value(given)} is not an objective: write a name such as accuracy, or {{name: ...}}"
        )
    check_keys(f"{path}.", entry, KEYS, "an objective")
    if entry.get("name") is None:
        raise BadInput(f"{path}.name is missing: give it a value such as accuracy")
    return _objective(path, {key: value for key, value in entry.items() if value is not None})


def _objective(path: str, entry: Mapping[str, Any]) -> SweepObjective:
    name = entry["name"]
    prefix = next((p for p in REACH if name.startswith(p)), "")
    inner = name.removeprefix(prefix).removeprefix(HELD_OUT_PREFIX)
    metric = SYNONYMS.get(inner, inner)
    within = [key for key in WITHIN if key in entry]
    if prefix and ("target" not in entry or within):
        fault = f"has {within[0]}: drop it" if within else f"needs a target: write {{name: {name}, target: 0.9}}"
        raise BadInput(f"{path}.name = {name} {fault}")
    if not prefix and "target" in entry:
        raise BadInput(f"{path}.target = {entry['target']:g} belongs to bytes_to_, seconds_to_ and rounds_to_: drop it")
    if len(within) > 1 or (within and metric in TOTALS):
        raise BadInput(f"{path}.{within[-1]} = {entry[within[-1]]:g} cannot be used here: drop it")
    if metric in TOTALS and not prefix:
        return SweepObjective(name, "total", metric, entry.get("direction", "minimize"))
    if ("direction" not in entry or prefix) and not has_direction(metric):
        remedy = "choose another" if prefix else f"write {{name: {name}, direction: minimize}}, or maximize"
        text = f"{path}.name = {name}, of which neither more nor less is better, and more counts as better: {remedy}"
        warn_user(text)
    low = bool(prefix) or lower_is_better(metric)
    direction = entry.get("direction", "minimize" if low else "maximize")
    if prefix:
        return SweepObjective(name, "reach", HELD_OUT_PREFIX + metric, direction, REACH[prefix], float(entry["target"]))
    if within:
        limit = float(entry[within[0]])
        return SweepObjective(name, "final", HELD_OUT_PREFIX + metric, direction, WITHIN[within[0]], limit)
    return SweepObjective(name, "final", HELD_OUT_PREFIX + metric, direction)


def name_objective(objective: SweepObjective) -> str:
    """Returns an objective in words, with its budget or target.

    Example:
        >>> objective = read_objective("", {"name": "accuracy", "within_bytes": 2e6})
        >>> name_objective(objective)
        'accuracy within 2 MB up and down'
    """
    prefix = next((p for p in REACH if objective.name.startswith(p)), "")
    inner = objective.name.removeprefix(prefix).removeprefix(HELD_OUT_PREFIX)
    words = {"up_bytes_to_": "uplink bytes to ", "bytes_to_": "bytes up and down to "}
    word = "bytes up and down" if inner == BYTES else name_score(SYNONYMS.get(inner, inner))
    name = words.get(prefix, prefix.replace("_", " ")) + word
    if objective.limit is None:
        return name
    if objective.kind == "reach":
        return f"{name} {format_number(objective.limit, objective.metric)}"
    if not objective.axis.endswith(BYTES):
        return f"{name} within {format_seconds(objective.limit)}"
    return f"{name} within {format_bytes(objective.limit)} {'up and down' if objective.axis == BYTES else 'up'}"


def name_winner(objectives: Sequence[SweepObjective]) -> str:
    """Names the first winner: the best trial, or, with several objectives, the trial that is best on the first one.

    Example:
        >>> one, other = (read_objective("", name) for name in ("accuracy", "bytes"))
        >>> name_winner([one]), name_winner([one, other]), name_winner([other, one])
        ('best', 'highest accuracy', 'lowest bytes up and down')
    """
    if len(objectives) == 1:
        return "best"
    return f"{'highest' if objectives[0].direction == 'maximize' else 'lowest'} {name_objective(objectives[0])}"


def compute_value(objective: SweepObjective, history: Sequence[Row]) -> float:
    """Computes the value of an objective from the evaluated rounds of one world, in ascending order.

    Example:
        >>> rows = [{"round": r, "up_bytes": 40 * r, "down_bytes": 60 * r, "hold_out_accuracy": 0.3 * r}
        ...         for r in range(4)]
        >>> compute_value(read_objective("", {"name": "bytes_to_accuracy", "target": 0.5}), rows)
        200.0
        >>> compute_value(read_objective("", {"name": "accuracy", "within_bytes": 150}), rows)
        0.3
        >>> compute_value(read_objective("", {"name": "accuracy", "within_up_bytes": 100}), rows)
        0.6

    Raises:
        FedrayError: no evaluation lies near the budget of the objective.
    """
    if objective.kind == "reach":
        reached = (read_cost(row, objective.axis) for row in history if objective.is_decided(row))
        return next(reached, math.inf)
    if objective.limit is not None:
        return _read_within(objective, history, objective.limit)
    return read_cost(history[-1], objective.metric)


def _read_within(objective: SweepObjective, history: Sequence[Row], limit: float) -> float:
    """Returns the score after the last round within a budget; if it was not evaluated, a score near the budget."""
    inside = [row for row in history if read_cost(row, objective.axis) <= limit]
    after = history[len(inside) : len(inside) + 1]
    if inside and all(row["round"] == inside[-1]["round"] + 1 for row in after):
        return float(inside[-1][objective.metric])
    trained = [row for row in history if row["round"]]
    costs, scores = ([read_cost(row, name) for row in trained] for name in (objective.axis, objective.metric))
    found = read_at_budget(costs, scores, limit)
    if found is None:
        within = next(key for key, axis in WITHIN.items() if axis == objective.axis)
        raise FedrayError(f"{objective.name}: no evaluation lies near {within}, inside it: lower evaluate.every")
    return found.value


def judge_worlds(
    objectives: Sequence[SweepObjective], histories: Sequence[Sequence[Row]]
) -> tuple[list[float], tuple[float | None, ...]]:
    """Computes for each objective the mean of its values over worlds, and the standard error sd / sqrt(worlds).

    A value is rounded to 12 significant digits, because the order of a sum may change further digits. So trials that
    did equally well have equal values. A standard error is None if there is only one world, or if one of the worlds did
    not reach the target.

    Args:
        objectives: the objectives of the sweep.
        histories: for each world its evaluated rounds, in ascending order.

    Raises:
        FedrayError: an objective was not measured, or its value is NaN.

    Example:
        >>> worlds = [[{"round": 1, "hold_out_accuracy": value}] for value in (0.5, 0.75)]
        >>> judge_worlds([read_objective("", "accuracy")], worlds)
        ([0.625], (0.125,))
    """
    values: list[float] = []
    errors: list[float | None] = []
    for objective in objectives:
        if objective.metric != BYTES and any(history[-1].get(objective.metric) is None for history in histories):
            raise FedrayError(
                f"{objective.name} was not measured (one model, or no held-out rows?): raise method.models, or "
                "data.hold_out"
            )
        each = [compute_value(objective, history) for history in histories]
        values.append(float(f"{np.mean(each):.{DIGITS}g}"))
        if math.isnan(values[-1]):
            raise FedrayError(f"{objective.name} is not a number: lower local.lr")
        known = len(each) > 1 and bool(np.isfinite(each).all())
        errors.append(float(np.std(each, ddof=1) / math.sqrt(len(each))) if known else None)
    return values, tuple(errors)


def find_inference_keys(metric: str) -> tuple[str, ...]:
    """Returns the keys of `predict` that a held-out metric depends on, such as `gamma` for metrics of known clients."""
    if not metric.startswith(HELD_OUT_PREFIX):
        return ()
    if metric.startswith(f"{HELD_OUT_PREFIX}conformal"):
        return ("average", "noise", "conformal", *(("gamma",) if "_client" in metric else ()))
    if metric.startswith(f"{HELD_OUT_PREFIX}personal"):
        spread = metric.endswith(("nll", "coverage_95", "width_95"))
        return ("gamma", "average", "noise") if spread else ("gamma", "average")
    return ("average", "noise")


def explain_idle_keys(keys: Sequence[str], objectives: Sequence[SweepObjective], ends: Sequence[str]) -> list[str]:
    """Returns a line for each key of a space that changes how the ensemble predicts, but changes no objective.

    Args:
        keys: the keys of the space, dotted.
        objectives: the objectives of the sweep.
        ends: the scores that may end trainings early.

    Example:
        >>> explain_idle_keys(["local.lr", "predict.gamma"], [read_objective("o", "accuracy")], [])
        ['space.predict.gamma cannot act on accuracy: leave it out, or add personal_accuracy or personal_rmse']
    """
    names = ", ".join(objective.name for objective in objectives)
    return [
        f"space.{key} cannot act on {names}: leave it out, or add {INFERENCE[key.split('.')[1]]}"
        for key in list_idle_keys(keys, objectives, ends)
    ]


def list_idle_keys(keys: Sequence[str], objectives: Sequence[SweepObjective], ends: Sequence[str]) -> list[str]:
    """Lists the keys of a space that change how the ensemble predicts, but change no objective.

    The arguments are those of `explain_idle_keys`.
    """
    metrics = [*(objective.metric for objective in objectives), *ends]
    used = {key for metric in metrics for key in find_inference_keys(metric)}
    options = [(key, key.split(".")[1]) for key in keys if key.startswith("predict.")]
    return [key for key, option in options if option in INFERENCE and option not in used]
