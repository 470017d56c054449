"""Draws `report.html` of a sweep, in the style of the reports of runs."""

import json
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from optuna.trial import FrozenTrial, TrialState

from fedray.core import errors as text
from fedray.core.types import FloatArray
from fedray.files import plain
from fedray.report import pictures
from fedray.report.page import Card, Drawing, draw_named, fill_template, make_section
from fedray.report.read import Best, Table
from fedray.scenario import nested
from fedray.tuning.optuna_study import trial_note
from fedray.tuning.space import BYTES, Parameter, SweepObjective, format_value, name_objective, name_winner
from fedray.tuning.sweep import Sweep, list_idle_parameters
from fedray.tuning.trial import read_histories

# ---------------------------------------------------------------------------------------------------------------------
# The data that the pictures of a sweep show, and what the pictures share: colors, units, axes of parameters.


class View(NamedTuple):
    """The data of a sweep that its pictures show.

    Attributes:
        objectives: The objectives of the sweep.
        space: The parameters of the sweep.
        study: Optuna's study of the sweep.
        trials: All trials of the sweep.
        done: The complete trials. The pictures of an objective leave out trials without a finite value (`finite`).
        winners: The trial numbers of the winners.
        curves: Two arrays `[rounds]` for each trial number: the evaluated rounds, and the values of one metric in these
            rounds. The metric is that of the objective to draw over rounds (`pick_course`).
        idle: For each objective, the keys of the parameters that cannot change its value. An empty tuple means that
            every parameter can change every objective.
    """

    objectives: tuple[SweepObjective, ...]
    space: tuple[Parameter, ...]
    study: optuna.Study
    trials: list[FrozenTrial]
    done: list[FrozenTrial]
    winners: list[int]
    curves: dict[int, tuple[FloatArray, FloatArray]]
    idle: tuple[frozenset[str], ...] = ()

    def finite(self, *which: int) -> list[FrozenTrial]:
        """Returns the complete trials in which all objectives in `which` (numbered from 0) have finite values."""
        return [trial for trial in self.done if all(math.isfinite(trial.values[i]) for i in which)]

    def acting(self, i: int) -> list[Parameter]:
        """Returns the parameters that can change objective i. Only these parameters are ranked and drawn for it."""
        return [parameter for parameter in self.space if not self.idle or parameter.key not in self.idle[i]]


def pick_course(objectives: Sequence[SweepObjective]) -> SweepObjective:
    """Returns the objective to draw over rounds.

    It is the first objective that is not a running total. If there is no such objective, it is the first of all.

    Example:
        >>> from fedray.tuning.space import read_objective
        >>> pick_course([read_objective("", name) for name in ("up_bytes", "accuracy", "nll")]).name
        'accuracy'
    """
    return next((objective for objective in objectives if objective.kind != "total"), objectives[0])


def scale_values(objective: SweepObjective, values: Sequence[float]) -> tuple[FloatArray, str]:
    """Converts values of an objective to a suitable unit. Returns the new values and the label of the axis.

    Example:
        >>> from fedray.tuning.space import read_objective
        >>> [scale_values(read_objective("", name), [2e6])[1] for name in ("accuracy", "up_bytes")]
        ['held-out accuracy', 'uplink (MB)']
    """
    found = np.array(values, dtype=np.float64)
    counted = objective.axis if objective.kind == "reach" else objective.metric
    for what, column in (("bytes", "bytes"), ("seconds", "sim_seconds")):
        if counted.endswith(column):
            finite = found[np.isfinite(found)]
            size, unit = text.choose_unit(what, float(finite.max()) if len(finite) else 1.0)
            return found / size, f"{name_objective(objective)} ({unit})"
    return found, f"held-out {name_objective(objective)}" if objective.kind == "final" else name_objective(objective)


def format_cell_value(objective: SweepObjective, value: float) -> str:
    """Formats the value of an objective with its unit."""
    counted = objective.axis if objective.kind == "reach" else objective.metric
    if objective.kind == "reach" and not math.isfinite(value):
        return "not reached"
    if counted.endswith(BYTES):
        return text.format_bytes(value)
    return text.format_seconds(value) if counted == "sim_seconds" else text.format_number(value, counted)


