"""Reads the objectives of a sweep and the parameters of its space, and turns chosen values into scenario keys."""

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from optuna import Trial
from optuna.distributions import FloatDistribution, IntDistribution

from fedray.core import errors as wording
from fedray.core import options as opt
from fedray.core.errors import BadInput, FedrayError, quote_value, suggest_nearest, warn_user
from fedray.core.scores import BY_TIER, OOD, cut_split
from fedray.metrics import classification, regression
from fedray.metrics.scores import has_direction, lower_is_better, reaches_target, read_at_budget
from fedray.scenario import nested
from fedray.scenario.identity import is_free
from fedray.scenario.names import is_own
from fedray.scenario.schema import make_section
from fedray.simulation.rounds import collect_values

# ---------------------------------------------------------------------------------------------------------------------
# Objectives, which are computed from the evaluated rounds of a training. Their scores are measured on withheld samples
# instead of test samples.

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
anything: opt.Check = lambda value: value  # noqa: E731 (checked by whoever knows the kind)


@dataclass(frozen=True)
class ObjectiveKeys:
    """An objective in a sweep file.

    Attributes:
        name: The score or the cost.
        direction: "maximize" or "minimize".
        target: The score to reach. The objective is the cost until then.
        within_bytes: A budget of bytes up and down. The objective is the score within the budget.
        within_up_bytes: A budget of uploaded bytes.
        within_seconds: A budget of virtual seconds.
    """

    name: str = opt.key(opt.REQUIRED, opt.text)
    direction: str | None = opt.key(None, opt.maybe(opt.one_of("maximize", "minimize")))
    target: float | None = opt.key(None, opt.maybe(opt.real("(-inf, inf)")))
    within_bytes: float | None = opt.key(None, opt.maybe(opt.real("(0, inf)")))
    within_up_bytes: float | None = opt.key(None, opt.maybe(opt.real("(0, inf)")))
    within_seconds: float | None = opt.key(None, opt.maybe(opt.real("(0, inf)")))


@dataclass(frozen=True)
class SweepObjective:
    """An objective of a sweep: one number that is computed from a training.

    Attributes:
        name: The objective's name in the sweep file.
        kind: "final" means a score at the end or within a budget. "total" means the last value of a running total.
            "reach" means the cost at which a score reaches a target.
        metric: The column of `rounds.parquet` with the score or the running total.
        direction: "maximize" or "minimize", which says whether a high or a low value is good.
        axis: The column with the cost. It is empty if there is neither a budget nor a target.
        limit: The budget of the kind "final", or the target of the kind "reach". With a budget, the value is the score
            after the last round whose cost is at most `limit`. With a target, the value is the cost of the first round
            whose score reaches `limit`, or infinity if no score does. None means no budget and no target.
    """

    name: str
    kind: Literal["final", "total", "reach"]
    metric: str
    direction: Literal["maximize", "minimize"]
    axis: str = ""
    limit: float | None = None

    def is_decided(self, row: Row) -> bool:
        """Returns whether rounds after the round of `row` can no longer change the value."""
        if self.limit is None:
            return False
        if self.kind == "reach":
            value = row.get(self.metric)  # some scores do not exist before the first round
            return value is not None and reaches_target(self.metric, value, self.limit)
        return read_cost(row, self.axis) > self.limit


def read_cost(row: Row, name: str) -> float:
    """Returns a cost of an evaluated round. `name` is a column, or `bytes` for the sum of bytes up and down.

    Example:
        >>> read_cost({"up_bytes": 30, "down_bytes": 70}, "bytes"), read_cost({"up_bytes": 30}, "up_bytes")
        (100.0, 30.0)
    """
    return float(row["up_bytes"] + row.get("down_bytes", 0)) if name == BYTES else float(row[name])


