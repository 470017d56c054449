"""Training without rounds: the jobs in flight, and how late their uploads come.

Example:
    >>> count_shares(np.array([0, 0, 2, 5]), 2).tolist()  # 0, 1, and 2 or more steps late
    [0.5, 0.0, 0.5]
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.figure import Figure

from fedray.core.text import format_seconds
from fedray.core.types import FloatArray, IntArray
from fedray.report import pictures
from fedray.report.jobs import MOST_DRAWN_MODELS, draw_model_key, keep_counted, pick_evenly, read_job_column
from fedray.report.read import ReadRun

MOST_FLIGHT_LANES = 40  # clients shown at most
MOST_BARS_SHOWN = 400  # jobs shown at most: the last ones
MOST_LATE = 20  # steps: what is later shares the last bar


def figure_flights(run: ReadRun) -> Figure | None:
    """The last jobs of the run on the virtual clock: a lane a client, from start to arrival."""
    table = _read_flights(run)
    if table is None:
        return None
    table = table.sort_by("arrival_seconds")[-MOST_BARS_SHOWN:]
    client, model, start, end = (
        read_job_column(table, name) for name in ("client", "model", "start_seconds", "arrival_seconds")
    )
    trained = np.unique(model)
    if len(trained) > MOST_DRAWN_MODELS or not (end > start).any():
        return None
    shown = pick_evenly(np.unique(client), MOST_FLIGHT_LANES)
    row = {int(c): y for y, c in enumerate(shown.tolist())}
    seen = np.isin(client, shown)
    half = format_seconds(float(np.median(end - start)))
    title = f"Half of the jobs take less than {half}; the server steps {_count_steps(table)} times in this window"
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, max(2.2, 1.0 + 0.155 * len(shown))))
    for k in trained.tolist():
        pick = seen & (model == k)
        low = np.array([row[int(c)] for c in client[pick]]) - 0.4
        width = end[pick] - start[pick]
        pictures.draw_bars(
            axes, start[pick], low, width, np.full(len(low), 0.8), facecolor=pictures.pick_color(k, run.trained)
        )
    axes.set_yticks(list(row.values()), [str(c) for c in row], fontsize=7)
    axes.set_ylim(len(row) - 0.3, -0.7)
    axes.set_xlim(float(start[seen].min()), float(end[seen].max()))
    axes.set_xlabel("virtual seconds (from the start of a job to its arrival)")
    whole = len(np.unique(client))
    axes.set_ylabel("client" if len(shown) == whole else f"client ({len(shown)} of {whole})")
    pictures.draw_grid(axes, "x")
    draw_model_key(axes, run.trained)
    return figure


def figure_staleness(run: ReadRun) -> Figure | None:
    """Of each tier, the share of its uploads by the steps that the model took between start and use."""
    table = _read_flights(run)
    if table is None:
        return None
    late = read_job_column(table, "staleness").astype(np.int64)
    tier, names = (
        np.array(table["tier"].to_pylist()),
        [name for name in run.tiers if name in set(table["tier"].to_pylist())],
    )
    most = int(min(MOST_LATE, late.max()))
    if most == 0:
        return None
    figure, axes = pictures.make_canvas(
        f"An upload is {late.mean():.3g} server steps late on average, {late.max()} at most"
    )
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        share = count_shares(late[tier == name], most)
        left = np.arange(most + 1) - 0.4 + i * width
        color = pictures.pick_color(i, len(names))
        pictures.draw_bars(axes, left, np.zeros(most + 1), np.full(most + 1, width), share, facecolor=color)
    axes.set_xlim(-0.6, most + 0.6)
    axes.set_ylim(0, None)
    axes.autoscale(axis="y")
    axes.set_xlabel("staleness (steps of the model since the job started)")
    axes.set_ylabel("uploads of the tier")
    pictures.use_percent(axes.yaxis)
    pictures.use_whole_numbers(axes.xaxis)
    pictures.draw_grid(axes)
    if len(names) > 1:
        pictures.draw_key(axes, names, [pictures.pick_color(i, len(names)) for i in range(len(names))])
    return figure


def count_shares(late: IntArray, most: int) -> FloatArray:
    """Share of the uploads that are 0, 1, ..., `most` or more steps late, `[most + 1]`."""
    return np.bincount(np.minimum(late, most), minlength=most + 1) / max(1, len(late))


def _count_steps(table: pa.Table) -> int:
    return len(pc.unique(table["round"]))


def _read_flights(run: ReadRun) -> pa.Table | None:
    """The jobs of the first world whose uploads were used; None for training in rounds."""
    table = keep_counted(run.first_world())
    if table is None or "staleness" not in table.column_names:
        return None
    table = table.filter(pc.is_valid(table["staleness"]))
    return table if len(table) else None