def format_share(axis: Any, objective: SweepObjective) -> None:
    """Formats an axis in percent if the objective is a share (a number from 0 to 1)."""
    if objective.kind == "final" and text.is_share(objective.metric):
        pictures.use_percent(axis)


def find_axis_positions(parameter: Parameter, trials: Sequence[FrozenTrial]) -> FloatArray:
    """Returns the position of each trial on the axis of a parameter, or NaN if the trial does not use the parameter."""
    if parameter.kind != "categorical":
        return np.array([trial.params.get(parameter.key, np.nan) for trial in trials], dtype=np.float64)
    place = {format_value(label): float(i) for i, label in enumerate(parameter.labels)}
    key = parameter.key
    return np.array([place[format_value(one.params[key])] if key in one.params else np.nan for one in trials])


def label_parameter(axes: Axes, parameter: Parameter) -> None:
    """Labels the horizontal axis with a parameter's choices, or with numbers if its values are a range."""
    if parameter.kind == "categorical":
        labels = [format_value(label) for label in parameter.labels]
        ticks = {float(i): name if len(name) < 14 else name[:12] + "..." for i, name in enumerate(labels)}
        pictures.name_places(axes.xaxis, labels, ticks=ticks)
        axes.set_xlim(-0.5, len(labels) - 0.5)
    elif parameter.log:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    elif parameter.kind == "int":
        pictures.use_whole_numbers(axes.xaxis)
    axes.set_xlabel(parameter.key)


# ---------------------------------------------------------------------------------------------------------------------
# Pictures of the search: history, Pareto front, learning curves.

MOST_VECTOR_LINES = 60  # trainings; with more, the curves become pixels within the SVG


def figure_history(view: View, i: int) -> Figure | None:
    """Draws an objective over the trials, and the best value so far."""
    if len(done := view.finite(i)) < 2:
        return None
    objective = view.objectives[i]
    looked = np.array([trial_note(trial).get("how") == "looked up" for trial in done])
    number = np.array([trial.number for trial in done])
    raw = [trial.values[i] for trial in done]
    values, label = scale_values(objective, raw)
    pick = np.maximum if objective.direction == "maximize" else np.minimum
    best = pick.accumulate(values)
    end = format_cell_value(objective, (max if objective.direction == "maximize" else min)(raw))
    at = number[int(np.flatnonzero(values == best[-1])[0])]
    title = f"Best {name_objective(objective)}: {end}, first in trial {at}"
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, 3.8))
    axes.step(number, best, where="post", color=pictures.INK, linewidth=1.4, label="best so far")
    look: dict[str, Any] = {"s": 26, "zorder": 3, "rasterized": len(done) > pictures.MOST_VECTOR_MARKS}
    axes.scatter(number[~looked], values[~looked], color=pictures.ACCENT, label="trained", **look)
    if looked.any():
        ring = {"facecolors": "none", "edgecolors": pictures.ORANGE, "label": "looked up"}
        axes.scatter(number[looked], values[looked], **ring, **look)
    pruned = [t for t in view.trials if t.state == TrialState.PRUNED and t.intermediate_values]
    if pruned and objective.kind == "final":
        at_stop = [t.intermediate_values[t.last_step or 0] for t in pruned]
        axes.scatter([t.number for t in pruned], at_stop, s=22, marker="x", color=pictures.GREY, label="pruned")
    axes.set(xlabel="trial", ylabel=label)
    pictures.use_whole_numbers(axes.xaxis)
    format_share(axes.yaxis, objective)
    axes.legend(loc="best", ncols=4)
    return figure


