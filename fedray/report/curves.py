"""Pictures of a run's metrics over rounds, bytes and virtual seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedray.core.errors import choose_unit, format_bytes, format_number, format_seconds, is_share, name_score
from fedray.core.types import FloatArray
from fedray.metrics.scores import lower_is_better
from fedray.report import pictures
from fedray.report.jobs import keep_counted
from fedray.report.read import BYTES, SECONDS, Curve, ReadRun, pivot_rounds
from fedray.scenario.shipped import find_last_phase

PANEL_SCORES = (
    *("nll", "nll_residual", "nll_none", "brier", "ece", "entropy", "disagreement", "crps", "coverage_95"),
    *("sharpness", "personal_accuracy", "personal_rmse"),
)
LEGEND_MODELS = 10  # number of models up to which the legend names each
LEAST_POINTS = 6  # points of a curve whose beginning may be cut off
LEAST_EMPTY = 0.1  # empty share of an axis from which on its beginning is cut off
LEAST_WINDOW = 0.15  # share of the rise from the first value to the best that stays below the worst end
MOST_MEMBER_LINES = 50
BAND_NOTE = (
    "Line: mean of the replicates and folds; band: one standard deviation of them up and down, no confidence interval."
)
WORLDS_BAND = "worlds"  # marks the band over worlds


def figure_rounds(run: ReadRun) -> Figure | None:
    """Draws the headline metric of the ensemble and of each member over rounds."""
    curve = run.curve(run.metric)
    if curve is None:
        return None
    figure, axes = pictures.make_canvas(_rounds_title(run, curve), size=(pictures.WIDE, 4.4))
    single = run.models == 1
    members = [None if single else run.member(k) for k in range(min(run.models, MOST_MEMBER_LINES))]
    for k, member in enumerate(members):
        if member is not None:
            label = f"model {k}" if run.models <= LEGEND_MODELS else f"_model {k}"
            draw_mean_line(axes, member.round, member, color=pictures.pick_color(k, run.models), width=1.1, label=label)
    name = "the model" if single else "ensemble"
    draw_mean_line(axes, curve.round, curve, color=pictures.INK, width=2.4, label=name)
    mark_best(axes, curve, run.metric, find_last_phase(run.scenario))
    personal = run.curve("personal_accuracy") if run.metric == "accuracy" else None
    if personal is not None:
        look: dict[str, Any] = {"color": pictures.MUTED, "linewidth": 1.4, "label": name_score("personal_accuracy")}
        axes.plot(personal.round, personal.mean, "--", **look)
    axes.set_xlabel(label_rounds(run))
    pictures.use_whole_numbers(axes.xaxis)
    label_headline(axes, run.metric)
    cut_beginning(axes, run.metric, [curve, *(member for member in members if member is not None)])
    draw_legend(axes, run.metric, columns=2 if run.models > 3 else 1)
    return figure


def figure_bytes(run: ReadRun) -> Figure | None:
    """Draws the headline metric over the bytes sent up and down."""
    return _figure_over(run, "bytes")


def figure_seconds(run: ReadRun) -> Figure | None:
    """Draws the headline metric over virtual time."""
    return _figure_over(run, "seconds")


def figure_scores(run: ReadRun) -> Figure | None:
    """Draws all other scores over rounds, one small panel each."""
    names = (*list_own_metrics(run.scenario), *PANEL_SCORES)
    curves = {name: curve for name in names if (curve := run.curve(name)) is not None and len(curve.round) > 1}
    if not curves:
        return None
    columns = 2 if len(curves) in (2, 4) else min(3, len(curves))
    rows = -(-len(curves) // columns)
    title = "The other scores over the rounds"
    figure, grid = pictures.make_canvas(
        title, rows, columns, size=(pictures.WIDE if columns > 1 else pictures.NARROW, 2.2 * rows + 0.2), squeeze=False
    )
    panels = list(grid.ravel())
    for axes, (name, curve) in zip(panels, curves.items(), strict=False):
        draw_mean_line(axes, curve.round, curve, color=pictures.ACCENT, width=1.8)
        axes.set_title(name_score(name, unit=True), fontsize=9.5, loc="left")
        pictures.use_whole_numbers(axes.xaxis)
        if is_share(name):
            pictures.use_percent(axes.yaxis)
    for axes in panels[len(curves) :]:
        axes.set_visible(False)
    for axes in panels[max(len(curves) - columns, 0) : len(curves)]:
        axes.set_xlabel(label_rounds(run))
    return figure


def list_own_metrics(scenario: Mapping[str, Any]) -> list[str]:
    """Lists the names of the metrics that the user registered or passed.

    Example:
        >>> list_own_metrics({"evaluate": {"metrics": ["margin"]}, "own": {"metrics": ["doubt"]}})
        ['margin', 'doubt']
    """
    return [str(name) for key in ("evaluate", "own") for name in (scenario.get(key) or {}).get("metrics") or ()]


def read_curve_over(run: ReadRun, what: str, metric: str | None = None) -> tuple[FloatArray, Curve] | None:
    """Returns a curve and the positions of its rounds on an axis of `rounds`, `bytes` or `seconds`.

    Bytes and seconds are means over worlds. Returns None if the run has no such curve or no such cost.

    Args:
        run: the run.
        what: the axis: `rounds`, `bytes` or `seconds`.
        metric: the name of the score; None means accuracy or RMSE.
    """
    curve = run.curve(metric or run.metric)
    if curve is None or what == "rounds":
        return None if curve is None else (curve.round, curve)
    cost = run.curve(BYTES if what == "bytes" else SECONDS)
    if cost is None or not cost.mean.any():
        return None
    return np.interp(curve.round, cost.round, cost.mean), curve


def draw_mean_line(
    axes: Axes, x: FloatArray, curve: Curve, *, color: str, width: float, label: str | None = None
) -> None:
    """Draws the mean over worlds, with a band of one standard deviation if there are several worlds.

    Args:
        axes: the axes to draw on.
        x: the positions of the curve's rounds on the axis, `[T]`.
        curve: the metric to draw.
        color: the color of the line and the band.
        width: the width of the line in points; the band of a thin line is fainter.
        label: the name in the legend, if any.
    """
    mark = "o" if len(x) == 1 else None
    axes.plot(x, curve.mean, color=color, linewidth=width, label=label, marker=mark, markersize=4)
    if len(curve.values) > 1:
        low, high = curve.mean - curve.sd, curve.mean + curve.sd
        alpha = 0.09 if width < 1.5 else 0.16
        axes.fill_between(x, low, high, color=color, alpha=alpha, linewidth=0, label=pictures.BAND, gid=WORLDS_BAND)


def label_headline(axes: Axes, metric: str) -> None:
    """Labels and limits the value axis of the headline metric; a diverged start does not flatten the rest."""
    axes.set_ylabel(name_score(metric, unit=True))
    if is_share(metric):
        pictures.use_percent(axes.yaxis)
        axes.set_ylim(top=min(axes.get_ylim()[1], 1.0))


def mark_best(axes: Axes, curve: Curve, metric: str, begins: int = 0) -> None:
    """Marks the round with the best mean over worlds, on a curve of several rounds.

    Args:
        axes: the axes of the curve, with rounds on the horizontal one.
        curve: the metric to draw.
        metric: the name of the metric, which determines whether lower is better.
        begins: the round after which the last phase trains; earlier rounds are never marked.
    """
    late = np.flatnonzero(curve.round > begins) if begins else np.arange(len(curve.round))
    if len(late) < 2:
        return
    mean = curve.mean[late]
    at = late[int(np.nanargmin(mean) if lower_is_better(metric) else np.nanargmax(mean))]
    label = f"best: {format_number(float(curve.mean[at]), metric)}, round {curve.round[at]:.0f}"
    look: dict[str, Any] = {"markersize": 7, "markeredgecolor": pictures.PAPER, "color": pictures.ORANGE, "zorder": 4}
    axes.plot(curve.round[[at]], curve.mean[[at]], "D", linestyle="none", label=label, **look)


def cut_beginning(axes: Axes, metric: str, drawn: Sequence[Curve]) -> None:
    """Lets the value axis begin where the lines differ, not where all lines start; its label says where it begins.

    The second half of every line stays visible. Below the worst final value, the axis shows at least twice the distance
    between the worst and the best final value.

    Args:
        axes: the axes of the curves.
        metric: the name of the metric, which determines whether lower is better.
        drawn: the curves on the axes.
    """
    sign = -1.0 if lower_is_better(metric) else 1.0
    window = find_window([Curve(curve.round, sign * curve.values) for curve in drawn])
    lines = [(line.get_xdata(), sign * np.asarray(line.get_ydata())) for line in axes.lines]
    seen = [(np.asarray(x), y) for x, y in lines if window is not None and (y >= window).any()]
    if window is None or not seen:
        return
    axes.set_ylim(*((None, -window) if sign < 0 else (window, None)))
    entry = min(float(place[mean >= window][0]) for place, mean in seen)
    left, right = axes.get_xlim()
    if entry - left > LEAST_EMPTY * (right - left):  # the axis would be empty
        axes.set_xlim(left=entry - 0.04 * (right - entry))
    end = format_number(sign * window, metric)
    axes.set_ylabel(f"{axes.get_ylabel()}\n{'up to' if sign < 0 else 'from'} {end}")


def find_window(drawn: Sequence[Curve]) -> float | None:
    """Returns where the axis of rising curves may begin; None if it would cut off next to nothing.

    Example:
        >>> rounds = np.arange(10.0)
        >>> rising = [Curve(rounds, (end * np.minimum(1.0, (rounds + 1) / 4))[None]) for end in (0.8, 0.9)]
        >>> round(find_window(rising), 3)
        0.6
    """
    means = [curve.mean[np.isfinite(curve.mean)] for curve in drawn]
    means = [mean for mean in means if len(mean)]
    if not means or min(len(mean) for mean in means) < LEAST_POINTS:
        return None
    ends = [float(np.median(mean[-max(1, len(mean) // 5) :])) for mean in means]
    late = min(float((curve.mean - curve.sd)[len(curve.round) // 2 :].min()) for curve in drawn)
    way = max(ends) - min(float(mean[0]) for mean in means)
    window = min(min(ends) - max(2 * (max(ends) - min(ends)), LEAST_WINDOW * way), late)
    lowest = min(float(mean.min()) for mean in means)
    return None if not np.isfinite(window) or window <= lowest + 0.1 * way else window


def draw_legend(axes: Axes, metric: str, columns: int = 1) -> None:
    """Draws the legend, if it has an entry, in the corner that a curve of this metric leaves free.

    Args:
        axes: the axes of the curves.
        metric: the name of the metric, which determines whether lower is better.
        columns: the number of columns of the legend.
    """
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper right" if lower_is_better(metric) else "lower right", ncols=columns)


def _figure_over(run: ReadRun, what: str) -> Figure | None:
    found = read_curve_over(run, what)
    if found is None:
        return None
    x, curve = found
    human = format_bytes if what == "bytes" else format_seconds
    size, name = choose_unit(what, float(x[-1]))
    end = format_number(float(curve.mean[-1]), run.metric)
    cost = {"bytes": f"{human(x[-1])} moved", "seconds": f"{human(x[-1])} of virtual time"}[what]
    figure, axes = pictures.make_canvas(f"{end} {name_score(run.metric)} after {cost}", size=(pictures.NARROW, 3.2))
    draw_mean_line(axes, x / size, curve, color=pictures.INK, width=2.2)
    each = ", one replicate" if run.worlds > 1 else ""
    axes.set_xlabel(f"{'bytes up and down' if what == 'bytes' else 'virtual time'} ({name}{each})")
    axes.set_xlim(left=0)
    label_headline(axes, run.metric)
    cut_beginning(axes, run.metric, [curve])
    return figure


def label_rounds(run: ReadRun) -> str:
    """Returns the label of an axis of rounds."""
    return "steps of each walk" if "graph_edges" in run.pictures else "rounds completed"


def _rounds_title(run: ReadRun, curve: Curve) -> str:
    what = name_score(run.metric)
    end = format_number(float(curve.mean[-1]), run.metric)
    after = f"after {curve.round[-1]:.0f} rounds"
    best = run.curve("accuracy_max" if run.metric == "accuracy" else "rmse_min")
    if run.models == 1 or best is None:
        return f"{what[0].upper() + what[1:]} is {end} {after}"
    top = format_number(float(best.mean[-1]), run.metric)
    return f"The ensemble of {run.models} reaches {end} {what} {after}; its best member {top}"


# ---------------------------------------------------------------------------------------------------------------------
# The training loss over the rounds, as the clients measured it while they trained.


def figure_losses(run: ReadRun) -> Figure | None:
    """Draws the mean training loss over the jobs of each round, for all jobs and for each tier."""
    table = keep_counted(run.clients)
    curve = None if table is None else _average_losses(table)
    if table is None or curve is None or len(curve.round) < 2:
        return None
    first, last = float(curve.mean[0]), float(curve.mean[-1])
    word = "falls" if last < first else "rises"
    title = f"The training loss {word} from {first:.3g} to {last:.3g}"
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, 3.4))
    tiers = run.tiers if len(run.tiers) > 1 else []
    for place, tier in enumerate(tiers):
        of_tier = _average_losses(table.filter(pc.equal(table["tier"], tier)))
        if of_tier is not None:
            color = pictures.pick_color(place, len(tiers))
            draw_mean_line(axes, of_tier.round, of_tier, color=color, width=1.2, label=tier)
    label = "all clients" if tiers else None
    draw_mean_line(axes, curve.round, curve, color=pictures.INK, width=2.2, label=label)
    axes.set_xlabel(label_rounds(run))
    axes.set_ylabel("training loss")
    pictures.use_whole_numbers(axes.xaxis)
    draw_legend(axes, "rmse")
    return figure


def _average_losses(table: pa.Table) -> Curve | None:
    """Computes the mean loss of the jobs of each round, weighted by their samples; None if no job has a loss."""
    jobs = table.select(["replicate", "fold", "round", "loss", "samples"]).to_pandas()
    jobs = jobs[np.isfinite(jobs["loss"].astype(float))]
    jobs["loss"] *= jobs["samples"]
    sums = jobs.groupby(["replicate", "fold", "round"], as_index=False)[["loss", "samples"]].sum()
    return pivot_rounds(sums, sums["loss"] / sums["samples"])
