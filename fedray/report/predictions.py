"""How good the final answers are: confusion, calibration, and the pictures of regression."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedray.core.types import FloatArray
from fedray.report import pictures
from fedray.report.jobs import pick_evenly
from fedray.report.pictures import NumberTable
from fedray.report.read import ReadRun

MOST_WRITTEN_CLASSES = 12  # classes up to which the numbers are written into the confusion matrix
ERROR_GROUPS = 8  # of predictions, by their width
MOST_TURNS = 12  # rises and falls over its whole height that a curve of one input may have
MOST_DRAWN_CLASSES = 2000  # in a confusion matrix, or members in one of disagreement
MOST_DRAWN_ROWS = 100_000  # targets in a picture
MOST_NAMED_CLASSES = 20  # classes up to which the axes name them


def figure_calibration(run: ReadRun) -> Figure | None:
    """Reliability diagram of the answers with the number of samples below."""
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
    left = filled / bins  # of a confidence between two bins, only the table knows the bin
    both = np.minimum(confidence, right)
    colors = (pictures.PALETTE[4], pictures.ORANGE, pictures.PALETTE[2])
    for low_end, high, color in (
        (0.0, both, colors[0]),
        (both, confidence - both, colors[1]),
        (both, right - both, colors[2]),
    ):
        pictures.draw_bars(top, left + 0.08 / bins, low_end, 0.84 / bins, high, facecolor=color)
    top.plot([0, 1], [0, 1], color=pictures.INK, linewidth=1, linestyle=(0, (4, 3)))
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
    pictures.draw_grid(top)
    return figure


def figure_confusion(run: ReadRun) -> Figure | None:
    """Rows sum to one: where the samples of a class go."""
    counts = run.pictures.get("confusion")
    if counts is None or counts.ndim != 2 or not counts.sum() or len(counts) > MOST_DRAWN_CLASSES:
        return None
    names = read_class_names(run, len(counts))
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure, axes = pictures.make_canvas(_confusion_title(shares, names), size=(pictures.NARROW, 4.8))
    axes.imshow(shares, cmap=pictures.make_colormap(), vmin=0, vmax=1)
    if len(counts) <= MOST_WRITTEN_CLASSES:
        for (i, j), share in np.ndenumerate(shares):
            if share >= 0.005:
                color = "#ffffff" if share > 0.55 else pictures.INK
                axes.text(j, i, f"{100 * share:.0f}", ha="center", va="center", fontsize=8.5, color=color)
    if len(counts) <= MOST_NAMED_CLASSES:
        long = max(map(len, names)) > 3
        turn = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if long else {}
        axes.set_xticks(range(len(counts)), names, **turn)
        axes.set_yticks(range(len(counts)), names)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("answer")
    axes.set_ylabel("true class")
    return figure


def figure_predictive(run: ReadRun) -> Figure | None:
    """Mean and interval over the input, or predictions against targets where there is no single input."""
    rows = run.pictures.get("predictive")
    if rows is None or rows.ndim != 2 or rows.shape[1] != 4:
        return None
    rows = rows[pick_evenly(np.arange(len(rows)), MOST_DRAWN_ROWS)]
    x, y, mean, sd = columns = rows[np.argsort(rows[:, 0])].T
    known = np.isfinite(y)
    inside = 100 * (np.abs(y - mean)[known] <= 1.96 * sd[known]).mean() if known.any() else 0.0
    title = f"{inside:.0f} % of the targets lie in the 95 % interval" if known.any() else "Mean and interval"
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, 4.2))
    if _is_curve(x, mean):
        _draw_curve(axes, columns)
    else:
        _draw_pairs(axes, columns)
    pictures.draw_grid(axes)
    axes.legend(loc="best", ncols=3, bbox_to_anchor=(0, 0, 1, 1)) if len(y) < 400 else axes.legend(loc="upper left")
    return figure


def _draw_curve(axes: Axes, columns: FloatArray) -> None:
    """Mean and interval over the input, from input, target, mean and deviation, `[4, n]`."""
    x, y, mean, sd = columns
    known, color = np.isfinite(y), pictures.ACCENT
    axes.plot(x, mean, color=color, linewidth=2, label="mean and 95 % interval")
    axes.fill_between(x, mean - 1.96 * sd, mean + 1.96 * sd, color=color, alpha=0.2, linewidth=0, label=pictures.BAND)
    dots: dict[str, Any] = {"color": pictures.ORANGE, "markersize": 4, "alpha": 0.8, "rasterized": len(y) > 400}
    axes.plot(x[known], y[known], ".", label="target", **dots)
    axes.set_xlabel("input")
    axes.set_ylabel("output (target units)")


def _draw_pairs(axes: Axes, columns: FloatArray) -> None:
    """Prediction and interval over the target, of at most 400 targets; columns as in `_draw_curve`."""
    _, y, mean, sd = columns
    some = np.linspace(0, len(y) - 1, min(len(y), 400)).astype(int)
    look: dict[str, Any] = {"fmt": ".", "color": pictures.ACCENT, "ecolor": pictures.ACCENT, "elinewidth": 0.6}
    look |= {"markersize": 4, "alpha": 0.45, "rasterized": True}
    axes.errorbar(y[some], mean[some], yerr=1.96 * sd[some], label="95 % interval", **look)
    ends = [float(np.nanmin(y)), float(np.nanmax(y))]
    axes.plot(ends, ends, color=pictures.INK, linewidth=1, linestyle=(0, (4, 3)), label="right answer")
    axes.set_xlabel("target (its own units)")
    axes.set_ylabel("prediction (target units)")


def figure_pit(run: ReadRun) -> Figure | None:
    """Histogram of the probability integral transform: flat where the predictive distribution is right."""
    shares = run.pictures.get("pit")
    if shares is None or not shares.sum():
        return None
    shares = shares / shares.sum()
    bins = len(shares)
    middle = float(shares[bins // 4 : bins - bins // 4].sum()) / ((bins - 2 * (bins // 4)) / bins)
    word = "too wide" if middle > 1.15 else "too narrow" if middle < 0.85 else "about as wide as the errors"
    figure, axes = pictures.make_canvas(f"The predictive distributions are {word}", size=(pictures.NARROW, 3.0))
    pictures.draw_bars(axes, np.arange(bins) / bins + 0.04 / bins, 0.0, 0.92 / bins, shares, facecolor=pictures.ACCENT)
    axes.axhline(1 / bins, color=pictures.INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.annotate("calibrated", (1, 1 / bins), (0, 3), textcoords="offset points", ha="right", color=pictures.INK)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, float(shares.max()) * 1.15)
    axes.set_xlabel("predicted probability of a smaller value than the target (PIT)")
    axes.set_ylabel("share of the targets")
    pictures.use_percent(axes.yaxis)
    pictures.draw_grid(axes)
    return figure


def figure_coverage(run: ReadRun) -> Figure | None:
    """Observed against nominal coverage of central intervals."""
    levels = run.pictures.get("coverage")
    if levels is None or not len(levels):
        return None
    nominal, observed = levels[np.argsort(levels[:, 0])].T
    title = f"The {100 * nominal[-1]:.0f} % interval holds {100 * observed[-1]:.0f} % of the targets"
    figure, axes = pictures.make_canvas(title, size=(pictures.NARROW, 3.4))
    axes.plot([0, 1], [0, 1], color=pictures.INK, linewidth=1, linestyle=(0, (4, 3)), label="calibrated")
    axes.plot(nominal, observed, "o-", color=pictures.ACCENT, linewidth=1.8, markersize=5, label="observed")
    axes.set_xlim(0, 1.02)
    axes.set_ylim(0, 1.04)
    axes.set_xlabel("nominal coverage")
    axes.set_ylabel("observed coverage")
    for axis in (axes.xaxis, axes.yaxis):
        pictures.use_percent(axis)
    pictures.draw_grid(axes, "both")
    axes.legend(loc="upper left")
    return figure


def figure_sharpness(run: ReadRun) -> Figure | None:
    """How sharp the predictions are, and whether the sharper ones are nearer: error against predicted deviation."""
    rows = run.pictures.get("errors")
    if rows is None or rows.ndim != 2 or len(rows) < 2 or not (rows[:, 0] > 0).all():
        return None
    rows = rows[pick_evenly(np.arange(len(rows)), MOST_DRAWN_ROWS)]
    sd, error = rows[np.argsort(rows[:, 0], kind="stable")].T
    figure, axes = pictures.make_canvas(_sharpness_title(sd), size=(pictures.NARROW, 3.4))
    axes.plot(
        sd, error, ".", color=pictures.ACCENT, markersize=4, alpha=0.35, rasterized=len(sd) > 400, label="a target"
    )
    parts = np.array_split(np.arange(len(sd)), max(1, min(ERROR_GROUPS, len(sd) // 10)))
    middle = [float(np.sqrt((sd[part] ** 2).mean())) for part in parts]
    found = [float(np.sqrt((error[part] ** 2).mean())) for part in parts]
    axes.plot(middle, found, "o-", color=pictures.ORANGE, markersize=5, label="root mean square of groups")
    ends = [float(sd.min()), float(sd.max())]
    axes.plot(ends, ends, color=pictures.INK, linewidth=1, linestyle=(0, (4, 3)), label="calibrated")
    axes.set_xlabel("predicted standard deviation (target units)")
    axes.set_ylabel("absolute error")
    axes.set_ylim(bottom=0)
    pictures.draw_grid(axes)
    axes.legend(loc="upper left")
    return figure


def _sharpness_title(sd: FloatArray) -> str:
    if float(sd.max() / sd.min()) < 1.05:
        return "The predictions are equally sharp everywhere"
    return f"The widest prediction is {sd.max() / sd.min():.2g} times as wide as the sharpest"


def figure_disagreement(run: ReadRun) -> Figure | None:
    """How often two members answer differently."""
    pairs = run.pictures.get("disagreement")
    if pairs is None or pairs.ndim != 2 or not 3 <= len(pairs) <= MOST_DRAWN_CLASSES:
        return None
    models = len(pairs)
    mean = float(pairs[~np.eye(models, dtype=bool)].mean())
    title = f"Two members answer differently on {100 * mean:.1f} % of the samples"
    figure, axes = pictures.make_canvas(title, size=(pictures.NARROW, 4.2))
    high = max(float(pairs.max()), 1e-9)
    axes.imshow(pairs, cmap=pictures.make_colormap(), vmin=0, vmax=high)
    if models <= MOST_WRITTEN_CLASSES:
        for (i, j), share in np.ndenumerate(pairs):
            color = "#ffffff" if share > 0.55 * high else pictures.INK
            axes.text(j, i, f"{100 * share:.1f}" if i != j else "", ha="center", va="center", fontsize=8.5, color=color)
    pictures.use_whole_numbers(axes.xaxis)
    pictures.use_whole_numbers(axes.yaxis)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("model")
    axes.set_ylabel("other model")
    return figure


def read_class_names(run: ReadRun, number: int) -> list[str]:
    """Names of the classes, or their numbers.

    Example:
        >>> read_class_names(ReadRun("one", {}, "", {}, {}, {}, None, None, {}), 3)
        ['0', '1', '2']
    """
    names = run.pictures.get("class_names")
    if names is None or len(names) != number:
        return [str(i) for i in range(number)]
    return [str(name) for name in names]


def _is_curve(x: FloatArray, mean: FloatArray) -> bool:
    """Whether the mean is a curve over x: with further inputs it jumps up and down from one x to the next."""
    if not np.isfinite(x).all():
        return False
    path, height = float(np.abs(np.diff(mean)).sum()), float(np.ptp(mean))
    return path <= MOST_TURNS * height


def _confusion_title(shares: FloatArray, names: list[str]) -> str:
    off = shares.copy()
    np.fill_diagonal(off, 0)
    i, j = np.unravel_index(int(off.argmax()), off.shape)
    if not off.any():
        return "No class is taken for another"
    return f"Most confused: {100 * off[i, j]:.0f} % of class {names[int(i)]} is answered {names[int(j)]}"


# ---------------------------------------------------------------------------------------------------------------------
# How uncertain the answers to out-of-distribution inputs are, beside those to the test rows.


def figure_ood(run: ReadRun) -> Figure | None:
    """Histograms of the entropy of the answers: to the test rows, and to the out-of-distribution inputs.

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
    pictures.draw_grid(axes)
    return figure