def figure_pareto(view: View) -> Figure | None:
    """Draws the first two objectives against each other, with the Pareto front marked."""
    if len(view.objectives) < 2 or not (done := view.finite(0, 1)):
        return None
    (x, x_label), (y, y_label) = (scale_values(view.objectives[i], [t.values[i] for t in done]) for i in range(2))
    won = np.array([trial.number in view.winners for trial in done])
    title, far = f"{len(view.winners)} trials that no other beats in everything", len(view.winners) - int(won.sum())
    title += f" ({far} of them at infinity)" if far else ""
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, 4.2))
    look: dict[str, Any] = {"linewidths": 0, "rasterized": len(x) > pictures.MOST_VECTOR_MARKS}
    axes.scatter(x[~won], y[~won], s=24, color=pictures.GREY, alpha=0.6, label="beaten", **look)
    order = np.argsort(x[won])
    if len(view.objectives) == 2:
        axes.plot(x[won][order], y[won][order], color=pictures.ORANGE, linewidth=1.0, alpha=0.7)
    axes.scatter(x[won], y[won], s=40, color=pictures.ORANGE, label="Pareto front", zorder=3)
    for k in np.flatnonzero(won)[:20]:
        label = str(done[k].number)
        axes.annotate(label, (x[k], y[k]), (5, 4), textcoords="offset points", fontsize=8, color=pictures.MUTED)
    axes.set(xlabel=x_label, ylabel=y_label)
    format_share(axes.xaxis, view.objectives[0])
    format_share(axes.yaxis, view.objectives[1])
    axes.grid(visible=True, axis="x")
    axes.legend(loc="best")
    return figure


def figure_curves(view: View) -> Figure | None:
    """Draws the metric of one objective over the rounds of every training. `pick_course` chooses the objective."""
    late = np.array([value for r, v in view.curves.values() for value in v[(r >= 0.1 * r[-1]) & np.isfinite(v)]])
    if not len(late):
        return None
    objective = pick_course(view.objectives)
    pruned = view.curves.keys() & {trial.number for trial in view.trials if trial.state == TrialState.PRUNED}
    title = f"The course of {len(view.curves)} trainings" + (f", {len(pruned)} of them pruned" if pruned else "")
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, 4.4))
    best = [number for number in view.winners if number in view.curves][:1]
    for number, (rounds, values) in sorted(view.curves.items(), key=lambda item: item[0] in best):
        color = pictures.ORANGE if number in best else pictures.GREY if number in pruned else pictures.ACCENT
        width, alpha = (2.4, 1.0) if number in best else (1.0, 0.45)
        look: dict[str, Any] = {"color": color, "linewidth": width, "alpha": alpha, "label": f"_trial {number}"}
        axes.plot(rounds, values, rasterized=len(view.curves) > MOST_VECTOR_LINES and number not in best, **look)
        if number in pruned:
            cross: dict[str, Any] = {"color": pictures.GREY, "markersize": 5, "label": f"_trial {number}, pruned"}
            axes.plot(rounds[-1:], values[-1:], "x", **cross)
    names = [*([name_winner(view.objectives)] if best else []), "finished", *(["pruned"] if pruned else [])]
    paint = [*([pictures.ORANGE] if best else []), pictures.ACCENT, *([pictures.GREY] if pruned else [])]
    pictures.draw_key(axes, names, paint)
    axes.set(xlabel="rounds completed", ylabel=text.name_score(objective.metric, unit=True))
    pictures.use_whole_numbers(axes.xaxis)
    if text.is_share(objective.metric):
        pictures.use_percent(axes.yaxis)
    low, high = float(late.min()), float(late.max())
    axes.set_ylim(low - 0.05 * (high - low) - 1e-9, high + 0.05 * (high - low) + 1e-9)
    return figure


# ---------------------------------------------------------------------------------------------------------------------
# Pictures of how the objectives depend on the parameters.

PANELS = 12  # slices at most
IMPORTANT = 8  # parameters in the importance chart


def compute_importance(view: View, i: int) -> dict[str, float]:
    """Computes how much each parameter matters for an objective, as shares that add up to 1.

    fANOVA (Hutter et al., ICML 2014) computes the share of the variance of the objective that a parameter explains. If
    some trial lacks a parameter (its conditions do not hold), PED-ANOVA (Watanabe et al., IJCAI 2023) compares the
    values of a parameter in the best trials with those in all trials. Parameters that cannot change the objective are
    left out. The result is empty if fewer than four trials are complete, or if all values of the objective are equal.
    `i` is the index of the objective, from 0.
    """
    done = view.finite(i)
    if len(done) < 4 or len({trial.values[i] for trial in done}) < 2:
        return {}
    always = all(parameter.key in trial.params for parameter in view.space for trial in done)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # PED-ANOVA takes low values as good ones
            sign = -1.0 if not always and view.objectives[i].direction == "maximize" else 1.0
            known: Any = optuna.importance
            evaluator = known.FanovaImportanceEvaluator(seed=0) if always else known.PedAnovaImportanceEvaluator()
            found = known.get_param_importances(view.study, evaluator=evaluator, target=lambda t: sign * t.values[i])
    except (RuntimeError, ValueError):  # too few trials differ
        return {}
    kept = {parameter.key: found[parameter.key] for parameter in view.acting(i) if parameter.key in found}
    return {key: share / (sum(kept.values()) or 1.0) for key, share in kept.items()}


