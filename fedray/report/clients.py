"""The clients one by one: what data they hold, which models suit them, who is served badly.

Example:
    >>> _spread_labels([0.9, 0.85, 0.2], least=0.1)
    [0.9, 0.8, 0.2]
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedray.core.types import FloatArray, IntArray
from fedray.report import style
from fedray.report.jobs import MOST_DRAWN_MODELS, draw_stacked_bars, pick_evenly
from fedray.report.predictions import read_class_names
from fedray.report.read import ReadRun

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
    figure, axes = style.make_canvas(title, size=(style.WIDE, 3.4))
    colors = style.pick_colors(classes)
    names = read_class_names(run, classes)
    draw_stacked_bars(axes, counts[shown], colors, [f"class {name}" for name in names])
    _label_clients(axes, shown, clients)
    axes.set_ylabel("training samples")
    style.draw_grid(axes)
    if 1 < classes <= len(style.PALETTE):
        style.draw_key(axes, names, colors)
    elif classes > 1:
        ends = (0, classes // 2, classes - 1)
        style.draw_key(axes, [f"class {names[i]}" for i in ends], [colors[i] for i in ends])
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
    figure, axes = style.make_canvas(title, size=(style.WIDE, float(np.clip(1.2 + 0.22 * models, 1.9, 5))))
    high = float(alpha.max())
    picture = axes.imshow(alpha[shown].T, cmap=style.make_colormap(), vmin=0, vmax=high, aspect="auto")
    axes.set_yticks(range(models) if models <= 12 else np.linspace(0, models - 1, 6).astype(int))
    axes.set_ylabel("model")
    _label_clients(axes, shown, clients)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(picture, pad=0.015, aspect=12, label="weight")
    if bar.solids is not None:
        bar.solids.set_rasterized(True)
    bar.outline.set_visible(False)
    style.use_percent(bar.ax.yaxis)
    return figure


def figure_client_accuracy(run: ReadRun) -> Figure | None:
    """Accuracy of each client, sorted, with the mean, the 10th percentile and the worst."""
    found = sort_clients(run.pictures.get("client_accuracy"))
    if found is None:
        return None
    each, who = found
    low = float(np.quantile(each, 0.1))
    title = f"One client in ten stays below {100 * low:.1f} % accuracy (mean {100 * each.mean():.1f} %)"
    figure, axes = style.make_canvas(title, size=(style.NARROW, 3.4))
    draw_sorted_bars(axes, each, style.ACCENT)
    marks = (("mean", float(each.mean())), ("10th percentile", low), ("worst", float(each[-1])))
    heights = _spread_labels([value for _, value in marks], 0.12 * float(each.max()))
    for (name, value), height in zip(marks, heights, strict=True):
        axes.axhline(value, color=style.INK, linewidth=1, linestyle=(0, (4, 3)))
        text = f"{name}\n{100 * value:.1f} %"
        axes.text(1.01, height, text, transform=axes.get_yaxis_transform(), va="center", fontsize=8.5)
    axes.set_xlim(-0.7, len(each) - 0.3)
    axes.set_ylim(0, min(1.0, float(each.max()) * 1.06))
    axes.set_xlabel(f"{len(each)} clients, best first")
    axes.set_ylabel("accuracy for the client")
    style.name_places(axes.xaxis, who, whole="client ")
    style.use_percent(axes.yaxis)
    style.draw_grid(axes)
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
    figure, axes = style.make_canvas(title, size=(style.NARROW, 3.4))
    draw_sorted_bars(axes, after, style.ACCENT)
    if not np.allclose(before, after):
        dots: dict[str, Any] = {
            "color": style.ORANGE,
            "markersize": 5,
            "rasterized": len(before) > style.MOST_VECTOR_MARKS,
        }
        axes.plot(np.arange(len(before)), before, ".", label="_all models alike", **dots)
        style.draw_key(axes, ["own weights or models", "all models alike"], [style.ACCENT, style.ORANGE])
    axes.set_xlim(-0.7, len(after) - 0.3)
    axes.set_ylim(0, 1.06 * float(max(after.max(), before.max())) or 1.0)
    axes.set_xlabel(f"{len(after)} clients, best first")
    style.name_places(axes.xaxis, np.flatnonzero(known)[order].tolist(), whole="client ")
    axes.set_ylabel("RMSE for the client")
    style.draw_grid(axes)
    return figure


def draw_sorted_bars(axes: Axes, values: FloatArray, color: str) -> None:
    """One bar a client, next to each other where they are many.

    Args:
        axes: where to draw.
        values: sorted, `[N]`.
        color: of the bars.
    """
    width = 0.84 if len(values) <= 120 else 1.0
    look: dict[str, Any] = {"facecolor": color, "rasterized": len(values) > style.MOST_VECTOR_MARKS}
    style.draw_bars(axes, np.arange(len(values)) - width / 2, 0.0, width, values, **look)


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
    style.name_places(axes.xaxis, shown.tolist())
    axes.set_xlabel("client" if len(shown) == clients else f"client ({len(shown)} of {clients}, evenly chosen)")


def _spread_labels(heights: list[float], least: float) -> list[float]:
    """Falling heights of labels, moved down so that two of them are at least `least` apart."""
    placed: list[float] = []
    for height in heights:
        placed.append(min(height, placed[-1] - least) if placed else height)
    return placed
