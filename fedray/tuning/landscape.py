"""Pictures of the landscape: importance of the parameters, slices, contour."""

from __future__ import annotations

import warnings
from itertools import combinations

import numpy as np
import optuna
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.tri import Triangulation

from fedray.core.types import FloatArray
from fedray.report import style
from fedray.tuning.parameter import Parameter
from fedray.tuning.view import (
    View,
    find_axis_positions,
    format_share,
    make_shades,
    name_objective,
    name_objective_in_title,
    scale_values,
    set_axis_ticks,
)

LEVELS = 12  # of the contour
PANELS = 12  # slices at most
IMPORTANT = 8  # parameters in the importance chart


def compute_importance(view: View, i: int) -> dict[str, float]:
    """The share of an objective's spread that each parameter explains, by its key; empty with fewer than four trials.

    Parameters that cannot act on the objective are left out: what a regression gives them is chance.

    It is that of fANOVA (Hutter et al., ICML 2014), or of PED-ANOVA (Watanabe et al., IJCAI 2023) where a parameter is
    conditional.

    Args:
        view: the sweep.
        i: which objective, from 0.
    """
    if len(view.done) < 4 or len({trial.values[i] for trial in view.done}) < 2:
        return {}
    always = all(parameter.key in trial.params for parameter in view.space for trial in view.done)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0) if always else None
            found = optuna.importance.get_param_importances(
                view.study, evaluator=evaluator, target=lambda trial: trial.values[i]
            )
    except (RuntimeError, ValueError):  # too few different trials
        return {}
    acting = {parameter.key for parameter in view.acting(i)}
    kept = {key: share for key, share in found.items() if key in acting}
    return {key: share / (sum(kept.values()) or 1.0) for key, share in kept.items()}


def figure_importance(view: View) -> Figure | None:
    """Importance of the parameters for each objective."""
    found = [compute_importance(view, i) for i in range(len(view.objectives))]
    if len(set().union(*found)) < 2:  # a single parameter explains everything
        return None
    ranked = next(i for i, each in enumerate(found) if each)
    keys = list(dict.fromkeys(key for each in found[ranked:] for key in each))[:IMPORTANT][::-1]
    first = max(keys, key=lambda key: found[ranked].get(key, 0.0))
    figure, axes = style.make_canvas(
        f"{first} matters most for {name_objective(view.objectives[ranked])}",
        size=(style.NARROW, 1.4 + 0.42 * len(keys)),
    )
    height = 0.78 / len(found)
    for i, objective in enumerate(view.objectives):
        place = np.arange(len(keys)) + (len(found) - 1 - 2 * i) * height / 2
        share = [found[i].get(key, 0.0) for key in keys]
        axes.barh(place, share, height=height * 0.9, color=style.PALETTE[i], label=name_objective(objective))
    axes.set_yticks(range(len(keys)), keys)
    axes.set_xlabel("share of the objective's spread")
    style.use_percent(axes.xaxis)
    style.draw_grid(axes, "x")
    if len(found) > 1:
        style.draw_key(axes, [name_objective(objective) for objective in view.objectives], style.PALETTE[: len(found)])
    return figure