def figure_importance(view: View) -> Figure | None:
    """Draws the importance of the parameters for each objective."""
    found = [compute_importance(view, i) for i in range(len(view.objectives))]
    if len(set().union(*found)) < 2:  # a single parameter would explain everything
        return None
    ranked = next(i for i, each in enumerate(found) if each)
    keys = list(dict.fromkeys(key for each in found[ranked:] for key in each))[:IMPORTANT][::-1]
    first = max(keys, key=lambda key: found[ranked].get(key, 0.0))
    names = [name_objective(objective) for objective in view.objectives]
    title = f"{first} matters most for {names[ranked]}"
    figure, axes = pictures.make_canvas(title, size=(pictures.NARROW, 1.4 + 0.42 * len(keys) + 0.2 * len(names)))
    height = 0.78 / len(found)
    for i, name in enumerate(names):
        place = np.arange(len(keys)) + (len(found) - 1 - 2 * i) * height / 2
        share = [found[i].get(key, 0.0) for key in keys]
        look: dict[str, Any] = {"facecolor": pictures.PALETTE[i], "label": name, "lying": True}
        pictures.draw_bars(axes, 0.0, place - 0.45 * height, share, 0.9 * height, **look)
    axes.set_yticks(range(len(keys)), [key.replace(", ", ",\n") for key in keys])
    axes.set(xlabel="share of all importance", xlim=(0, None), ylim=(-0.5, len(keys) - 0.5))
    pictures.use_percent(axes.xaxis)
    axes.grid(visible=False)
    axes.grid(visible=True, axis="x")
    if len(found) > 1:
        # one name a line: beside each other they may be too wide
        pictures.draw_key(axes, names, pictures.PALETTE[: len(found)], ncols=1)
    return figure


def figure_slices(view: View, i: int) -> Figure | None:
    """Draws an objective against each parameter."""
    if len(done := view.finite(i)) < 2 or not view.acting(i):
        return None
    objective, space = view.objectives[i], view.acting(i)[:PANELS]
    name, columns = name_objective(objective), min(4, len(space))
    title = f"{name[0].upper()}{name[1:]} against each parameter"
    figure, panels = pictures.make_grid(title, len(space), columns, 2.7)
    values, label = scale_values(objective, [trial.values[i] for trial in done])
    order = np.array([trial.number for trial in done], dtype=float)
    shades = LinearSegmentedColormap.from_list("shades", colormaps["viridis"](np.linspace(0.12, 0.92, 64)))
    won = [k for k, trial in enumerate(done) if trial.number in view.winners]
    dots: dict[str, Any] = {"s": 18, "c": order, "cmap": shades, "alpha": 0.85, "linewidths": 0, "label": "_trials"}
    dots["rasterized"] = len(done) > pictures.MOST_VECTOR_MARKS
    ring = {"facecolors": "none", "edgecolors": pictures.ORANGE, "label": "_winners"}
    for axes, parameter in zip(panels, space, strict=True):
        x = find_axis_positions(parameter, done)
        axes.scatter(x, values, **dots)
        axes.scatter(x[won], values[won], s=52, linewidths=1.4, **ring)
        label_parameter(axes, parameter)
        format_share(axes.yaxis, objective)
    for axes in panels[::columns]:
        axes.set_ylabel(label)
    return figure


# ---------------------------------------------------------------------------------------------------------------------
# The report as a whole: its sections, tables and notes.

