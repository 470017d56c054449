"""The training loss over the rounds, as the clients measured it while they trained."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.figure import Figure

from fedray.report import style
from fedray.report.curves import draw_legend, draw_mean_line, label_rounds
from fedray.report.jobs import keep_counted
from fedray.report.read import Curve, ReadRun


def figure_losses(run: ReadRun) -> Figure | None:
    """The mean training loss of the jobs of each round, and that of each tier."""
    jobs = keep_counted(run.clients)
    curve = None if jobs is None else measure_losses(jobs)
    if jobs is None or curve is None or len(curve.round) < 2:
        return None
    first, last = float(curve.mean[0]), float(curve.mean[-1])
    word = "falls" if last < first else "rises"
    title = f"The training loss {word} from {first:.3g} to {last:.3g}"
    figure, axes = style.make_canvas(title, size=(style.WIDE, 3.4))
    tiers = run.tiers if len(run.tiers) > 1 else []
    for place, tier in enumerate(tiers):
        of_tier = measure_losses(jobs.filter(pc.equal(jobs["tier"], tier)))
        if of_tier is not None:
            color = style.pick_color(place, len(tiers))
            draw_mean_line(axes, of_tier.round, of_tier, color=color, width=1.2, label=tier)
    label = "all clients" if tiers else None
    draw_mean_line(axes, curve.round, curve, color=style.INK, width=2.2, label=label)
    axes.set_xlabel(label_rounds(run))
    axes.set_ylabel("training loss")
    style.use_whole_numbers(axes.xaxis)
    style.draw_grid(axes)
    draw_legend(axes, "rmse")
    return figure


def measure_losses(jobs: pa.Table) -> Curve | None:
    """Mean loss of the jobs of each round, weighted by their samples; None where no job has one.

    Args:
        jobs: rows of `clients.parquet`.

    Example:
        >>> jobs = {"replicate": [0, 0], "fold": [0, 0], "round": [1, 1], "loss": [1.0, 4.0], "samples": [2, 1]}
        >>> measure_losses(pa.table(jobs)).mean.tolist()
        [2.0]
    """
    loss = pc.cast(jobs["loss"], pa.float64())
    known = jobs.filter(pc.fill_null(pc.and_(pc.is_finite(loss), pc.greater(jobs["samples"], 0)), False))
    if not len(known):
        return None
    weighted = known.append_column("weighted", pc.multiply(known["loss"], known["samples"]))
    sums = weighted.group_by(["replicate", "fold", "round"]).aggregate([("weighted", "sum"), ("samples", "sum")])
    mean = pc.divide(sums["weighted_sum"], sums["samples_sum"]).to_numpy()
    worlds = np.stack([sums["replicate"].to_numpy(), sums["fold"].to_numpy()])
    _, world = np.unique(worlds, axis=1, return_inverse=True)
    rounds, place = np.unique(sums["round"].to_numpy(), return_inverse=True)
    values = np.full((int(world.max()) + 1, len(rounds)), np.nan)
    values[world.ravel(), place.ravel()] = mean
    return Curve(rounds.astype(np.float64), values)
