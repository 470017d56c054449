"""What a stack learnt: accuracy of each sub model, its answers beside the plain average's, the meta model's weights.

Example:
    >>> weights = np.array([[1.0, -0.5, -2.0, 0.1], [0.2, 3.0, 0.4, 1.0]])  # 2 classes, 2 bases
    >>> count_opposing(weights)  # base 1 speaks against class 0
    1
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedray.core.types import FloatArray
from fedray.report import pictures
from fedray.report.predictions import (
    MOST_DRAWN_CLASSES,
    MOST_NAMED_CLASSES,
    MOST_WRITTEN_CLASSES,
    read_class_names,
)
from fedray.report.read import ReadRun

MOST_DRAWN_BASES = 200


def figure_folds(run: ReadRun) -> Figure | None:
    """Test accuracy of every sub model: a row a base, a column a fold (the paper's Table 2)."""
    table = run.pictures.get("stack_folds")
    if table is None or table.ndim != 2 or len(table) > MOST_DRAWN_BASES:
        return None
    bases, folds = table.shape
    title = f"Sub models reach {100 * table.min():.0f} to {100 * table.max():.0f} %"
    figure, axes = pictures.make_canvas(title, size=(pictures.NARROW, float(np.clip(1.4 + 0.45 * bases, 2.2, 5.0))))
    axes.imshow(table, cmap=pictures.make_colormap(), vmin=0, vmax=1, aspect="auto")
    if folds <= MOST_WRITTEN_CLASSES:
        _write_percentages(axes, table)
    axes.set_yticks(range(bases), [str(name) for name in run.pictures.get("stack_bases", np.arange(bases))])
    pictures.use_whole_numbers(axes.xaxis)
    _hide_frame(axes)
    axes.set_xlabel(
        "left out (client, or fold of every client)" + (" - numbers: %" if folds <= MOST_WRITTEN_CLASSES else "")
    )
    axes.set_ylabel("base")
    return figure


def figure_confusions(run: ReadRun) -> Figure | None:
    """The confusion matrix of the plain average beside the stack's."""
    both = [run.pictures.get(name) for name in ("confusion_average", "confusion")]
    if any(table is None or table.ndim != 2 or not table.sum() or len(table) > MOST_DRAWN_CLASSES for table in both):
        return None
    counts = [np.asarray(table, dtype=np.float64) for table in both]
    right = [float(np.trace(table) / table.sum()) for table in counts]
    change = 100 * (right[1] - right[0])
    word = "gains" if change >= 0 else "loses"
    title = f"Stacking {word} {abs(change):.1f} points on the plain average of its sub models"
    figure, axes = pictures.make_canvas(title, 1, 2, size=(pictures.WIDE, 5.0))
    names = read_class_names(run, len(counts[0]))
    for one, table, what, share in zip(axes, counts, ("plain average", "stack"), right, strict=True):
        rows = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
        one.imshow(rows, cmap=pictures.make_colormap(), vmin=0, vmax=1)
        if len(names) <= MOST_WRITTEN_CLASSES:
            _write_percentages(one, rows)
        if len(names) <= MOST_NAMED_CLASSES:
            one.set_xticks(range(len(names)), names)
            one.set_yticks(range(len(names)), names)
        _hide_frame(one)
        one.set_xlabel(f"answer of the {what}, {100 * share:.1f} % right")
    axes[0].set_ylabel("true class")
    return figure


def figure_meta(run: ReadRun) -> Figure | None:
    """The softmax meta model's weights: which base's probability of which class speaks for which answer."""
    weights = run.pictures.get("meta_weights")
    if weights is None or weights.ndim != 2 or not 1 <= weights.shape[1] // len(weights) <= MOST_DRAWN_BASES:
        return None
    classes, bases = len(weights), weights.shape[1] // len(weights)
    most = max(float(np.abs(weights).max()), 1e-9)
    title = f"{count_opposing(weights)} of {bases * classes} probabilities speak against their own class"
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, float(np.clip(1.2 + 0.26 * classes, 2.4, 5.0))))
    shown = axes.imshow(weights, cmap="RdBu", vmin=-most, vmax=most, aspect="auto")
    for i in range(1, bases):
        axes.axvline(i * classes - 0.5, color=pictures.INK, linewidth=1)
    names = [str(name) for name in run.pictures.get("stack_bases", np.arange(bases))]
    names = names if len(names) == bases else [str(i) for i in range(bases)]  # sub models side by side
    axes.set_xticks([(i + 0.5) * classes - 0.5 for i in range(bases)], names)
    if classes <= MOST_NAMED_CLASSES:
        axes.set_yticks(range(classes), read_class_names(run, classes))
    _hide_frame(axes)
    axes.set_xlabel("probability of class 0, 1, ... by base")
    axes.set_ylabel("answer")
    bar = figure.colorbar(shown, label="weight")
    bar.outline.set_visible(False)
    return figure


def count_opposing(weights: FloatArray) -> int:
    """How many of the bases' probabilities speak against their own class, from the meta weights `[C, bases * C]`."""
    classes = len(weights)
    return int(sum((weights[:, a : a + classes].diagonal() < 0).sum() for a in range(0, weights.shape[1], classes)))


def _write_percentages(axes: Axes, shares: FloatArray) -> None:
    for (i, j), share in np.ndenumerate(shares):
        if share >= 0.005:
            look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8.5}
            axes.text(j, i, f"{100 * share:.0f}", color="#ffffff" if share > 0.55 else pictures.INK, **look)


def _hide_frame(axes: Axes) -> None:
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