MOST_CELLS = 4000  # cells of the table of trials
CURVES = 200  # trainings whose curves are drawn: the best ones
TEST = (
    "Scores on the test set, computed once, for the winners only, with the newest models, also if they lie behind a "
    "budget; the search looked at held-out data."
)
UNMET = "did not reach a target or a finite value in every replicate and fold"


def write_page(sweep: Sweep, out: Path, study: optuna.Study, summary: Mapping[str, Any], target: Path) -> None:
    """Writes the page of a sweep to the HTML file `target`.

    `out` is the directory of the sweep, and `summary` is the content of its `summary.json`.
    """
    view = make_view(sweep, out, study, summary)
    notes = _notes(view)
    with pictures.use_figure_style():
        sections = _sections(view, notes)
    page = fill_template(
        title=f"Sweep {sweep.name}",
        facts=_facts(sweep, view),
        notes=notes,
        cards=_cards(view, summary),
        tables=[("Winners", _winners(view, summary), TEST), _list_trials(view)],
        sections=sections,
        runs=[],
        texts=[
            ("Sweep", nested.write_yaml(dict(sweep.source))),
            ("Best scenario", (out / "best.yaml").read_text()),
            ("Summary", json.dumps(dict(summary), indent=2)),
        ],
    )
    plain.write_user_file(target, page.encode())


def draw_plot(view: View, name: str | None = None) -> Figure:
    """Draws one picture of the page.

    Args:
        view: The data of the sweep.
        name: The picture: `trials` (the first objective over each parameter), `importance`, `pareto`, `curves`, or the
            name of an objective, which is drawn over the trials. None means the first objective.

    Raises:
        BadInput: There is no picture of this name.
        FedrayError: The sweep has no numbers for the picture.
    """
    known: dict[str, Callable[[], Figure | None]] = {
        **{objective.name: partial(figure_history, view, i) for i, objective in enumerate(view.objectives)},
        "trials": partial(figure_slices, view, 0),
        "importance": partial(figure_importance, view),
        "pareto": partial(figure_pareto, view),
        "curves": partial(figure_curves, view),
    }
    return draw_named(known, name or view.objectives[0].name, "sweep")


def make_view(sweep: Sweep, out: Path, study: optuna.Study, summary: Mapping[str, Any]) -> View:
    """Collects from the study and the run directories what the pictures show.

    `out` is the directory of the sweep, and `summary` is the content of its `summary.json`.
    """
    objectives, trials = sweep.objectives, study.get_trials(deepcopy=False)
    winners = [winner["number"] for winner in summary["winners"]]
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    trained = [t for t in trials if trial_note(t).get("how") == "trained" and trial_note(t).get("training")]
    sign = -1 if objectives[0].direction == "maximize" else 1
    trained.sort(key=lambda t: (t.number not in winners, sign * (t.values or [0.0])[0]))
    curves = {}
    for trial in trained[:CURVES]:
        if (curve := _curve(objectives, out / trial_note(trial)["run"])) is not None:
            curves[trial.number] = curve
    return View(objectives, sweep.space, study, trials, done, winners, curves, list_idle_parameters(sweep))


def _curve(objectives: Sequence[SweepObjective], folder: Path) -> tuple[FloatArray, FloatArray] | None:
    """Returns the evaluated rounds, and the metric of `pick_course` in them, averaged over replicates and folds.

    Returns None if a round lacks this metric.
    """
    metric = pick_course(objectives).metric
    worlds = read_histories(folder)
    short = min(len(rows) for rows in worlds)
    if any(row.get(metric) is None for rows in worlds for row in rows):
        return None
    values = np.mean([[float(row[metric]) for row in rows[:short]] for rows in worlds], axis=0)
    return np.array([float(row["round"]) for row in worlds[0][:short]]), values


