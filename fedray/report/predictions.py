"""Pictures of the quality of the final predictions: confusion, calibration, and the pictures of regression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedray.core.types import FloatArray
from fedray.report import pictures
from fedray.report.jobs import pick_evenly
from fedray.report.read import ReadRun

MOST_WRITTEN_CLASSES = 12  # classes up to which the numbers are written into the confusion matrix
MOST_TURNS = 12  # full rises and falls that a curve over one input may have
MOST_DRAWN_ROWS = 100_000  # targets drawn at most
MOST_NAMED_CLASSES = 20  # classes up to which the axes name them


def figure_calibration(run: ReadRun) -> Figure | None:
    """Draws the reliability diagram of the predictions, with the number of samples below."""
    table = run.pictures.get("calibration")
    if table is None or not np.nansum(table[:, 2]):
        return None
    bins = len(table)
    filled = np.flatnonzero(table[:, 2] > 0)
    confidence, right, count = table[filled].T
    gap = float(np.sum(count * np.abs(confidence - right)) / count.sum())
    lean = float(np.sum(count * (confidence - right)) / count.sum())
    word = "too sure" if lean > 0.01 else "too cautious" if lean < -0.01 else "neither too sure nor too cautious"
    title = f"The answers are {word} (calibration error {100 * gap:.1f} %)"
    figure, (top, low) = pictures.make_canvas(
        title, 2, 1, size=(pictures.NARROW, 4.2), height_ratios=[4, 1], sharex=True
    )
    left = filled / bins  # only the table knows the bin of a confidence between two bins
    both = np.minimum(confidence, right)
    colors = (pictures.PALETTE[4], pictures.ORANGE, pictures.PALETTE[2])
    for low_end, high, color in (
        (0.0, both, colors[0]),
        (both, confidence - both, colors[1]),
        (both, right - both, colors[2]),
    ):
        pictures.draw_bars(top, left + 0.08 / bins, low_end, 0.84 / bins, high, facecolor=color)
    top.plot([0, 1], [0, 1], **pictures.DASHED)
    top.set_xlim(0, 1)
    top.set_ylim(0, 1)
    top.set_ylabel("accuracy of these samples")
    pictures.draw_key(top, ["accuracy", "too sure", "too cautious"], colors)
    pictures.draw_bars(low, left + 0.08 / bins, 0.0, 0.84 / bins, count, facecolor=pictures.PALETTE[8])
    low.set_ylabel("samples")
    low.set_ylim(bottom=0)
    low.set_xlabel("confidence of the answer")
    low.yaxis.set_major_locator(MaxNLocator(2, integer=True))
    for axis in (low.xaxis, top.yaxis):
        pictures.use_percent(axis)
    return figure


def figure_confusion(run: ReadRun) -> Figure | None:
    """Draws the confusion matrix: each row shows how the samples of a class are predicted, and sums to one."""
    counts = run.pictures.get("confusion")
    if counts is None or not counts.sum():
        return None
    names = read_class_names(run, len(counts))
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    off = shares * (1 - np.eye(len(shares)))
    i, j = np.unravel_index(int(off.argmax()), off.shape)
    title = f"Most confused: {100 * off[i, j]:.0f} % of class {names[int(i)]} is answered {names[int(j)]}"
    title = title if off.any() else "No class is taken for another"
    figure, axes = pictures.make_canvas(title, size=(pictures.NARROW, 4.8))
    draw_shares(axes, shares, names)
    axes.set_xlabel("answer")
    axes.set_ylabel("true class")
    return figure


def draw_shares(axes: Axes, shares: FloatArray, classes: Sequence[str] = (), *, high: float = 1.0) -> None:
    """Draws a table of shares as cells, with percentages of at least half a percent where there is room.

    Args:
        axes: the axes to draw on.
        shares: the shares, `[rows, columns]`.
        classes: the names of both rows and columns, written where there is room; empty means their numbers.
        high: the share of the darkest cell.
    """
    axes.imshow(shares, cmap=pictures.make_colormap(), vmin=0, vmax=high)
    if shares.shape[1] <= MOST_WRITTEN_CLASSES:
        for (i, j), share in np.ndenumerate(shares):
            if share >= 0.005:
                color = "#ffffff" if share > 0.55 * high else pictures.INK
                axes.text(j, i, f"{100 * share:.0f}", ha="center", va="center", fontsize=8.5, color=color)
    if 0 < len(classes) <= MOST_NAMED_CLASSES:
        turn: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
        axes.set_xticks(range(len(classes)), classes, **(turn if max(map(len, classes)) > 3 else {}))
        axes.set_yticks(range(len(classes)), classes)
    else:
        pictures.use_whole_numbers(axes.xaxis)
        pictures.use_whole_numbers(axes.yaxis)
    pictures.hide_frame(axes)


def figure_predictive(run: ReadRun) -> Figure | None:
    """Draws mean and interval over the input, or predictions against targets if there is no single input."""
    rows = run.pictures.get("predictive")
    if rows is None:
        return None
    rows = rows[pick_evenly(np.arange(len(rows)), MOST_DRAWN_ROWS)]
    x, y, mean, sd = rows[np.argsort(rows[:, 0])].T
    known = np.isfinite(y)
    inside = 100 * (np.abs(y - mean)[known] <= 1.96 * sd[known]).mean() if known.any() else 0.0
    title = f"{inside:.0f} % of the targets lie in the 95 % interval" if known.any() else "Mean and interval"
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, 4.2))
    look: dict[str, Any] = {"color": pictures.ACCENT}
    # with further inputs the mean would jump from one x to the next
    if np.isfinite(x).all() and np.abs(np.diff(mean)).sum() <= MOST_TURNS * np.ptp(mean):
        axes.plot(x, mean, linewidth=2, label="mean and 95 % interval", **look)
        axes.fill_between(x, mean - 1.96 * sd, mean + 1.96 * sd, alpha=0.2, linewidth=0, label=pictures.BAND, **look)
        dots: dict[str, Any] = {"color": pictures.ORANGE, "markersize": 4, "alpha": 0.8, "rasterized": len(y) > 400}
        axes.plot(x[known], y[known], ".", label="target", **dots)
        axes.set_xlabel("input")
        axes.set_ylabel("output (target units)")
    else:
        some = pick_evenly(np.arange(len(y)), 400)
        look |= {"fmt": ".", "elinewidth": 0.6, "markersize": 4, "alpha": 0.45, "rasterized": True}
        axes.errorbar(y[some], mean[some], yerr=1.96 * sd[some], label="95 % interval", **look)
        ends = [float(np.nanmin(y)), float(np.nanmax(y))]
        axes.plot(ends, ends, label="right answer", **pictures.DASHED)
        axes.set_xlabel("target (its own units)")
        axes.set_ylabel("prediction (target units)")
    axes.legend(loc="upper left", ncols=3)
    return figure


def figure_disagreement(run: ReadRun) -> Figure | None:
    """Draws how often each two members predict differently."""
    pairs = run.pictures.get("disagreement")
    if pairs is None or len(pairs) < 3:
        return None
    mean = float(pairs[~np.eye(len(pairs), dtype=bool)].mean())
    title = f"Two members answer differently on {100 * mean:.1f} % of the samples"
    figure, axes = pictures.make_canvas(title, size=(pictures.NARROW, 4.2))
    draw_shares(axes, pairs, high=max(float(pairs.max()), 1e-9))
    axes.set_xlabel("model")
    axes.set_ylabel("other model")
    return figure


def figure_pit(run: ReadRun) -> Figure | None:
    """Draws the histogram of the probability integral transform: flat if the predictive distribution is right."""
    shares = run.pictures.get("pit")
    if shares is None or not shares.sum():
        return None
    shares = shares / shares.sum()
    bins = len(shares)
    middle = float(shares[bins // 4 : bins - bins // 4].sum()) / ((bins - 2 * (bins // 4)) / bins)
    word = "too wide" if middle > 1.15 else "too narrow" if middle < 0.85 else "about as wide as the errors"
    figure, axes = pictures.make_canvas(f"The predictive distributions are {word}", size=(pictures.NARROW, 3.0))
    pictures.draw_bars(axes, np.arange(bins) / bins + 0.04 / bins, 0.0, 0.92 / bins, shares, facecolor=pictures.ACCENT)
    axes.axhline(1 / bins, **pictures.DASHED)
    axes.annotate("calibrated", (1, 1 / bins), (0, 3), textcoords="offset points", ha="right", color=pictures.INK)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, float(shares.max()) * 1.15)
    axes.set_xlabel("predicted probability of a smaller value than the target (PIT)")
    axes.set_ylabel("share of the targets")
    pictures.use_percent(axes.yaxis)
    return figure


def figure_coverage(run: ReadRun) -> Figure | None:
    """Draws the observed against the nominal coverage of central intervals."""
    levels = run.pictures.get("coverage")
    if levels is None or not len(levels):
        return None
    nominal, observed = levels[np.argsort(levels[:, 0])].T
    title = f"The {100 * nominal[-1]:.0f} % interval holds {100 * observed[-1]:.0f} % of the targets"
    figure, axes = pictures.make_canvas(title, size=(pictures.NARROW, 3.4))
    axes.plot([0, 1], [0, 1], **pictures.DASHED, label="calibrated")
    axes.plot(nominal, observed, "o-", color=pictures.ACCENT, linewidth=1.8, markersize=5, label="observed")
    axes.set_xlim(0, 1.02)
    axes.set_ylim(0, 1.04)
    axes.set_xlabel("nominal coverage")
    axes.set_ylabel("observed coverage")
    for axis in (axes.xaxis, axes.yaxis):
        pictures.use_percent(axis)
    axes.grid(visible=True, axis="x")
    axes.legend(loc="upper left")
    return figure


def read_class_names(run: ReadRun, number: int) -> list[str]:
    """Returns the names of the classes, or their numbers if the run has no names.

    Example:
        >>> read_class_names(ReadRun("one", {}, "", {}, {}, {}, None, None, {}), 3)
        ['0', '1', '2']
    """
    names = run.pictures.get("class_names")
    if names is None or len(names) != number:
        return [str(i) for i in range(number)]
    return [str(name) for name in names]


# ---------------------------------------------------------------------------------------------------------------------
# How uncertain the predictions for out-of-distribution inputs are, beside those for the test samples.


def figure_ood(run: ReadRun) -> Figure | None:
    """Draws histograms of the entropy of the predictions: for test samples, and for out-of-distribution inputs.

    Example:
        >>> pictures = {"ood_entropies": np.array([[0.0, 0.9, 0.2], [0.5, 0.1, 0.8]]), "ood_auroc": np.array([0.91])}
        >>> figure_ood(ReadRun("one", {}, "", {}, {}, {}, None, None, pictures)).get_label()
        'By the entropy of the answers 91.0 % of the pairs of a test row and an unknown input are told apart'
    """
    table, area = run.pictures.get("ood_entropies"), run.pictures.get("ood_auroc")
    if table is None or area is None or len(table) < 2 or not np.isfinite(table).all():
        return None
    left, *shares = np.asarray(table, dtype=np.float64).T
    width = float(left[1] - left[0])
    title = (
        f"By the entropy of the answers {100 * float(area[0]):.1f} % of the pairs of a test row and an unknown input "
    )
    figure, axes = pictures.make_canvas(f"{title}are told apart", size=(pictures.NARROW, 3.4))
    colors = (pictures.ACCENT, pictures.ORANGE)
    for place, (share, color) in enumerate(zip(shares, colors, strict=True)):
        pictures.draw_bars(axes, left + (0.08 + 0.42 * place) * width, 0.0, 0.42 * width, share, facecolor=color)
    axes.set_xlim(0.0, left[-1] + width)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("entropy of the answer (nats)")
    axes.set_ylabel("share of the inputs")
    pictures.use_percent(axes.yaxis)
    pictures.draw_key(axes, ["test rows", "out-of-distribution inputs"], colors)
    return figure


# ---------------------------------------------------------------------------------------------------------------------
# The loss on the plane through three members: how far apart the members lie, and the loss between them.


def figure_loss_plane(run: ReadRun) -> Figure | None:
    """Draws the log loss on the plane through three members, and marks the members."""
    plane = run.pictures.get("loss_plane")
    if plane is None:
        return None
    left, right, bottom, top = run.pictures["loss_plane_extent"]
    x, y = np.linspace(left, right, plane.shape[1]), np.linspace(bottom, top, plane.shape[0])
    title = "The loss on the plane through models 0, 1 and 2"
    figure, axes = pictures.make_canvas(title, size=(pictures.NARROW, 4.2))
    shown = axes.contourf(x, y, plane, levels=14, cmap="cividis")
    for k, (a, b) in enumerate(run.pictures["loss_plane_points"]):
        axes.plot(a, b, "o", color="#ffffff", markersize=8, markeredgecolor="#000000")
        way, side = (7, "left") if a <= (left + right) / 2 else (-7, "right")  # the side with more room
        look: dict[str, Any] = {"color": "#ffffff", "fontweight": "bold", "ha": side}
        axes.annotate(f"model {k}", (a, b), (way, 5), textcoords="offset points", **look)
    axes.set_xlabel("first direction of the plane (distance between weights)")
    axes.set_ylabel("second direction")
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    bar = figure.colorbar(shown, label="log loss", ticks=MaxNLocator(5))
    bar.outline.set_visible(False)
    return figure