def read_objective(path: str, given: Any) -> SweepObjective:
    """Reads an objective of a sweep file, given as a name or as `{name, direction, target, within_bytes, ...}`.

    Raises:
        BadInput: A key is wrong, or does not fit the others.

    Example:
        >>> read_objective("objectives[0]", {"name": "rounds_to_accuracy", "target": 0.9}).axis
        'round'
    """
    entry: Any = {"name": given} if isinstance(given, str) else given
    section = opt.Section(ObjectiveKeys, example={"name": "accuracy"}, what="an objective")
    keys = vars(make_section(section, entry, (path,)))
    entry = {key: value for key, value in keys.items() if value is not None}
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
    costs = {BYTES: "bytes up and down", "up_bytes": "uplink bytes", "sim_seconds": "seconds", "round": "rounds"}
    inner = objective.metric.removeprefix(HELD_OUT_PREFIX)
    name = costs[BYTES] if inner == BYTES else wording.name_score(inner)
    if objective.limit is None:
        return name
    if objective.kind == "reach":
        limit = wording.format_number(objective.limit, objective.metric)
        return f"{costs[objective.axis]} to {name} {limit}"
    if not objective.axis.endswith(BYTES):
        return f"{name} within {wording.format_seconds(objective.limit)}"
    return f"{name} within {wording.format_bytes(objective.limit)} {'up and down' if objective.axis == BYTES else 'up'}"


def name_winner(objectives: Sequence[SweepObjective]) -> str:
    """Returns words for the first winner, which is the best trial for the first objective.

    Example:
        >>> one, other = (read_objective("", name) for name in ("accuracy", "bytes"))
        >>> name_winner([one]), name_winner([one, other]), name_winner([other, one])
        ('best', 'highest accuracy', 'lowest bytes up and down')
    """
    if len(objectives) == 1:
        return "best"
    return f"{'highest' if objectives[0].direction == 'maximize' else 'lowest'} {name_objective(objectives[0])}"


def compute_value(objective: SweepObjective, history: Sequence[Row]) -> float:
    """Computes the value of an objective in one replicate and fold.

    `history` has a row for each evaluated round, in ascending order.

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
        FedrayError: No evaluation lies near the budget of the objective.
    """
    if objective.kind == "reach":
        reached = (read_cost(row, objective.axis) for row in history if objective.is_decided(row))
        return next(reached, math.inf)
    if objective.limit is not None:
        return _read_within(objective, history, objective.limit)
    return read_cost(history[-1], objective.metric)


def _read_within(objective: SweepObjective, history: Sequence[Row], limit: float) -> float:
    """Returns the score after the last round whose cost is within a budget.

    If this round may not have been evaluated, estimates the score from the nearest evaluations (`read_at_budget`).
    """
    inside = [row for row in history if read_cost(row, objective.axis) <= limit]
    after = history[len(inside) : len(inside) + 1]
    if inside and all(row["round"] == inside[-1]["round"] + 1 for row in after):
        return float(inside[-1][objective.metric])
    trained = [row for row in history if row["round"]]
    costs, scores = ([read_cost(row, name) for row in trained] for name in (objective.axis, objective.metric))
    found = read_at_budget(costs, scores, limit)
    if found is None:
        within = next(key for key, axis in WITHIN.items() if axis == objective.axis)
        raise FedrayError(f"{objective.name}: no evaluation lies near {within}, inside it: raise {within}")
    return found.value


def average_objectives(
    objectives: Sequence[SweepObjective], histories: Sequence[Sequence[Row]]
) -> tuple[list[float], tuple[float | None, ...]]:
    """Computes the mean of each objective over worlds, and the standard error of this mean, sd / sqrt(worlds).

    A *world* is one combination of a seed and a fold. A mean is rounded to 12 significant digits, because the order of
    a sum may change further digits. So trials with equally good scores have equal means. A standard error is None for a
    single world, or if a world did not reach the target.

    Raises:
        FedrayError: An objective was not measured, or its value is NaN.

    Example:
        >>> worlds = [[{"round": 1, "hold_out_accuracy": value}] for value in (0.5, 0.75)]
        >>> average_objectives([read_objective("", "accuracy")], worlds)
        ([0.625], (0.125,))
    """
    values: list[float] = []
    errors: list[float | None] = []
    for objective in objectives:
        if objective.metric != BYTES and any(history[-1].get(objective.metric) is None for history in histories):
            raise FedrayError(
                f"{objective.name} was not measured (one model, or too few held-out rows?): raise method.models, or "
                "data.hold_out"
            )
        found = [compute_value(objective, history) for history in histories]
        rows = [{**history[-1], "": float(value)} for history, value in zip(histories, found, strict=True)]
        each = collect_values(rows)[""]  # without worlds in which the metric is undefined
        values.append(float(f"{np.mean(each):.{DIGITS}g}"))
        if math.isnan(values[-1]):
            raise FedrayError(f"{objective.name} is not a number: lower local.lr")
        known = len(each) > 1 and bool(np.isfinite(each).all())
        errors.append(float(np.std(each, ddof=1) / math.sqrt(len(each))) if known else None)
    return values, tuple(errors)