def _sections(view: View, notes: list[str]) -> list[pictures.Section]:
    """Returns the sections of a sweep's page. Adds a note for each picture that cannot be drawn."""
    several, space = range(len(view.objectives)), len(view.space)
    front = "Numbers: trials; each is a scenario under pareto/."
    importance = f"fANOVA (PED-ANOVA where a parameter is conditional). {_limit(IMPORTANT, space, 'parameters')}"
    slices = f"Ringed: the winners. Darker: earlier trials. {_limit(PANELS, space, 'parameters')}"
    trained = sum(trial_note(trial).get("how") == "trained" for trial in view.trials)
    course = f"Held-out data, mean of the worlds. {_limit(len(view.curves), trained, 'trainings')}"
    planned: dict[str, list[Drawing]] = {
        "How the search went": [(f"history-{i}", partial(figure_history, view, i), "") for i in several],
        "What can be had together": [("pareto", partial(figure_pareto, view), front)],
        "What matters": [
            ("importance", partial(figure_importance, view), importance.strip()),
            *((f"trials-{i}", partial(figure_slices, view, i), slices.strip()) for i in several),
        ],
        "How the trainings went": [("curves", partial(figure_curves, view), course.strip())],
    }
    return [make_section(title, draws, notes) for title, draws in planned.items()]


def _limit(shown: int, all_: int, what: str) -> str:
    """Returns a sentence about the items that a picture leaves out, or an empty text if it shows all items."""
    return f"{shown} of {all_} {what} are drawn; trials.parquet has all." if shown < all_ else ""


def _facts(sweep: Sweep, view: View) -> list[tuple[str, str]]:
    base = sweep.scenario({})
    pruner = sweep.keys.pruner.name
    return [
        ("method", base.method.name),
        ("data", base.data.name),
        ("parameters", ", ".join(parameter.key for parameter in view.space)),
        ("objectives", ", ".join(f"{name_objective(o)} ({o.direction})" for o in view.objectives)),
        ("sampler", f"{sweep.keys.sampler.name}, seed {sweep.keys.sampler.seed}"),
        *([("pruner", pruner)] if pruner != "none" else []),
    ]


def _notes(view: View) -> list[str]:
    unmet = len(view.done) - len(view.finite(*range(len(view.objectives))))
    failed = [trial for trial in view.trials if trial.state == TrialState.FAIL]
    more = "trials.parquet has them, and the pictures of that objective do not"
    notes = [f"{unmet} of the trials {UNMET}: {more}."] if unmet else []
    if failed:
        notes.append(f"{len(failed)} trials failed; the first: {trial_note(failed[0]).get('error', '')}")
    for i, objective in enumerate(view.objectives):
        if idle := ", ".join(parameter.key for parameter in view.space if parameter not in view.acting(i)):
            notes.append(f"{idle} cannot act on {objective.name}, and has no place in its pictures.")
    return notes


def _cards(view: View, summary: Mapping[str, Any]) -> list[Card]:
    best, names = summary["winners"][0], [name_objective(objective) for objective in view.objectives]
    names[0] = f"best {names[0]}" if len(names) == 1 else name_winner(view.objectives)
    found = next(trial.values for trial in view.trials if trial.number == best["number"])  # JSON has no infinity
    cards = []
    for name, objective, value in zip(names, view.objectives, found, strict=True):
        sub = "held out, " * (objective.kind == "final") + f"trial {best['number']}"
        cards.append(Card(name, format_cell_value(objective, value), sub))
    states = ", ".join(f"{summary[s]} {s}" for s in ("complete", "pruned", "failed") if summary[s])
    cards.append(Card("trials", str(summary["trials"]), states))
    took = text.format_seconds(summary["seconds_trained"])
    cards.append(Card("trainings", str(summary["trainings"]), f"{took} in all"))
    saved = f"{text.format_seconds(summary['seconds_saved'])} saved" if summary["looked_up"] else "none shared"
    cards.append(Card("looked up", str(summary["looked_up"]), saved))
    return cards


