"""The clients one by one: what data they hold, which models suit them, who is served badly."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from fedray.core.text import format_number, name_score
from fedray.core.types import FloatArray, IntArray
from fedray.metrics.unknown import ANOMALY_Z
from fedray.report import pictures
from fedray.report.curves import cut_beginning, draw_legend, draw_mean_line, label_headline, label_rounds
from fedray.report.jobs import MOST_DRAWN_MODELS, draw_stacked_bars, pick_evenly, read_job_column
from fedray.report.predictions import MOST_DRAWN_CLASSES, MOST_NAMED_CLASSES, read_class_names
from fedray.report.read import Curve, ReadRun

# ---------------------------------------------------------------------------------------------------------------------
# The clients one by one: what data they hold, which models suit them, who is served badly.

MOST_CLIENT_COLUMNS = 100  # clients in a figure at most
LEAST_SPREAD = 0.005  # of personal weights: they are written in percent, and below this all look equal


def figure_data(run: ReadRun) -> Figure | None:
    """Stacked label counts of each client."""
    counts = run.pictures.get("label_counts")
    if counts is None or counts.ndim != 2 or not counts.sum() or counts.shape[1] > MOST_DRAWN_MODELS:
        return None
    clients, classes = counts.shape
    if (counts == counts[0]).all():  # bars of equal length and colours say nothing
        return None
    size = counts.sum(axis=1)
    held = float((counts > 0).sum(axis=1).mean())
    title = f"A client holds {held:.3g} of {classes} classes and {size.mean():.4g} samples on average"
    title += f" ({size.min():.0f} to {size.max():.0f})"
    shown = pick_evenly(np.arange(clients), MOST_CLIENT_COLUMNS)
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, 3.4))
    colors = pictures.pick_colors(classes)
    names = read_class_names(run, classes)
    draw_stacked_bars(axes, counts[shown], colors, [f"class {name}" for name in names])
    _label_clients(axes, shown, clients)
    axes.set_ylabel("training samples")
    pictures.draw_grid(axes)
    if 1 < classes <= len(pictures.PALETTE):
        pictures.draw_key(axes, names, colors)
    elif classes > 1:
        ends = (0, classes // 2, classes - 1)
        pictures.draw_key(axes, [f"class {names[i]}" for i in ends], [colors[i] for i in ends])
    return figure


def figure_weights(run: ReadRun) -> Figure | None:
    """Which models each known client relies on."""
    alpha = run.pictures.get("alpha")
    if alpha is None or alpha.ndim != 2 or alpha.shape[1] < 2 or float(np.ptp(alpha)) < LEAST_SPREAD:
        return None
    clients, models = alpha.shape
    most = float(alpha.max(axis=1).mean())
    title = f"Personal weights: a client's favourite model gets {100 * most:.0f} % (equal: {100 / models:.0f} %)"
    shown = pick_evenly(np.arange(clients), MOST_CLIENT_COLUMNS)
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, float(np.clip(1.2 + 0.22 * models, 1.9, 5))))
    high = float(alpha.max())
    picture = axes.imshow(alpha[shown].T, cmap=pictures.make_colormap(), vmin=0, vmax=high, aspect="auto")
    axes.set_yticks(range(models) if models <= 12 else np.linspace(0, models - 1, 6).astype(int))
    axes.set_ylabel("model")
    _label_clients(axes, shown, clients)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(picture, pad=0.015, aspect=12, label="weight")
    if bar.solids is not None:
        bar.solids.set_rasterized(True)
    bar.outline.set_visible(False)
    pictures.use_percent(bar.ax.yaxis)
    return figure


def figure_client_accuracy(run: ReadRun) -> Figure | None:
    """Accuracy of each client, sorted, with the mean, the 10th percentile and the worst."""
    found = sort_clients(run.pictures.get("client_accuracy"))
    if found is None:
        return None
    each, who = found
    low = float(np.quantile(each, 0.1))
    title = f"One client in ten stays below {100 * low:.1f} % accuracy (mean {100 * each.mean():.1f} %)"
    figure, axes = pictures.make_canvas(title, size=(pictures.NARROW, 3.4))
    draw_sorted_bars(axes, each, pictures.ACCENT)
    marks = (("mean", float(each.mean())), ("10th percentile", low), ("worst", float(each[-1])))
    heights = _spread_labels([value for _, value in marks], 0.12 * float(each.max()))
    for (name, value), height in zip(marks, heights, strict=True):
        axes.axhline(value, color=pictures.INK, linewidth=1, linestyle=(0, (4, 3)))
        text = f"{name}\n{100 * value:.1f} %"
        axes.text(1.01, height, text, transform=axes.get_yaxis_transform(), va="center", fontsize=8.5)
    axes.set_xlim(-0.7, len(each) - 0.3)
    axes.set_ylim(0, min(1.0, float(each.max()) * 1.06))
    axes.set_xlabel(f"{len(each)} clients, best first")
    axes.set_ylabel("accuracy for the client")
    pictures.name_places(axes.xaxis, who, whole="client ")
    pictures.use_percent(axes.yaxis)
    pictures.draw_grid(axes)
    return figure


def figure_client_rmse(run: ReadRun) -> Figure | None:
    """RMSE of each client with its own weights or models, sorted, and what equal weights would give it."""
    own, equal = (run.pictures.get(name) for name in ("client_rmse", "client_rmse_equal"))
    if own is None or equal is None or own.shape != equal.shape:
        return None
    known = np.isfinite(own) & np.isfinite(equal)
    if not known.any():
        return None
    order = np.argsort(own[known], kind="stable")
    after, before = (np.asarray(each[known], dtype=np.float64)[order] for each in (own, equal))
    if len(after) < 2 or np.ptp(np.concatenate([after, before])) == 0:
        return None
    high = float(np.quantile(after, 0.9))
    title = f"One client in ten has an RMSE above {high:.3g} (mean {after.mean():.3g}"
    title += ")" if np.allclose(before, after) else f"; all models alike: {before.mean():.3g})"
    figure, axes = pictures.make_canvas(title, size=(pictures.NARROW, 3.4))
    draw_sorted_bars(axes, after, pictures.ACCENT)
    if not np.allclose(before, after):
        dots: dict[str, Any] = {
            "color": pictures.ORANGE,
            "markersize": 5,
            "rasterized": len(before) > pictures.MOST_VECTOR_MARKS,
        }
        axes.plot(np.arange(len(before)), before, ".", label="_all models alike", **dots)
        pictures.draw_key(axes, ["own weights or models", "all models alike"], [pictures.ACCENT, pictures.ORANGE])
    axes.set_xlim(-0.7, len(after) - 0.3)
    axes.set_ylim(0, 1.06 * float(max(after.max(), before.max())) or 1.0)
    axes.set_xlabel(f"{len(after)} clients, best first")
    pictures.name_places(axes.xaxis, np.flatnonzero(known)[order].tolist(), whole="client ")
    axes.set_ylabel("RMSE for the client")
    pictures.draw_grid(axes)
    return figure


def draw_sorted_bars(axes: Axes, values: FloatArray, color: str) -> None:
    """One bar a client, next to each other where they are many.

    Args:
        axes: where to draw.
        values: sorted, `[N]`.
        color: of the bars.
    """
    width = 0.84 if len(values) <= 120 else 1.0
    look: dict[str, Any] = {"facecolor": color, "rasterized": len(values) > pictures.MOST_VECTOR_MARKS}
    pictures.draw_bars(axes, np.arange(len(values)) - width / 2, 0.0, width, values, **look)


def sort_clients(values: FloatArray | None) -> tuple[FloatArray, list[int]] | None:
    """The finite values of clients `[N]`, the highest first, and whose they are; None where no two differ.

    Example:
        >>> values, who = sort_clients(np.array([0.5, np.nan, 0.75]))
        >>> values.tolist(), who
        ([0.75, 0.5], [2, 0])
    """
    if values is None or np.isfinite(values).sum() < 2 or np.ptp(values[np.isfinite(values)]) == 0:
        return None
    known = np.flatnonzero(np.isfinite(values))
    order = known[np.argsort(-np.asarray(values[known], dtype=np.float64), kind="stable")]
    return np.asarray(values[order], dtype=np.float64), order.tolist()


def _label_clients(axes: Axes, shown: IntArray, clients: int) -> None:
    """The x axis of clients, by their own numbers."""
    pictures.name_places(axes.xaxis, shown.tolist())
    axes.set_xlabel("client" if len(shown) == clients else f"client ({len(shown)} of {clients}, evenly chosen)")


def _spread_labels(heights: list[float], least: float) -> list[float]:
    """Falling heights of labels, moved down so that two of them are at least `least` apart.

    Example:
        >>> _spread_labels([0.9, 0.85, 0.2], least=0.1)
        [0.9, 0.8, 0.2]
    """
    placed: list[float] = []
    for height in heights:
        placed.append(min(height, placed[-1] - least) if placed else height)
    return placed


# ---------------------------------------------------------------------------------------------------------------------
# What the clients of each tier get, round by round: from the scores of single clients (`evaluate.clients`).


def read_tier_curves(run: ReadRun) -> dict[str, Curve]:
    """The mean score of the recorded clients of each tier over the rounds, in the order of the tiers; {} without."""
    if run.client_scores is None or run.metric not in run.client_scores.column_names:
        return {}
    return average_by_tier(run.client_scores, run.metric)


def average_by_tier(scores: pa.Table, column: str) -> dict[str, Curve]:
    """The mean of a column over the clients of each tier, in every round, replicate and fold.

    Args:
        scores: `client_scores.parquet`.
        column: `accuracy`, `rmse`, or either of them on held-out rows.

    Returns:
        Tier -> curve, in the order of the tiers' first clients; a tier without any number is left out.

    Example:
        >>> scores = {"replicate": [0] * 4, "fold": [0] * 4, "round": [0, 0, 5, 5], "tier": ["a", "b"] * 2}
        >>> table = pa.table({**scores, "client": [0, 1] * 2, "accuracy": [0.1, 0.3, 0.7, 0.9]})
        >>> {tier: curve.mean.tolist() for tier, curve in average_by_tier(table, "accuracy").items()}
        {'a': [0.1, 0.7], 'b': [0.3, 0.9]}
    """
    order = scores.group_by("tier").aggregate([("client", "min")]).sort_by("client_min")["tier"].to_pylist()
    keys = ["tier", "replicate", "fold", "round"]
    means = scores.group_by(keys).aggregate([(column, "mean")]).sort_by([(key, "ascending") for key in keys])
    found = {}
    for tier in order:
        mine = means.filter(pc.equal(means["tier"], tier))
        pairs = np.stack([mine["replicate"].to_numpy(), mine["fold"].to_numpy()])
        world = np.unique(pairs, axis=1, return_inverse=True)[1].ravel()
        rounds, place = np.unique(mine["round"].to_numpy(), return_inverse=True)
        table = np.full((int(world.max()) + 1, len(rounds)), np.nan)
        table[world, place.ravel()] = mine[f"{column}_mean"].to_numpy(zero_copy_only=False)
        known = np.isfinite(table).any(axis=0)
        if known.any():
            found[str(tier)] = Curve(rounds[known].astype(np.float64), table[:, known])
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Accuracy by class and by tier, which a mean over all clients hides.

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
    size = (pictures.WIDE, 3.2) if len(order) > WIDE_FROM else (pictures.NARROW, 3.8)
    figure, axes = pictures.make_canvas(title, size=size)
    draw_intervals(axes, np.arange(len(order)), (share[order], low[order], high[order]), pictures.ACCENT)
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
    figure, axes = pictures.make_canvas("Class by class: the share that is answered rightly", size=(pictures.WIDE, 3.6))
    step = 0.6 / len(found)
    for place, ((i, run), ends) in enumerate(zip(found, shares, strict=True)):
        x = np.arange(len(order)) + step * (place - (len(found) - 1) / 2)
        draw_intervals(axes, x, [each[order] for each in ends], pictures.pick_color(i, len(runs)), run.name)
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
    figure, axes = pictures.make_canvas(f"Mean {what} of the tiers' clients: {title}", size=(pictures.NARROW, 3.4))
    for place, (tier, who) in enumerate(groups.items()):
        spread = 0.5 * (np.arange(len(who)) * 0.6180339887 % 1 - 0.5)  # golden ratio: even, and always the same
        look: dict[str, Any] = {"color": pictures.pick_color(place, len(groups)), "alpha": 0.7, "markersize": 8}
        look["rasterized"] = len(values) > pictures.MOST_VECTOR_MARKS
        axes.plot(place + spread, values[who], ".", label=f"_{tier}", **look)
        ends = [place - 0.34, place + 0.34]
        axes.plot(ends, [means[tier]] * 2, color=pictures.INK, linewidth=2, label=f"_mean of {tier}")
    pictures.name_places(axes.xaxis, [f"{tier} ({len(who)})" for tier, who in groups.items()])
    axes.set_xlim(-0.6, len(groups) - 0.4)
    axes.set_xlabel("tier (clients)")
    axes.set_ylabel(f"{what} for the client")
    pictures.draw_grid(axes)
    if name == "accuracy":
        pictures.use_percent(axes.yaxis)
    return figure


def figure_tier_rounds(run: ReadRun) -> Figure | None:
    """How well the clients of each tier are answered, round by round."""
    found = read_tier_curves(run)
    if len(found) < 2 or max(len(curve.round) for curve in found.values()) < 2:
        return None
    ends = {tier: float(curve.mean[-1]) for tier, curve in found.items()}
    text = ", ".join(f"{tier} {format_number(end, run.metric)}" for tier, end in ends.items())
    figure, axes = pictures.make_canvas(f"The tiers end at {text}", size=(pictures.NARROW, 3.4))
    for place, (tier, curve) in enumerate(found.items()):
        draw_mean_line(axes, curve.round, curve, color=pictures.pick_color(place, len(found)), width=1.8, label=tier)
    axes.set_xlabel(label_rounds(run))
    pictures.use_whole_numbers(axes.xaxis)
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

    Example:
        >>> share, low, high = measure_classes(np.array([[9, 1], [0, 0]]))  # nobody has the second class
        >>> share.tolist(), low.round(2).tolist(), high.round(2).tolist()
        ([0.9, nan], [0.6, nan], [0.98, nan])
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
    pictures.name_places(axes.xaxis, names, whole=None if len(names) <= MOST_NAMED_CLASSES else "class ")
    if len(names) <= MOST_NAMED_CLASSES:
        axes.set_xticks(range(len(names)))
        if max(map(len, names)) > 3:
            axes.tick_params(axis="x", labelrotation=40)
    axes.set_xlabel("class, the best answered first")
    axes.set_ylabel("accuracy within the class")
    pictures.use_percent(axes.yaxis)
    pictures.draw_grid(axes)


# ---------------------------------------------------------------------------------------------------------------------
# The conformal sets of the known clients: how often they hold the right answer, and how large they are.


def figure_conformal(run: ReadRun) -> Figure | None:
    """Coverage of each client, sorted, above the mean size of its sets.

    Example:
        >>> pictures = {"conformal_clients": np.array([[0.95, 2.0], [0.8, 3.0]]), "conformal_alpha": np.array([0.1])}
        >>> figure_conformal(ReadRun("one", {}, "", {}, {}, {}, None, None, pictures)).get_label()
        'Sets hold the answer for 80.0 % of the rows of client 1, the least; 90 % is wanted over all clients'
    """
    table, alpha = run.pictures.get("conformal_clients"), run.pictures.get("conformal_alpha")
    if table is None or alpha is None:
        return None
    known = np.flatnonzero(np.isfinite(table).all(axis=1))
    if len(known) < 2:
        return None
    order = known[np.argsort(-table[known, 0], kind="stable")]
    coverage, size = np.asarray(table[order], dtype=np.float64).T
    wanted, is_class = 1.0 - float(alpha[0]), run.metric == "accuracy"
    what = "Sets hold the answer" if is_class else "Intervals hold the target"
    title = f"{what} for {100 * coverage[-1]:.1f} % of the rows of client {order[-1]}, the least; "
    title += f"{100 * wanted:.3g} % is wanted over all clients"
    figure, (top, low) = pictures.make_canvas(title, 2, 1, size=(pictures.WIDE, 4.2), sharex=True)
    draw_sorted_bars(top, coverage, pictures.ACCENT)
    top.axhline(wanted, color=pictures.INK, linewidth=1, linestyle=(0, (4, 3)))
    top.set_ylabel("coverage for the client")
    top.set_ylim(0, 1.04)
    pictures.use_percent(top.yaxis)
    draw_sorted_bars(low, size, pictures.PALETTE[4])
    low.set_ylabel("labels in a set" if is_class else "width (target units)")
    low.set_ylim(bottom=0)
    low.set_xlim(-0.7, len(order) - 0.3)
    low.set_xlabel(f"{len(order)} clients, best covered first")
    pictures.name_places(low.xaxis, order.tolist(), whole="client ")
    for axes in (top, low):
        pictures.draw_grid(axes)
    return figure


# ---------------------------------------------------------------------------------------------------------------------
# How unlike the others a client's data are: its drift score, the z-score of the ensemble's disagreement on them.

MOST_NAMED_CLIENTS = 8


def figure_drift(run: ReadRun) -> Figure | None:
    """The drift score of each client, sorted; clients beyond the threshold are named."""
    scores = run.pictures.get("client_scores")
    found = sort_clients(scores)
    if scores is None or found is None:
        return None
    z, who = found
    anomaly = np.abs(z) > ANOMALY_Z
    number, beyond = int(anomaly.sum()), f"beyond {ANOMALY_Z:.0f} standard deviations"
    title = f"{number or 'None'} of {len(z)} clients {'has' if number <= 1 else 'have'} a drift score {beyond}"
    figure, axes = pictures.make_canvas(title, size=(pictures.NARROW, 3.4))
    draw_sorted_bars(axes, np.where(anomaly, z, 0.0), pictures.ORANGE)
    draw_sorted_bars(axes, np.where(anomaly, 0.0, z), pictures.PALETTE[8])
    for threshold in (ANOMALY_Z, -ANOMALY_Z):
        axes.axhline(threshold, color=pictures.INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.axhline(0, color=pictures.GRID, linewidth=1)
    if number:
        axes.annotate(name_anomalies(scores), (0.08, 0.93), xycoords="axes fraction", color=pictures.ORANGE, fontsize=9)
    axes.set_xlim(-0.7, len(z) - 0.3)
    axes.set_ylim(min(float(z[-1]), -ANOMALY_Z) * 1.12, max(float(z[0]), ANOMALY_Z) * 1.25)
    pictures.name_places(axes.xaxis, who, whole="client ")
    axes.set_xlabel(f"{len(z)} clients, most unlike the others first")
    axes.set_ylabel("drift score (standard deviations)")
    pictures.draw_grid(axes)
    return figure


def name_anomalies(scores: FloatArray) -> str:
    """Names the clients whose score `[N]` is beyond the threshold, the farthest first; there is at least one.

    Example:
        >>> name_anomalies(np.array([0.1, 3.5, -0.2, 5.0, np.nan]))
        'clients 3, 1'
    """
    distance = np.abs(np.nan_to_num(scores))
    number = int((distance > ANOMALY_Z).sum())
    names = ", ".join(str(client) for client in np.argsort(-distance, kind="stable")[: min(number, MOST_NAMED_CLIENTS)])
    return f"client{'s' if number > 1 else ''} {names}" + (", ..." if number > MOST_NAMED_CLIENTS else "")


# ---------------------------------------------------------------------------------------------------------------------
# The picture of a partition: who has how many rows of each class, and how many rows clients have.

MOST_CLIENTS, MOST_CLASSES = 100, 40  # rows and columns that a picture shows one by one
LIGHT = {pictures.INK: "#1a2026", pictures.MUTED: "#4a545e", pictures.GRID: "#c9d0d6", pictures.PAPER: "#ffffff"}


def draw_partition(title: str, counts: IntArray, sizes: IntArray, names: Sequence[str]) -> Figure:
    """Rows of each class at each client, and the sizes of the clients.

    Args:
        title: Above the picture.
        counts: Rows of each class at the first clients, `[n, C]`; C is 0 for a regression.
        sizes: Rows of each client, `[N]`.
        names: Of the classes.
    """
    counts = counts[:MOST_CLIENTS]
    figure = Figure(figsize=(pictures.WIDE, 3.6), layout="constrained")
    figure.suptitle(title)
    if counts.shape[1]:
        table, bars = figure.subplots(1, 2, width_ratios=(3, 2))
        _draw_counts(figure, table, counts, names)
    else:
        bars = figure.subplots()
    _draw_sizes(bars, sizes)
    return figure


def _draw_counts(figure: Figure, axes: matplotlib.axes.Axes, counts: IntArray, names: Sequence[str]) -> None:
    """A cell for each client and class, darker for more rows; no rows are blank."""
    shown = np.where(counts > 0, counts, np.nan).T[:MOST_CLASSES]
    image = axes.imshow(shown, aspect="auto", origin="lower", cmap="viridis_r", vmin=0)
    axes.set_xlabel("client" if len(counts) < MOST_CLIENTS else f"client (the first {MOST_CLIENTS})")
    axes.set_ylabel("class")
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(10, integer=True))
    if len(shown) <= 12:
        axes.set_yticks(range(len(shown)), [str(name)[:12] for name in names[: len(shown)]])
    figure.colorbar(image, ax=axes, label="rows", pad=0.02)


def _draw_sizes(axes: matplotlib.axes.Axes, sizes: IntArray) -> None:
    """The sizes of the clients, the largest first."""
    order = np.sort(sizes)[::-1]
    if len(order) <= 60:
        axes.bar(np.arange(len(order)), order, color=pictures.ACCENT)
    else:  # an outline: a million bars are as many shapes
        place = np.unique(np.linspace(0, len(order) - 1, 2000).astype(np.int64))
        axes.fill_between(place, order[place], color=pictures.ACCENT, step="mid")
        axes.set_ylim(bottom=0)
    axes.set_xlabel("clients, the largest first")
    axes.set_ylabel("rows")
    axes.set_title(f"{order.min():,} to {order.max():,} rows, {int(np.median(order)):,} in the middle", fontsize=9.5)
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(8, integer=True))


def draw_png(title: str, counts: IntArray, sizes: IntArray, names: Sequence[str]) -> bytes:
    """The picture of `draw_partition` as a PNG on white.

    Args:
        title: Above the picture.
        counts: Rows of each class at the first clients, `[n, C]`.
        sizes: Rows of each client, `[N]`.
        names: Of the classes.
    """
    light = {key: LIGHT.get(value, value) for key, value in pictures.FIGURE_SETTINGS.items() if isinstance(value, str)}
    sink = io.BytesIO()
    with pictures.use_figure_style(), matplotlib.rc_context({**light, "figure.facecolor": "#ffffff"}):
        draw_partition(title, counts, sizes, names).savefig(sink, format="png", dpi=80, metadata={"Software": None})
    return sink.getvalue()