def list_keys_of_score(metric: str) -> tuple[str, ...]:
    """Returns the keys of `predict` on which a metric of held-out or training samples depends."""
    split, score = cut_split(metric)
    if not split:
        return ()
    if score.startswith("conformal"):
        return ("average", "noise", "conformal", *(("gamma",) if "_client" in metric else ()))
    if score.startswith(("personal", "tier_")):
        spread = score.endswith(("nll", "coverage_95", "width_95"))
        return ("gamma", "average", "noise") if spread else ("gamma", "average")
    return ("average", "noise")


def list_idle_keys(keys: Sequence[str], objectives: Sequence[SweepObjective], ends: Sequence[str]) -> list[str]:
    """Lists the searched keys that change the ensemble's predictions but no objective.

    `ends` has the scores that may end trainings early. A key that changes such a score is not listed.
    """
    metrics = [*(objective.metric for objective in objectives), *ends]
    used = {key for metric in metrics for key in list_keys_of_score(metric)}
    options = [(key, key.split(".")[1]) for key in keys if key.startswith("predict.")]
    return [key for key, option in options if option in INFERENCE and option not in used]


# ---------------------------------------------------------------------------------------------------------------------
# A parameter of a search space, which is one or more scenario keys with the values to try.

MOST_POINTS = 100_000  # combinations of values in a grid
Values = Mapping[str, Any]  # parameter -> value, as Optuna stores it


@dataclass(frozen=True)
class Parameter:
    """A parameter of a sweep: a scenario key with values to try, or several keys that change together.

    Attributes:
        key: The name of the parameter. It is the dotted scenario key. If the sweep file has several alternatives with
            `when` for this key, the values that select the alternative follow in parentheses, as in `local.lr (sgd)`.
            If several keys change together, commas separate the keys, and each choice has a value for each key.
        kind: "categorical", "int" or "float".
        choices: The values of a categorical parameter.
        low: The lowest value of a range.
        high: The highest value of a range.
        step: The distance between the values of a range. None means 1 for integers, and no steps for floats.
        log: Whether a range is searched on a logarithmic scale.
        points: The number of values of a range that a grid tries. None means every step of the range.
        when: The conditions under which the parameter is active. Each condition is the key of another parameter, and
            the allowed values of that parameter.
        entry: The key without the parentheses, if the parameter is one of several alternatives for a key. Otherwise it
            is empty.

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
        """Returns the name of the parameter's column in tables. Alternatives for the same keys share a column."""
        return self.entry or self.key

    @property
    def keys(self) -> tuple[str, ...]:
        """Returns the scenario keys that the parameter sets."""
        return tuple(key.strip() for key in self.column.split(","))

    @property
    def labels(self) -> list[Any]:
        """Returns the choices in a form that Optuna can store. Lists and mappings become text."""
        return [
            choice if choice is None or isinstance(choice, bool | int | float | str) else format_value(choice)
            for choice in self.choices
        ]

    def meaning(self, stored: Any) -> Any:
        """Returns the value in the scenario for a value that Optuna stores."""
        if self.kind != "categorical":
            return stored
        return next(c for c, label in zip(self.choices, self.labels, strict=True) if is_same(label, stored))

    def ends(self) -> list[Any]:
        """Returns every choice, or the lowest and the highest value of a range."""
        return self.labels if self.kind == "categorical" else [self._typed(self.low), self._typed(self.high)]

    def grid(self) -> list[Any]:
        """Returns every value that a grid tries. Both ends of a range are tried.

        Example:
            >>> spaced = {"type": "float", "low": 0.1, "high": 0.3, "step": 0.1}  # 0.3 - 0.1 is less than 2 steps
            >>> [len(one.grid()) for one in read_space({"local.lr": spaced, "local.epochs": [1, 2]})]
            [3, 2]
        """
        if self.kind == "categorical":
            return self.labels
        if self.points is not None:
            spaced = np.geomspace if self.log else np.linspace
            return [self._typed(v) for v in dict.fromkeys(spaced(self.low, self.high, self.points).tolist())]
        if self.step is None and self.kind == "float":
            raise BadInput(f"space.{self.key} has no step, which a grid needs: give it step or points")
        step = self.step or 1
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
    """Returns whether two values are equal. A boolean never equals a number, so `True` and 1 are not the same."""
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


