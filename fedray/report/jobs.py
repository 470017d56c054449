"""Pictures of the jobs of the first replicate: which client trained which model, and at which cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedray.core.errors import choose_unit, format_bytes, format_seconds
from fedray.core.types import FloatArray, IntArray
from fedray.report import pictures
from fedray.report.read import ReadRun

# ---------------------------------------------------------------------------------------------------------------------
# Pictures of the jobs of the first replicate: which client trained which model, and at which cost.

MOST_ROUNDS, MOST_CLIENT_ROWS = 60, 100  # clients shown at most
MOST_LANES = 40  # clients drawn on a virtual clock at most
FAINT_ALPHA = 0.25  # color of a job that did not finish
EQUAL_SHARE = 0.99  # share of the slowest client's seconds; a smaller difference is no wait


def figure_assignment(run: ReadRun) -> Figure | None:
    """Draws a cell for each client and round, colored by the model trained; several models share a cell.

    Clients are grouped by their true clusters if these are known, else by their tiers.
    """
    table = run.first_world()
    if table is None:
        return None
    round_, client, model = (read_job_column(table, name) for name in ("round", "client", "model"))
    first = round_.min()
    window = round_ < first + MOST_ROUNDS
    everyone, total = np.unique(client[window]), int(round_.max() - first + 1)
    shown = pick_evenly(everyone, MOST_CLIENT_ROWS)
    keep = window & np.isin(client, shown)
    wide = int(round_[keep].max() - first + 1)
    clusters = run.pictures.get("clusters")
    if clusters is not None:
        groups = [f"cluster {clusters[i]}" for i in shown.tolist()]
        order = np.argsort(clusters[shown], kind="stable")
    else:
        of = dict(zip(client.tolist(), table["tier"].to_pylist(), strict=True))
        groups = [str(of[i]) for i in shown.tolist()]
        order = np.argsort([run.tiers.index(tier) for tier in groups], kind="stable")
    image = _paint_cells(
        np.argsort(order)[np.searchsorted(shown, client[keep])],
        round_[keep] - first,
        model[keep],
        faint=~find_finished(table)[keep],
        shape=(len(shown), wide),
        models=run.trained,
    )
    if len(np.unique(image.reshape(-1, 4), axis=0)) == 1:  # every client trains every model in every round
        return None
    limits = [f"{len(shown)} of {len(everyone)} clients"] * (len(shown) < len(everyone))
    limits += [f"first {wide} of {total} rounds"] * (wide < total)
    note = f" ({', '.join(limits)})" if limits else ""
    title = f"Clients: {len(shown)}, models: {run.trained}; who trains which{note}"
    tall = float(np.clip(0.085 * len(shown) + 0.9, 2.4, 7.4))
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, tall))
    axes.imshow(image, aspect="auto", extent=(first - 0.5, first + wide - 0.5, len(shown) - 0.5, -0.5))
    axes.grid(visible=False)
    if wide * len(shown) <= 6000:
        edge: dict[str, Any] = {"color": pictures.PAPER, "linewidth": 0.8}
        axes.vlines(np.arange(first, first + wide + 1) - 0.5, -0.5, len(shown) - 0.5, **edge)
        axes.hlines(np.arange(len(shown) + 1) - 0.5, first - 0.5, first + wide - 0.5, **edge)
    axes.set_xlabel("round")
    axes.set_ylabel("client")
    pictures.use_whole_numbers(axes.xaxis)
    pictures.name_places(axes.yaxis, shown[order].tolist())
    mark_groups(axes, [groups[i] for i in order])
    draw_model_key(axes, run.trained, every=bool((image[..., :3] == to_rgb(pictures.GREY)).all(axis=-1).any()))
    return figure


def mark_groups(axes: Axes, groups: Sequence[str]) -> None:
    """Writes the names of groups of rows on the right, with a line between groups; a single group gets no name.

    Args:
        axes: axes with a row for each client, from 0 at the top.
        groups: the group of each row; rows of one group follow each other.
    """
    first = 0
    look: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center", "color": pictures.INK}
    for name, rows in groupby(groups if len(set(groups)) > 1 else ()):
        size = len(list(rows))
        axes.text(1.008, first + (size - 1) / 2, name, **look)
        if first:
            axes.axhline(first - 0.5, **pictures.DASHED)
        first += size


def find_finished(table: pa.Table) -> NDArray[np.bool_]:
    """Marks the jobs that counted, `[J]`: those not late, dropped, unavailable, failed or without data."""
    return np.isin(table["status"].to_pylist(), ("ok", "done"))


def keep_counted(table: pa.Table | None) -> pa.Table | None:
    """Returns the jobs that counted, if there are any."""
    table = None if table is None else table.filter(pa.array(find_finished(table)))
    return table if table is not None and len(table) else None


def figure_traffic(run: ReadRun) -> Figure | None:
    """Draws the bytes that each tier sends and receives."""
    if run.clients is None:
        return None
    columns, tiers = ("up_bytes", "down_bytes"), run.tiers
    sums = run.clients.group_by("tier").aggregate([(name, "sum") for name in columns]).to_pandas().set_index("tier")
    up, down = (sums.loc[tiers, f"{name}_sum"].to_numpy(float) / run.worlds for name in columns)
    if len(tiers) < 2 or np.ptp(np.concatenate([up, down])) == 0:  # the cards show it as two numbers
        return None
    share = float((up + down).max() / max(float((up + down).sum()), 1.0))
    title = f"{format_bytes(float(up.sum()))} go up and {format_bytes(float(down.sum()))} come down"
    title += f"; {100 * share:.0f} % of it is {tiers[int((up + down).argmax())]}'s"
    unit, name = choose_unit("bytes", float(max(up.max(), down.max())))
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, 1.1 + 0.55 * len(tiers)))
    where = np.arange(len(tiers))
    for shift, values, color in ((-0.19, up, pictures.ACCENT), (0.19, down, pictures.PALETTE[4])):
        bars = axes.barh(where + shift, values / unit, 0.34, color=color, linewidth=0)
        axes.bar_label(bars, [format_bytes(value) for value in values], padding=4)
    axes.grid(visible=False)
    axes.set_yticks(where, tiers)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set_xlabel(f"bytes ({name}{', mean of the replicates' if run.worlds > 1 else ''})")
    pictures.draw_key(axes, ["uplink", "downlink"], [pictures.ACCENT, pictures.PALETTE[4]])
    return figure


def read_job_column(table: pa.Table, name: str) -> Any:
    """Returns a column as an array; empty values of numbers become zero."""
    return pc.fill_null(table[name], 0).to_numpy()


def pick_evenly(values: IntArray, most: int) -> IntArray:
    """Picks at most `most` of the values, evenly spaced.

    Example:
        >>> pick_evenly(np.arange(9), 3).tolist()
        [0, 4, 8]
    """
    if len(values) <= most:
        return values
    return np.asarray(values[np.unique(np.linspace(0, len(values) - 1, most).astype(int))])


def draw_model_key(axes: Axes, models: int, every: bool = False) -> None:
    """Draws the legend of the models' colors; of many models it names three.

    Args:
        axes: the axes to draw on.
        models: the number K of models.
        every: whether the legend also names the color of a cell with all models.
    """
    shown = range(models) if models <= len(pictures.PALETTE) else (0, models // 2, models - 1)
    if models > 1:
        more, colors = [f"all {models}"] * every, [pictures.pick_color(k, models) for k in shown]
        pictures.draw_key(axes, [*(f"model {k}" for k in shown), *more], [*colors, *[pictures.GREY] * every])


def _paint_cells(
    row: IntArray, x: IntArray, model: IntArray, *, faint: NDArray[np.bool_], shape: tuple[int, int], models: int
) -> FloatArray:
    """Paints an RGBA image of jobs `[J]` at their rows and columns; models of one cell are stacked top to bottom."""
    cell = row * shape[1] + x
    order = np.lexsort((model, cell))
    cell, model, faint = cell[order], model[order], faint[order]
    _, start, count = np.unique(cell, return_index=True, return_counts=True)
    if models > 1:  # a client that trains all models: one color, no stripes
        full = count == models
        keep = np.repeat(~full, count)
        keep[start[full]] = True
        model = np.where(np.repeat(full, count), models, model)
        cell, model, faint = cell[keep], model[keep], faint[keep]
        _, start, count = np.unique(cell, return_index=True, return_counts=True)
    place = np.arange(len(cell)) - np.repeat(start, count)
    share = np.repeat(count, count)
    high = int(min(count.max(), 10))  # rows of pixels per client
    image = np.zeros((shape[0] * high, shape[1], 4))
    for h in range(high):
        chosen = (place * high // share <= h) & (h < np.maximum((place + 1) * high // share, place * high // share + 1))
        target = cell[chosen] // shape[1] * high + h, cell[chosen] % shape[1]
        painted, place_of = np.unique(model[chosen], return_inverse=True)
        colors = [to_rgb(pictures.GREY if k == models else pictures.pick_color(k, models)) for k in painted.tolist()]
        image[(*target, slice(0, 3))] = np.array(colors)[place_of]
        image[(*target, 3)] = np.where(faint[chosen], FAINT_ALPHA, 1.0)
    return image


# ---------------------------------------------------------------------------------------------------------------------
# One round on the virtual clock, which shows the device that the others wait for.


def figure_gantt(run: ReadRun) -> Figure | None:
    """Draws the last round: one lane per client, with its counted jobs in sequence (or side by side, by tier)."""
    table = keep_counted(run.first_world())
    if table is None or "start_seconds" in table.column_names:  # without rounds: see `figure_flights`
        return None
    jobs = table.filter(pc.equal(table["round"], pc.max(table["round"]))).to_pandas()
    given: Any = run.scenario.get("clients")
    tiers = given.get("tiers") or {} if isinstance(given, dict) else {}
    together = jobs["tier"].isin([name for name, one in tiers.items() if one and one.get("side_by_side")])
    of = jobs.groupby("client")["sim_seconds"]
    jobs["start"] = (of.cumsum() - jobs["sim_seconds"]).where(~together, 0.0)
    jobs["tall"] = (1 / of.transform("size")).where(together, 1.0)
    jobs["low"] = (of.cumcount() * jobs["tall"]).where(together, 0.0)
    done = (jobs["start"] + jobs["sim_seconds"]).groupby(jobs["client"]).max()
    slowest, half = done.idxmax(), float(done.median())
    if half >= EQUAL_SHARE * done[slowest]:  # bars of equal length: nobody waits
        return None
    tier = jobs.groupby("client")["tier"].first()
    name = f"client {slowest}" + (f" ({tier[slowest]})" if len(run.tiers) > 1 else "")
    title = f"Round {jobs['round'].iloc[0]} waits {format_seconds(float(done[slowest]))} for {name}; "
    title += f"half the clients are done after {format_seconds(half)}"
    lanes = pd.DataFrame({"tier": tier.map(run.tiers.index), "wait": -done}).sort_values(["tier", "wait"]).index
    figure, axes, shown = draw_lanes(run, title, jobs, lanes.to_numpy())
    axes.set_xlim(0, done[slowest] * 1.01)
    mark_groups(axes, [tier[i] for i in shown])
    axes.axvline(half, **pictures.DASHED)
    axes.set_xlabel("virtual seconds since the round began (computing and transfers)")
    return figure


def draw_lanes(run: ReadRun, title: str, jobs: pd.DataFrame, clients: IntArray) -> tuple[Figure, Axes, list[int]]:
    """Draws jobs on a virtual clock, one lane per client, in the colors of their models.

    Args:
        run: the run of the jobs.
        title: the title of the figure.
        jobs: one row per job, with `client`, `model`, `start` and `sim_seconds`. `low` and `tall` are shares of the
            height of the lane: above the job, and of the job.
        clients: the clients in the order of their lanes; of many clients, evenly spaced ones are shown.

    Returns:
        The figure, its axes, and the clients that are shown.
    """
    shown = pick_evenly(clients, MOST_LANES).tolist()
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, max(2.2, 1.0 + 0.155 * len(shown))))
    for model, mine in jobs[jobs["client"].isin(shown)].groupby("model"):
        low = mine["client"].map(shown.index) - 0.4 + 0.8 * mine["low"]
        color = pictures.pick_color(int(model), run.trained)
        pictures.draw_bars(axes, mine["start"], low, mine["sim_seconds"], 0.8 * mine["tall"], facecolor=color)
    axes.set_yticks(range(len(shown)), [str(i) for i in shown], fontsize=7)
    axes.set_ylim(len(shown) - 0.3, -0.7)
    axes.set_ylabel("client" if len(shown) == len(clients) else f"client ({len(shown)} of {len(clients)})")
    axes.grid(visible=False)
    axes.grid(visible=True, axis="x")
    draw_model_key(axes, run.trained)
    return figure, axes, shown


# ---------------------------------------------------------------------------------------------------------------------
# Training without rounds: the jobs under way, and how late their uploads arrive.

MOST_BARS_SHOWN = 400  # the last jobs, as many at most
MOST_LATE = 20  # steps; later uploads share the last bar


def figure_flights(run: ReadRun) -> Figure | None:
    """Draws the last jobs of the run on the virtual clock, from start to arrival, one lane per client."""
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
    """Draws the staleness of each tier's uploads: the steps of the model between the start and the use of an upload."""
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
    """Returns the jobs of the first world whose uploads were used; None for training in rounds."""
    table = keep_counted(run.first_world())
    if table is None or "staleness" not in table.column_names:
        return None
    jobs = table.to_pandas().dropna(subset="staleness")
    return jobs if len(jobs) else None