# ---------------------------------------------------------------------------------------------------------------------
# The loss on the plane through three members: how far apart they lie, and what is between them.


def figure_loss_plane(run: ReadRun) -> Figure | None:
    """The log loss on the plane through three members, which are marked."""
    plane = run.pictures.get("loss_plane")
    if plane is None or plane.ndim != 2 or min(plane.shape) < 2:
        return None
    points = run.pictures.get("loss_plane_points", np.empty((0, 2)))
    x, y = _read_places(run, plane)
    figure, axes = pictures.make_canvas(_plane_title(len(points)), size=(pictures.NARROW, 4.2))
    shown = axes.contourf(x, y, plane, levels=14, cmap="cividis")
    _mark_members(axes, points)
    axes.set_xlabel("first direction of the plane (distance between weights)")
    axes.set_ylabel("second direction")
    axes.set_xlim(x[0], x[-1])
    axes.set_ylim(y[0], y[-1])
    bar = figure.colorbar(shown, label="log loss", ticks=MaxNLocator(5))
    bar.outline.set_visible(False)
    return figure


def list_loss_plane(run: ReadRun) -> NumberTable | None:
    """The numbers of the picture: the loss at each place of the plane.

    Example:
        >>> pictures = {"loss_plane": np.array([[1.0, 2.0], [3.0, 4.0]])}
        >>> list_loss_plane(ReadRun("one", {}, "", {}, {}, {}, None, None, pictures)).rows[1]
        [1.0, 0.0, 2.0]
    """
    plane = run.pictures.get("loss_plane")
    if plane is None or plane.ndim != 2 or min(plane.shape) < 2:
        return None
    x, y = _read_places(run, plane)
    rows = [
        [float(f"{v:.5g}") for v in (x[j], y[i], loss)] for (i, j), loss in np.ndenumerate(plane) if np.isfinite(loss)
    ]
    return NumberTable(["first direction", "second direction", "log loss"], rows)


def _read_places(run: ReadRun, plane: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Where the columns and rows of the plane lie."""
    high, wide = plane.shape
    extent = run.pictures.get("loss_plane_extent", np.array([0, wide - 1, 0, high - 1]))
    left, right, bottom, top = (float(end) for end in extent)
    return np.linspace(left, right, wide), np.linspace(bottom, top, high)


def _mark_members(axes: Axes, points: FloatArray) -> None:
    """Each member and its name, on the side where the picture has room for it."""
    middle = sum(axes.get_xlim()) / 2
    for k, (x, y) in enumerate(points):
        axes.plot(x, y, "o", color="#ffffff", markersize=8, markeredgecolor="#000000")
        way, side = (7, "left") if x <= middle else (-7, "right")
        axes.annotate(
            f"model {k}", (x, y), (way, 5), textcoords="offset points", color="#ffffff", fontweight="bold", ha=side
        )


def _plane_title(points: int) -> str:
    return "The loss on the plane through models 0, 1 and 2" if points == 3 else "The loss on a plane of weights"
