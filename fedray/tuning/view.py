"""A sweep as its pictures see it, and what they share: colors, units, axes of parameters.

Example:
    >>> from fedray.tuning.objectives import read_objective
    >>> objective = read_objective("", {"name": "accuracy", "within_bytes": 2e6})
    >>> name_objective(objective), format_cell_value(objective, 0.912)
    ('accuracy within 2 MB up and down', '91.2 %')
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import optuna
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.ticker import FuncFormatter, NullFormatter
from optuna.trial import FrozenTrial

from fedray.core import text as text_
from fedray.core.types import FloatArray
from fedray.report import style
from fedray.tuning.objectives import BYTES, HELD_OUT_PREFIX, REACH, SYNONYMS, SweepObjective
from fedray.tuning.parameter import Parameter, format_value

NAMES = {BYTES: "bytes up and down"}


class View(NamedTuple):
    """A sweep as its pictures see it.

    Attributes:
        objectives: what is optimized.
        space: the parameters.
        study: Optuna's study.
        trials: all trials.
        done: complete trials whose values are all finite.
        winners: numbers of the winning trials.
        curves: by trial number, the evaluated rounds and the metric of `pick_course` in each, `[rounds]` both.
        idle: for each objective the keys of parameters that cannot act on it; empty: all act on all.
    """

    objectives: tuple[SweepObjective, ...]
    space: tuple[Parameter, ...]
    study: optuna.Study
    trials: list[FrozenTrial]
    done: list[FrozenTrial]
    winners: list[int]
    curves: dict[int, tuple[FloatArray, FloatArray]]
    idle: tuple[frozenset[str], ...] = ()

    def acting(self, i: int) -> list[Parameter]:
        """The parameters that can act on objective i, by which it may be ranked and drawn."""
        idle = self.idle[i] if self.idle else frozenset()
        return [parameter for parameter in self.space if parameter.key not in idle]


def pick_course(objectives: Sequence[SweepObjective]) -> SweepObjective:
    """The objective whose course is drawn: the first one that is read at every round, or else the first total.

    Example:
        >>> from fedray.tuning.objectives import read_objective
        >>> pick_course([read_objective("", name) for name in ("up_bytes", "accuracy", "nll")]).name
        'accuracy'
    """
    return next((objective for objective in objectives if objective.kind != "total"), objectives[0])


def make_shades() -> Colormap:
    """Colors from low to high values, readable on light and dark pages."""
    return LinearSegmentedColormap.from_list("shades", colormaps["viridis"](np.linspace(0.12, 0.92, 64)))


def scale_values(objective: SweepObjective, values: Sequence[float]) -> tuple[FloatArray, str]:
    """Values in a unit that suits them, and the label of their axis."""
    found = np.array(values, dtype=np.float64)
    counted = objective.axis if objective.kind == "reach" else objective.metric
    for what, column in (("bytes", "bytes"), ("seconds", "sim_seconds")):
        if counted.endswith(column):
            finite = found[np.isfinite(found)]
            size, unit = text_.choose_unit(what, float(finite.max()) if len(finite) else 1.0)
            return found / size, f"{name_objective(objective)} ({unit})"
    return found, f"held-out {name_objective(objective)}" if objective.kind == "final" else name_objective(objective)


def name_objective(objective: SweepObjective) -> str:
    """An objective in words, with its budget or target."""
    prefix = next((p for p in REACH if objective.name.startswith(p)), "")
    inner = objective.name.removeprefix(prefix).removeprefix(HELD_OUT_PREFIX)
    words = {"up_bytes_to_": "uplink bytes to ", "bytes_to_": "bytes up and down to "}
    name = words.get(prefix, prefix.replace("_", " ")) + NAMES.get(inner, text_.name_score(SYNONYMS.get(inner, inner)))
    if objective.limit is None:
        return name
    if objective.kind == "reach":
        return f"{name} {text_.format_number(objective.limit, objective.metric)}"
    if not objective.axis.endswith(BYTES):
        return f"{name} within {text_.format_seconds(objective.limit)}"
    return f"{name} within {text_.format_bytes(objective.limit)} {'up and down' if objective.axis == BYTES else 'up'}"


def name_winner(objectives: Sequence[SweepObjective]) -> str:
    """What the first winner is: the best trial, or of several objectives the top of the first alone.

    Example:
        >>> from fedray.tuning.objectives import read_objective
        >>> one, other = (read_objective("", name) for name in ("accuracy", "bytes"))
        >>> name_winner([one]), name_winner([one, other]), name_winner([other, one])
        ('best', 'highest accuracy', 'lowest bytes up and down')
    """
    if len(objectives) == 1:
        return "best"
    return f"{'highest' if objectives[0].direction == 'maximize' else 'lowest'} {name_objective(objectives[0])}"


def name_objective_in_title(objective: SweepObjective) -> str:
    """The name of an objective at the beginning of a title."""
    name = name_objective(objective)
    return name[0].upper() + name[1:]


def format_cell_value(objective: SweepObjective, value: float) -> str:
    """The value of an objective in its unit."""
    counted = objective.axis if objective.kind == "reach" else objective.metric
    if not math.isfinite(value):
        return "not reached"
    if counted.endswith(BYTES):
        return text_.format_bytes(value)
    return text_.format_seconds(value) if counted == "sim_seconds" else text_.format_number(value, counted)


def format_share(axis: Any, objective: SweepObjective) -> None:
    """Shows an axis in percent where the objective is a share."""
    if objective.kind == "final" and text_.is_share(objective.metric):
        style.use_percent(axis)


def find_axis_positions(parameter: Parameter, trials: Sequence[FrozenTrial]) -> FloatArray:
    """A parameter's value in each trial on an axis; NaN where it does not count."""
    if parameter.kind != "categorical":
        return np.array([trial.params.get(parameter.key, np.nan) for trial in trials], dtype=np.float64)
    labels = [format_value(label) for label in parameter.labels]
    found = [
        labels.index(format_value(t.params[parameter.key])) if parameter.key in t.params else np.nan for t in trials
    ]
    return np.array(found, dtype=np.float64)


def set_axis_ticks(axes: Axes, which: str, parameter: Parameter) -> None:
    """Labels an axis with the choices of a parameter, or with numbers.

    Args:
        axes: the axes.
        which: "x" or "y".
        parameter: the parameter along the axis.
    """
    axis = axes.xaxis if which == "x" else axes.yaxis
    if parameter.kind == "categorical":
        labels = [format_value(label) for label in parameter.labels]
        axis.set_ticks(range(len(labels)), [text if len(text) < 14 else text[:12] + "..." for text in labels])
        (axes.set_xlim if which == "x" else axes.set_ylim)(-0.5, len(labels) - 0.5)
    elif parameter.log:
        (axes.set_xscale if which == "x" else axes.set_yscale)("log")
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    elif parameter.kind == "int":
        style.use_whole_numbers(axis)
    (axes.set_xlabel if which == "x" else axes.set_ylabel)(parameter.key)