# ---------------------------------------------------------------------------------------------------------------------
# The search space, with parameters, the grid of their values, and the scenario keys that chosen values set.

FORBIDDEN = {
    **dict.fromkeys(("data.hold_out", "data.test_clients"), "trials would be compared on different data"),
    "evaluate": "trials would be measured differently",
}


@dataclass(frozen=True)
class RangeKeys:
    """A range in the space of a sweep file. The attributes of `Parameter` explain the keys.

    Attributes:
        type: "int" or "float".
        low: The lowest value.
        high: The highest value.
        step: The distance between values.
        log: Whether the scale is logarithmic.
        points: The number of values of a grid.
        choices: The values of a parameter without a range. They are read before the other keys.
        when: The conditions of the parameter. They are read before the other keys.
    """

    type: str = opt.key(opt.REQUIRED, opt.one_of("int", "float", "categorical"))
    low: float = opt.key(opt.REQUIRED, opt.real("(-inf, inf)"))
    high: float = opt.key(opt.REQUIRED, opt.real("(-inf, inf)"))
    step: float | None = opt.key(None, opt.maybe(opt.real("(0, inf)")))
    log: bool = opt.key(False, opt.flag)
    points: int | None = opt.key(None, opt.maybe(opt.whole(2, 1000)))
    choices: Any = opt.key(None, anything)
    when: Any = opt.key(None, anything)


def read_space(given: Any) -> tuple[Parameter, ...]:
    """Reads the section `space` of a sweep file. Returns its parameters.

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
    """Reads an entry of the space: one parameter, or several alternatives. A trial uses at most one alternative."""
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
    found = make_section(opt.Section(RangeKeys, what="a range"), given, (path,))
    kind, low, high, step = found.type, found.low, found.high, found.step
    log, points = found.log, found.points
    if points is not None and step is not None:
        raise BadInput(f"{path}.points = {points}, but step is {step:g}: give one of the two")
    try:  # Optuna checks the range
        if kind == "float":
            FloatDistribution(low, high, log=log, step=step)
        else:
            IntDistribution(low, high, log=log, step=step or 1)
    except ValueError as error:
        raise BadInput(f"{path} is no range ({wording.show_line(error).rstrip('.')}): correct it") from None
    if step is not None and abs((high - low) / step - round((high - low) / step)) > 1e-6:
        raise BadInput(f"{path}.step = {step:g} does not lead from {low:g} to {high:g}: give one that does")
    for name, value in (("low", low), ("high", high), ("step", step)):
        if kind == "int" and value is not None and float(value) != round(value):
            raise BadInput(f"{path}.{name} = {value:g} is not a whole number: give one, or type: float")
    return Parameter(key, kind, (), low, high, step, log, points, when)


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
    """Returns a dict from key to value, without the parameters whose conditions do not hold.

    `values` has the value of each parameter of `space`.
    """
    chosen: dict[str, Any] = {}
    for parameter, value in zip(space, values, strict=True):
        if is_active(parameter, chosen):
            chosen[parameter.key] = value
    return chosen


def enumerate_grid(space: Sequence[Parameter]) -> list[dict[str, Any]]:
    """Lists all different combinations of values. The last parameter varies fastest.

    A combination leaves out the parameters whose conditions do not hold.

    Raises:
        BadInput: There are more than 100,000 combinations.
    """
    size = math.prod(len(parameter.grid()) for parameter in space)
    if size > MOST_POINTS:
        raise BadInput(f"space has {size} grid points: {MOST_POINTS} at most; use sampler random, or fewer values")
    found: dict[str, dict[str, Any]] = {}
    for values in itertools.product(*(parameter.grid() for parameter in space)):
        chosen = keep_active(space, values)
        found.setdefault(repr(chosen), chosen)
    return list(found.values())


def enumerate_corners(space: Sequence[Parameter]) -> Iterator[tuple[Parameter, dict[str, Any]]]:
    """Yields trials for checking a sweep, as pairs of the parameter that is checked and the values of the trial.

    There is a trial for each choice of a categorical parameter, and for the lowest and the highest value of a range.
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
    """Returns the overrides of a scenario for the values of a trial. `chosen` has the values as Optuna stores them."""
    out: dict[str, Any] = {}
    for parameter in space:
        if parameter.key in chosen:
            value = parameter.meaning(chosen[parameter.key])
            out |= zip(parameter.keys, value if len(parameter.keys) > 1 else [value], strict=True)
    return out