def figure_slices(view: View, i: int) -> Figure | None:
    """An objective against each parameter."""
    if len(view.done) < 2 or not view.acting(i):
        return None
    objective, space = view.objectives[i], view.acting(i)[:PANELS]
    columns = min(4 if len(space) != 3 else 3, len(space))
    rows = -(-len(space) // columns)
    size = (style.WIDE if columns > 1 else style.NARROW, 2.7 * rows + 0.2)
    figure, grid = style.make_canvas(
        f"{name_objective_in_title(objective)} against each parameter", rows, columns, size=size, squeeze=False
    )
    values, label = scale_values(objective, [trial.values[i] for trial in view.done])
    order = np.array([trial.number for trial in view.done], dtype=float)
    panels = list(grid.ravel())
    for axes, parameter in zip(panels, space, strict=False):
        axes.scatter(
            find_axis_positions(parameter, view.done),
            values,
            s=18,
            c=order,
            cmap=make_shades(),
            alpha=0.85,
            linewidths=0,
            label="_trials",
            rasterized=len(view.done) > style.MOST_VECTOR_MARKS,
        )
        won = [k for k, trial in enumerate(view.done) if trial.number in view.winners]
        x = find_axis_positions(parameter, view.done)[won]
        ring = {"facecolors": "none", "edgecolors": style.ORANGE, "label": "_winners"}
        axes.scatter(x, values[won], s=52, linewidths=1.4, **ring)
        set_axis_ticks(axes, "x", parameter)
        format_share(axes.yaxis, objective)
        style.draw_grid(axes)
    for axes in panels[len(space) :]:
        axes.set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel(label)
    return figure


def figure_contour(view: View) -> Figure | None:
    """The first objective over its two most important parameters of those that count in the same trials."""
    ranked = [p for key in compute_importance(view, 0) for p in view.space if p.key == key]
    known = [{p.key for p in pair} for pair in combinations(ranked, 2)]
    pairs = [keys for keys in known if any(keys <= trial.params.keys() for trial in view.done)]
    if not pairs:
        return None
    pair = [p for p in ranked if p.key in pairs[0]]
    x, y = (find_axis_positions(parameter, view.done) for parameter in pair)
    values, label = scale_values(view.objectives[0], [trial.values[0] for trial in view.done])
    keep = np.isfinite(x) & np.isfinite(y)
    x, y, values = x[keep], y[keep], values[keep]
    title = f"{name_objective_in_title(view.objectives[0])} over {pair[0].key} and {pair[1].key}"
    figure, axes = style.make_canvas(title, size=(style.NARROW, 3.9))
    norm = Normalize(float(values.min()), float(values.max()))
    _filled_contour(axes, pair, (x, y, values), norm)
    axes.scatter(x, y, c=values, s=20, cmap=make_shades(), norm=norm, edgecolors=style.PAPER, linewidths=0.7, zorder=3)
    set_axis_ticks(axes, "x", pair[0])
    set_axis_ticks(axes, "y", pair[1])
    bar = figure.colorbar(ScalarMappable(norm, make_shades()), ax=axes, label=label)
    bar.outline.set_visible(False)
    format_share(bar.ax.yaxis, view.objectives[0])
    return figure


def _filled_contour(
    axes: Axes, pair: list[Parameter], points: tuple[FloatArray, FloatArray, FloatArray], norm: Normalize
) -> None:
    """Colors between the trials, linear in the triangles between them; equal places show their mean."""
    x, y, values = points
    spots, back = np.unique(np.stack([x, y], axis=1), axis=0, return_inverse=True)
    mean = np.bincount(back.ravel(), weights=values) / np.bincount(back.ravel())
    flat = [np.log(s) if p.log else s for s, p in zip(spots.T, pair, strict=True)]
    if len(spots) < 3 or any(np.ptp(one) == 0 for one in flat):
        return
    unit = [(one - one.min()) / np.ptp(one) for one in flat]
    try:
        triangles = Triangulation(*unit).triangles
        axes.tricontourf(
            Triangulation(spots[:, 0], spots[:, 1], triangles), mean, LEVELS, cmap=make_shades(), norm=norm, alpha=0.55
        )
    except (RuntimeError, ValueError):  # all on one line
        return


def list_idle_notes(view: View) -> list[str]:
    """Which parameters cannot act on an objective, and so are in none of its pictures."""
    found = []
    for i, objective in enumerate(view.objectives):
        keys = ", ".join(parameter.key for parameter in view.space if parameter not in view.acting(i))
        if keys:
            found.append(f"{keys} cannot act on {objective.name}, and has no place in its pictures.")
    return found