def _list_rows(
    view: View, trials: Iterable[FrozenTrial], last: Sequence[str], more: Callable[[FrozenTrial], list[str]]
) -> Table:
    """Returns header and rows of a table of trials.

    The columns are the trial's number, its objectives with standard errors (if known), its parameters, and further
    columns with the heads `last`. `more` is a function that takes a trial and returns its cells in these last columns.
    """
    seen = any("standard_errors" in trial_note(trial) for trial in view.trials)
    names = [name_objective(objective) for objective in view.objectives]
    heads = [head for name in names for head in ([name, f"{name}, standard error"] if seen else [name])]
    rows = []
    for trial in trials:
        has, values = trial.state == TrialState.COMPLETE, list[str | Best]()
        errors = trial_note(trial).get("standard_errors") or [None] * len(names)
        for i, (objective, error) in enumerate(zip(view.objectives, errors, strict=True)):
            value = format_cell_value(objective, trial.values[i]) if has else "-"
            values.append(Best(value) if trial.number in view.winners else value)
            values += [format_cell_value(objective, error) if has and error is not None else "-"] if seen else []
        found = [trial.params.get(parameter.key, "-") for parameter in view.space]
        params = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in found]
        rows.append([str(trial.number), *values, *params, *more(trial)])
    return ["trial", *heads, *(parameter.key for parameter in view.space), *last], rows


def _count_ties(view: View) -> str:
    """Returns a sentence that counts the trials within one standard error of the best, in the first objective.

    The sentence is empty if the standard errors are unknown.
    """
    ranked = sorted(
        view.finite(0), key=lambda trial: trial.values[0], reverse=view.objectives[0].direction == "maximize"
    )
    errors = trial_note(ranked[0]).get("standard_errors") if ranked else None
    if not errors or errors[0] is None:
        return ""
    error = errors[0]
    near = sum(abs(trial.values[0] - ranked[0].values[0]) <= error for trial in ranked[1:])
    verb = "is" if near == 1 else "are"
    return (
        f"{near or 'No'} of the other trials {verb} within one standard error of the best {view.objectives[0].name}; "
        "errors are over the replicates and folds, and the best of many trials is partly luck."
    )


def _winners(view: View, summary: Mapping[str, Any]) -> Table:
    """Returns header and rows of a table of the winners, with their scores on the test set."""
    winners = {winner["number"]: winner for winner in summary["winners"]}
    names = ("accuracy", "personal_accuracy", "personal_worst", "rmse", "nll")
    shown = [name for name in names if name in summary["winners"][0]["test"]]

    def list_scores(trial: FrozenTrial) -> list[str]:
        found, after = winners[trial.number]["test"], winners[trial.number].get("tested_after")  # new in summaries
        scores = [text.format_number(found[name], name) if name in found else "-" for name in shown]
        return [*scores, f"round {after['round']}, {text.format_bytes(after[BYTES])} up and down" if after else "-"]

    trials = {trial.number: trial for trial in view.trials}
    head = [f"test {text.name_score(name)}" for name in shown]
    return _list_rows(view, [trials[number] for number in winners], [*head, "tested after"], list_scores)


def _list_trials(view: View) -> tuple[str, Table, str]:
    """Returns title, table and note of the trials.

    Complete trials come first, with the best one at the top. The other trials follow by number.
    """
    sign = -1 if view.objectives and view.objectives[0].direction == "maximize" else 1
    ranked = sorted(view.done, key=lambda t: (sign * t.values[0], t.number))
    done, first = {trial.number for trial in ranked}, name_winner(view.objectives)
    every = [*ranked, *(trial for trial in view.trials if trial.number not in done)]
    most = max(1, MOST_CELLS // (2 + len(view.objectives) + len(view.space)))
    table = _list_rows(view, every[:most], ["how it ended"], lambda trial: [_tell_end(trial)])
    if len(every) <= most:
        return f"All {len(every)} trials, the {first} first", table, _count_ties(view)
    left = len(every) - most
    note = f"{left} trials are left out here, the worst and those without a value: trials.parquet has all {len(every)}."
    note = f"{_count_ties(view)} {note}".strip()
    title = f"{most} of {len(every)} trials"
    return f"The best {title}" if first == "best" else f"{title}, the {first} first", table, note


def _tell_end(trial: FrozenTrial) -> str:
    note = trial_note(trial)
    if trial.state == TrialState.PRUNED:
        return f"pruned after step {trial.last_step}" if trial.last_step is not None else "pruned"
    if trial.state == TrialState.FAIL:
        return f"failed: {note.get('error', 'no message')}"
    if trial.state != TrialState.COMPLETE:
        return trial.state.name.lower()
    if not all(math.isfinite(value) for value in trial.values):
        return UNMET
    return f"looked up in {note.get('run', '')}" if note.get("how") == "looked up" else "trained"
