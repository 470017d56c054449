"""Pictures of a stack: accuracy of the sub models, confusion beside that of the plain average, meta model weights."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from fedray.report import pictures
from fedray.report.predictions import MOST_NAMED_CLASSES, draw_shares, read_class_names
from fedray.report.read import ReadRun


def figure_folds(run: ReadRun) -> Figure | None:
    """Draws the test accuracy of every sub model: a row per base, a column per fold (the paper's Table 2)."""
    table = run.pictures.get("stack_folds")
    if table is None:
        return None
    title = f"Sub models reach {100 * table.min():.0f} to {100 * table.max():.0f} %"
    size = (pictures.NARROW, float(np.clip(1.4 + 0.45 * len(table), 2.2, 5.0)))
    figure, axes = pictures.make_canvas(title, size=size)
    draw_shares(axes, table)
    axes.set_aspect("auto")
    axes.set_yticks(range(len(table)), [str(name) for name in run.pictures["stack_bases"]])
    axes.set_xlabel("left out (client, or fold of every client)")
    axes.set_ylabel("base")
    return figure


def figure_confusions(run: ReadRun) -> Figure | None:
    """Draws the confusion matrix of the plain average beside that of the stack."""
    both = [run.pictures.get(name) for name in ("confusion_average", "confusion")]
    counts = [np.asarray(table, dtype=np.float64) for table in both if table is not None and table.sum()]
    if len(counts) < 2:
        return None
    right = [float(np.trace(table) / table.sum()) for table in counts]
    change = 100 * (right[1] - right[0])
    title = f"Stacking {'gains' if change >= 0 else 'loses'} {abs(change):.1f} points on the plain average of its "
    figure, axes = pictures.make_canvas(f"{title}sub models", 1, 2, size=(pictures.WIDE, 5.0))
    names = read_class_names(run, len(counts[0]))
    for one, table, what, share in zip(axes, counts, ("plain average", "stack"), right, strict=True):
        draw_shares(one, table / np.maximum(table.sum(axis=1, keepdims=True), 1), names)
        one.set_xlabel(f"answer of the {what}, {100 * share:.1f} % right")
    axes[0].set_ylabel("true class")
    return figure


def figure_meta(run: ReadRun) -> Figure | None:
    """Draws the weights of the softmax meta model, `[C, bases * C]`: how each base's class probabilities count."""
    weights = run.pictures.get("meta_weights")
    if weights is None:
        return None
    classes, bases = len(weights), weights.shape[1] // len(weights)
    most = max(float(np.abs(weights).max()), 1e-9)
    opposing = sum((each.diagonal() < 0).sum() for each in np.split(weights, bases, axis=1))
    title = f"{opposing} of {bases * classes} probabilities speak against their own class"
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, float(np.clip(1.2 + 0.26 * classes, 2.4, 5.0))))
    shown = axes.imshow(weights, cmap="RdBu", vmin=-most, vmax=most, aspect="auto")
    for i in range(1, bases):
        axes.axvline(i * classes - 0.5, color=pictures.INK, linewidth=1)
    names = [str(name) for name in run.pictures["stack_bases"]]
    names = names if len(names) == bases else [str(i) for i in range(bases)]  # number of sub models side by side
    axes.set_xticks([(i + 0.5) * classes - 0.5 for i in range(bases)], names)
    if classes <= MOST_NAMED_CLASSES:
        axes.set_yticks(range(classes), read_class_names(run, classes))
    pictures.hide_frame(axes)
    axes.set_xlabel("probability of class 0, 1, ... by base")
    axes.set_ylabel("answer")
    bar = figure.colorbar(shown, label="weight")
    bar.outline.set_visible(False)
    return figure
