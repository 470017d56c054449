"""Training without rounds: the jobs in flight, and how late their uploads come."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedray.core.text import format_seconds
from fedray.report import pictures
from fedray.report.jobs import draw_lanes, keep_counted
from fedray.report.read import ReadRun

MOST_BARS_SHOWN = 400  # jobs shown at most: the last ones
MOST_LATE = 20  # steps: what is later shares the last bar


def figure_flights(run: ReadRun) -> Figure | None:
    """The last jobs of the run on the virtual clock: a lane a client, from start to arrival."""
    jobs = _read_flights(run)
    if jobs is None:
        return None
    jobs = jobs.sort_values("arrival_seconds", kind="stable")[-MOST_BARS_SHOWN:]
    start, end = jobs["start_seconds"], jobs["arrival_seconds"]
    half, steps = format_seconds(float((end - start).median())), jobs["round"].nunique()
    title = f"Half of the jobs take less than {half}; the server steps {steps} times in this window"
    jobs = jobs.assign(start=start, sim_seconds=end - start, low=0.0, tall=1.0)
    figure, axes, _ = draw_lanes(run, title, jobs, np.unique(jobs["client"]))
    axes.set_xlim(start.min(), end.max())
    axes.set_xlabel("virtual seconds (from the start of a job to its arrival)")
    return figure


def figure_staleness(run: ReadRun) -> Figure | None:
    """Of each tier, the share of its uploads by the steps that the model took between start and use."""
    jobs = _read_flights(run)
    if jobs is None or not jobs["staleness"].max():
        return None
    late, most = jobs["staleness"], int(min(MOST_LATE, jobs["staleness"].max()))
    title = f"An upload is {late.mean():.3g} server steps late on average, {late.max():.0f} at most"
    figure, axes = pictures.make_canvas(title)
    names = [name for name in run.tiers if (jobs["tier"] == name).any()]
    width, colors = 0.8 / len(names), pictures.pick_colors(len(names))
    for i, (name, color) in enumerate(zip(names, colors, strict=True)):
        share = late[jobs["tier"] == name].clip(upper=most).value_counts(normalize=True)
        height = share.reindex(range(most + 1), fill_value=0.0)
        pictures.draw_bars(axes, np.arange(most + 1) - 0.4 + i * width, 0.0, width, height, facecolor=color)
    axes.set_xlim(-0.6, most + 0.6)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("staleness (steps of the model since the job started)")
    axes.set_ylabel("uploads of the tier")
    pictures.use_percent(axes.yaxis)
    pictures.use_whole_numbers(axes.xaxis)
    if len(names) > 1:
        pictures.draw_key(axes, names, colors)
    return figure


def _read_flights(run: ReadRun) -> pd.DataFrame | None:
    """The jobs of the first world whose uploads were used; None for training in rounds."""
    table = keep_counted(run.first_world())
    if table is None or "staleness" not in table.column_names:
        return None
    jobs = table.to_pandas().dropna(subset="staleness")
    return jobs if len(jobs) else None