def read_params(space: Sequence[Parameter], cells: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the scenario keys that a trial set, with their values, from the trial's row of `trials.parquet`.

    `cells` is the field `params` of the row, a mapping from column to cell. A cell is None if the trial has no value
    for this parameter, or if the value is None.

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
# Checks whether the objectives of a sweep can be measured with its data and its scenario.

PERSONAL = tuple(f"personal_{name}" for name in ("accuracy", "p10", "worst", "nll", "brier", "ece"))
PERSONAL_TARGETS = tuple(
    f"personal_{name}" for name in ("rmse", "rmse_p90", "rmse_worst", "nll", "coverage_95", "width_95")
)
SETS = ("conformal_coverage", "conformal_coverage_clients", "conformal_coverage_client_worst")  # with predict.conformal
CLASS_SETS = (*SETS, "conformal_coverage_class_worst", "conformal_size", "conformal_size_clients")
TARGET_SETS = (*SETS, "conformal_width", "conformal_width_clients")


def check_producible(
    objectives: Sequence[SweepObjective], classes: int, data: str, own: Collection[str] = (), tiers: Sequence[str] = ()
) -> None:
    """Checks that a training of a scenario measures every objective.

    `classes` is the number of classes of the data. It is 0 for a regression. `data` is the name of the data in
    messages. `own` has the names of the user's metrics in the scenario, and `tiers` those of the tiers that are scored.

    Raises:
        BadInput: An objective is no score of these data. An example is the accuracy of a regression.

    Example:
        >>> from fedray.tuning.space import read_objective
        >>> check_producible([read_objective("o", "accuracy"), read_objective("o", "bytes")], classes=10, data="digits")
        >>> gap = read_objective("o", {"name": "tier_a_minus_b_rmse", "direction": "minimize"})
        >>> check_producible([gap, read_objective("o", "tier_b_rmse")], classes=0, data="sine", tiers=["a", "b"])
    """
    if classes:
        scores = classification.classification_scores(np.full((1, 2, 2), 0.5), np.array([0, 1]))
        known = [*scores, *PERSONAL, *CLASS_SETS, *OOD]
    else:
        scores = regression.regression_scores(np.zeros((1, 2)), np.zeros(2), residual=1.0)
        known = [*scores, *PERSONAL_TARGETS, *TARGET_SETS]
    by_tier = [name for name in BY_TIER if name in known and name not in (*CLASS_SETS, *TARGET_SETS)]  # held out
    known += [name for one in own for name in (one, f"{one}_min", f"{one}_mean", f"{one}_max", f"personal_{one}")]
    known += [f"tier_{tier}_{name}" for tier in tiers for name in (*by_tier, *own)]
    known += [f"tier_{tiers[0]}_minus_{tier}_{name}" for tier in tiers[1:] for name in by_tier]
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
