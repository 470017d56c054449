"""Accuracy by class and by tier, which a mean over all clients hides.

Example:
    >>> share, low, high = measure_classes(np.array([[9, 1], [0, 0]]))  # nobody has the second class
    >>> share.tolist(), low.round(2).tolist(), high.round(2).tolist()
    ([0.9, nan], [0.6, nan], [0.98, nan])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from fedray.core.text import format_number, name_score
from fedray.core.types import FloatArray
from fedray.report import style
from fedray.report.curves import cut_beginning, draw_legend, draw_mean_line, label_headline, label_rounds
from fedray.report.jobs import read_job_column
from fedray.report.predictions import MOST_DRAWN_CLASSES, MOST_NAMED_CLASSES, read_class_names
from fedray.report.read import ReadRun
from fedray.report.tiers import read_tier_curves

WIDE_FROM = 16  # classes
MOST_COMPARED = 8  # runs, class by class
Z = 1.96  # of a 95 % interval


def figure_classes(run: ReadRun) -> Figure | None:
    """The share of each class that is answered rightly, with its interval, the best class first."""
    counts = run.pictures.get("confusion")
    if counts is None or counts.ndim != 2 or not 2 <= len(counts) <= MOST_DRAWN_CLASSES or not counts.sum():
        return None
    share, low, high = measure_classes(counts)
    order = np.argsort(-np.nan_to_num(share, nan=-1.0), kind="stable")[: int(np.isfinite(share).sum())]
    if len(order) < 2 or np.ptp(share[order]) == 0:
        return None
    names = read_class_names(run, len(counts))
    worst = order[-1]
    title = f"Hardest class: {names[worst]}, {format_number(float(share[worst]), 'accuracy')} of it is answered rightly"
    size = (style.WIDE, 3.2) if len(order) > WIDE_FROM else (style.NARROW, 3.8)
    figure, axes = style.make_canvas(title, size=size)
    draw_intervals(axes, np.arange(len(order)), (share[order], low[order], high[order]), style.ACCENT)
    _name_classes(axes, [names[i] for i in order])
    return figure


def compare_classes(runs: list[ReadRun]) -> Figure | None:
    """The share of each class that is answered rightly, run by run; the classes in the order of their mean."""
    found = [(i, run) for i, run in enumerate(runs) if "confusion" in run.pictures]
    sizes = {run.pictures["confusion"].shape for _, run in found}
    if not 2 <= len(found) <= MOST_COMPARED or len(sizes) != 1:
        return None
    number = next(iter(sizes))[0]
    shares = [measure_classes(run.pictures["confusion"]) for _, run in found]
    mean = np.nanmean([share for share, _, _ in shares], axis=0) if number else np.empty(0)
    order = np.argsort(-np.nan_to_num(mean, nan=-1.0), kind="stable")[: int(np.isfinite(mean).sum())]
    if not 2 <= len(order) <= MOST_NAMED_CLASSES:
        return None
    names = read_class_names(found[0][1], number)
    figure, axes = style.make_canvas("Class by class: the share that is answered rightly", size=(style.WIDE, 3.6))
    step = 0.6 / len(found)
    for place, ((i, run), ends) in enumerate(zip(found, shares, strict=True)):
        x = np.arange(len(order)) + step * (place - (len(found) - 1) / 2)
        draw_intervals(axes, x, [each[order] for each in ends], style.pick_color(i, len(runs)), run.name)
    _name_classes(axes, [names[i] for i in order])
    axes.legend(loc="lower left", ncols=min(len(found), 4))
    return figure


def figure_tiers(run: ReadRun) -> Figure | None:
    """How well the clients of each tier are answered: a dot a client, and the mean of the tier."""
    name = "accuracy" if "client_accuracy" in run.pictures else "rmse"
    values, table = run.pictures.get(f"client_{name}"), run.first_world()
    if values is None or table is None or len(run.tiers) < 2:
        return None
    groups = group_by_tier(run, values)
    if len(groups) < 2 or np.ptp(np.concatenate([values[who] for who in groups.values()])) == 0:
        return None
    means = {tier: float(values[who].mean()) for tier, who in groups.items()}
    title = ", ".join(f"{tier} {format_number(mean, name)}" for tier, mean in means.items())
    what = "accuracy" if name == "accuracy" else "RMSE"
    figure, axes = style.make_canvas(f"Mean {what} of the tiers' clients: {title}", size=(style.NARROW, 3.4))
    for place, (tier, who) in enumerate(groups.items()):
        spread = 0.5 * (np.arange(len(who)) * 0.6180339887 % 1 - 0.5)  # golden ratio: even, and always the same
        look: dict[str, Any] = {"color": style.pick_color(place, len(groups)), "alpha": 0.7, "markersize": 8}
        look["rasterized"] = len(values) > style.MOST_VECTOR_MARKS
        axes.plot(place + spread, values[who], ".", label=f"_{tier}", **look)
        ends = [place - 0.34, place + 0.34]
        axes.plot(ends, [means[tier]] * 2, color=style.INK, linewidth=2, label=f"_mean of {tier}")
    style.name_places(axes.xaxis, [f"{tier} ({len(who)})" for tier, who in groups.items()])
    axes.set_xlim(-0.6, len(groups) - 0.4)
    axes.set_xlabel("tier (clients)")
    axes.set_ylabel(f"{what} for the client")
    style.draw_grid(axes)
    if name == "accuracy":
        style.use_percent(axes.yaxis)
    return figure


def figure_tier_rounds(run: ReadRun) -> Figure | None:
    """How well the clients of each tier are answered, round by round."""
    found = read_tier_curves(run)
    if len(found) < 2 or max(len(curve.round) for curve in found.values()) < 2:
        return None
    ends = {tier: float(curve.mean[-1]) for tier, curve in found.items()}
    text = ", ".join(f"{tier} {format_number(end, run.metric)}" for tier, end in ends.items())
    figure, axes = style.make_canvas(f"The tiers end at {text}", size=(style.NARROW, 3.4))
    for place, (tier, curve) in enumerate(found.items()):
        draw_mean_line(axes, curve.round, curve, color=style.pick_color(place, len(found)), width=1.8, label=tier)
    axes.set_xlabel(label_rounds(run))
    style.use_whole_numbers(axes.xaxis)
    label_headline(axes, run.metric)
    axes.set_ylabel(f"{name_score(run.metric, unit=True)} for the client")
    cut_beginning(axes, run.metric, list(found.values()))
    draw_legend(axes, run.metric)
    return figure


def group_by_tier(run: ReadRun, values: FloatArray) -> dict[str, NDArray[np.int64]]:
    """The clients of each tier that have a value among `[N]`, in the tiers' order; tiers without any are left out."""
    table = run.first_world()
    if table is None:
        return {}
    client, tier = read_job_column(table, "client"), np.array(table["tier"].to_pylist())
    found = {name: np.unique(client[tier == name]) for name in run.tiers}
    known = {name: who[(who < len(values))] for name, who in found.items()}
    known = {name: who[np.isfinite(values[who])] for name, who in known.items()}
    return {name: who for name, who in known.items() if len(who)}


