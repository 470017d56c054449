"""Pictures of the search: history, Pareto front, parallel coordinates, learning curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from optuna.trial import FrozenTrial, TrialState

from fedray.core import text
from fedray.core.types import FloatArray
from fedray.report import style
from fedray.tuning.optuna_study import trial_note
from fedray.tuning.parameter import Parameter, format_value
from fedray.tuning.view import (
    View,
    find_axis_positions,
    format_cell_value,
    format_share,
    make_shades,
    name_objective,
    name_winner,
    pick_course,
    scale_values,
)

AXES = 8  # parameters of the parallel coordinates at most
MOST_VECTOR_LINES = 60  # trainings; more are a picture of pixels within the SVG


def figure_history(view: View, i: int) -> Figure | None:
    """An objective over the trials, and the best so far."""
    if len(view.done) < 2:
        return None
    objective = view.objectives[i]
    looked = np.array([trial_note(trial).get("how") == "looked up" for trial in view.done])
    number = np.array([trial.number for trial in view.done])
    raw = [trial.values[i] for trial in view.done]
    values, label = scale_values(objective, raw)
    pick = np.maximum if objective.direction == "maximize" else np.minimum
    best = pick.accumulate(values)
    end = format_cell_value(objective, (max if objective.direction == "maximize" else min)(raw))
    at = number[int(np.flatnonzero(values == best[-1])[0])]
    figure, axes = style.make_canvas(
        f"Best {name_objective(objective)}: {end}, first in trial {at}", size=(style.WIDE, 3.8)
    )
    axes.step(number, best, where="post", color=style.INK, linewidth=1.4, label="best so far")
    look: dict[str, Any] = {"s": 26, "zorder": 3, "rasterized": len(view.done) > style.MOST_VECTOR_MARKS}
    axes.scatter(number[~looked], values[~looked], color=style.ACCENT, label="trained", **look)
    if looked.any():
        ring = {"facecolors": "none", "edgecolors": style.ORANGE, "label": "looked up"}
        axes.scatter(number[looked], values[looked], **ring, **look)
    pruned = [t for t in view.trials if t.state == TrialState.PRUNED and t.intermediate_values]
    if pruned and objective.kind == "final":
        at_stop = [t.intermediate_values[t.last_step or 0] for t in pruned]
        axes.scatter([t.number for t in pruned], at_stop, s=22, marker="x", color=style.GREY, label="pruned")
    axes.set_xlabel("trial")
    axes.set_ylabel(label)
    style.use_whole_numbers(axes.xaxis)
    format_share(axes.yaxis, objective)
    style.draw_grid(axes)
    axes.legend(loc="best", ncols=4)
    return figure


def figure_pareto(view: View) -> Figure | None:
    """The first two objectives against each other, the front marked."""
    if len(view.objectives) < 2 or not view.done:
        return None
    (x, x_label), (y, y_label) = (scale_values(view.objectives[i], [t.values[i] for t in view.done]) for i in range(2))
    won = np.array([trial.number in view.winners for trial in view.done])
    title = f"{int(won.sum())} trials that no other beats in everything"
    figure, axes = style.make_canvas(title, size=(style.WIDE, 4.2))
    look: dict[str, Any] = {"linewidths": 0, "rasterized": len(x) > style.MOST_VECTOR_MARKS}
    axes.scatter(x[~won], y[~won], s=24, color=style.GREY, alpha=0.6, label="beaten", **look)
    order = np.argsort(x[won])
    if len(view.objectives) == 2:
        axes.plot(x[won][order], y[won][order], color=style.ORANGE, linewidth=1.0, alpha=0.7)
    axes.scatter(x[won], y[won], s=40, color=style.ORANGE, label="Pareto front", zorder=3)
    for k in np.flatnonzero(won)[:20]:
        label = str(view.done[k].number)
        axes.annotate(label, (x[k], y[k]), (5, 4), textcoords="offset points", fontsize=8, color=style.MUTED)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    format_share(axes.xaxis, view.objectives[0])
    format_share(axes.yaxis, view.objectives[1])
    style.draw_grid(axes, "both")
    axes.legend(loc="best")
    return figure


def figure_parallel(view: View) -> Figure | None:
    """Every trial as a line over its parameters, colored by the first objective."""
    space = [p for p in view.acting(0) if all(p.key in trial.params for trial in view.done)][:AXES]
    if len(view.done) < 2 or not space:
        return None
    objective = view.objectives[0]
    values, _ = scale_values(objective, [trial.values[0] for trial in view.done])
    columns = [_column(p, view.done) for p in space]
    ends = [(columns[k].min(), columns[k].max()) for k in range(len(space))] + [(values.min(), values.max())]
    table = np.stack([*columns, values], axis=1)
    low, high = np.array(ends).T
    table = np.where(high > low, (table - low) / np.where(high > low, high - low, 1.0), 0.5)
    best = objective.direction == "maximize"
    figure, axes = style.make_canvas("Every trial, from its parameters to its value", size=(style.WIDE, 4.2))
    rank = values.argsort() if best else (-values).argsort()
    colors = make_shades() if best else make_shades().reversed()
    lines = np.stack([np.tile(np.arange(table.shape[1], dtype=float), (len(table), 1)), table], axis=2)[rank]
    look: dict[str, Any] = {"linewidths": 1.3, "alpha": 0.75, "rasterized": len(lines) > style.MOST_VECTOR_MARKS}
    axes.add_collection(LineCollection(list(lines), array=values[rank], cmap=colors, **look))
    axes.set_xlim(-0.2, table.shape[1] - 0.8)
    axes.set_ylim(-0.12, 1.12)
    names = [*(p.key for p in space), name_objective(objective)]
    axes.set_xticks(range(len(names)), names)
    axes.tick_params(axis="x", pad=14, length=0)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.spines["bottom"].set_visible(False)
    for k, (bottom, top) in enumerate(_ends(view, space)):
        axes.axvline(k, color=style.GRID, linewidth=1.2, zorder=0)
        axes.annotate(bottom, (k, -0.03), ha="center", va="top", fontsize=8.5, color=style.MUTED)
        axes.annotate(top, (k, 1.03), ha="center", va="bottom", fontsize=8.5, color=style.MUTED)
    return figure


def _column(parameter: Parameter, trials: Sequence[FrozenTrial]) -> FloatArray:
    found = find_axis_positions(parameter, trials)
    return np.log(found) if parameter.log else found


def _ends(view: View, space: Sequence[Parameter]) -> list[tuple[str, str]]:
    """What stands below and above each axis of the parallel coordinates."""
    found = []
    for parameter in space:
        values = find_axis_positions(parameter, view.done)
        low, high = float(values.min()), float(values.max())
        if parameter.kind == "categorical":
            names = [format_value(choice) for choice in parameter.labels]
            found.append((names[int(low)], names[int(high)]))
        else:
            found.append((f"{low:.4g}", f"{high:.4g}"))
    raw = [trial.values[0] for trial in view.done]
    return [*found, (format_cell_value(view.objectives[0], min(raw)), format_cell_value(view.objectives[0], max(raw)))]


def figure_curves(view: View) -> Figure | None:
    """The metric of `pick_course` over the rounds of every training."""
    if not view.curves:
        return None
    objective = pick_course(view.objectives)
    pruned = {trial.number for trial in view.trials if trial.state == TrialState.PRUNED}
    title = f"The course of {len(view.curves)} trainings" + (f", {len(pruned)} of them pruned" if pruned else "")
    figure, axes = style.make_canvas(title, size=(style.WIDE, 4.4))
    best = [number for number in view.winners if number in view.curves][:1]
    for number, (rounds, values) in sorted(view.curves.items(), key=lambda item: item[0] in best):
        color = style.ORANGE if number in best else style.GREY if number in pruned else style.ACCENT
        width, alpha = (2.4, 1.0) if number in best else (1.0, 0.45)
        look: dict[str, Any] = {"color": color, "linewidth": width, "alpha": alpha, "label": f"_trial {number}"}
        axes.plot(rounds, values, rasterized=len(view.curves) > MOST_VECTOR_LINES and number not in best, **look)
        if number in pruned:
            axes.plot(rounds[-1:], values[-1:], "x", color=style.GREY, markersize=5, label=f"_trial {number}, pruned")
    names = [*([name_winner(view.objectives)] if best else []), "finished", *(["pruned"] if pruned else [])]
    paint = [*([style.ORANGE] if best else []), style.ACCENT, *([style.GREY] if pruned else [])]
    style.draw_key(axes, names, paint)
    axes.set_xlabel("rounds completed")
    axes.set_ylabel(text.name_score(objective.metric, unit=True))
    style.use_whole_numbers(axes.xaxis)
    if text.is_share(objective.metric):
        style.use_percent(axes.yaxis)
    style.draw_grid(axes)
    late = np.concatenate([v[r >= 0.1 * r[-1]] for r, v in view.curves.values()])
    low, high = float(np.nanmin(late)), float(np.nanmax(late))
    axes.set_ylim(low - 0.05 * (high - low) - 1e-9, high + 0.05 * (high - low) + 1e-9)
    return figure