def measure_classes(counts: NDArray[Any]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The share of each class that is answered rightly, and the ends of Wilson's 95 % interval, `[C]` each.

    Args:
        counts: the confusion matrix, `[C, C]`; row: the true class. A class without samples has NaN.

    Source: Wilson, "Probable inference", Journal of the American Statistical Association 22 (1927).
    """
    samples = counts.sum(axis=1).astype(np.float64)
    n = np.where(samples > 0, samples, np.nan)
    share = np.diagonal(counts) / n
    middle = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * np.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    return share, middle - half, middle + half


def draw_intervals(axes: Axes, x: ArrayLike, ends: Sequence[FloatArray], color: str, name: str = "") -> None:
    """Draws dots with their intervals.

    Args:
        axes: where to draw.
        x: their places, `[n]`.
        ends: value, lower and upper end of each, `[n]`.
        color: of all.
        name: in the legend; empty: none.
    """
    value, low, high = ends
    error = np.stack([np.maximum(value - low, 0.0), np.maximum(high - value, 0.0)])
    look: dict[str, Any] = {"color": color, "ecolor": color, "elinewidth": 1.2, "markersize": 5, "label": name or None}
    axes.errorbar(x, value, yerr=error, fmt="o", **look)


def _name_classes(axes: Axes, names: list[str]) -> None:
    style.name_places(axes.xaxis, names, whole=None if len(names) <= MOST_NAMED_CLASSES else "class ")
    if len(names) <= MOST_NAMED_CLASSES:
        axes.set_xticks(range(len(names)))
        if max(map(len, names)) > 3:
            axes.tick_params(axis="x", labelrotation=40)
    axes.set_xlabel("class, the best answered first")
    axes.set_ylabel("accuracy within the class")
    style.use_percent(axes.yaxis)
    style.draw_grid(axes)
