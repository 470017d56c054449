"""Which client trained which model, and at which cost: read from the jobs of the first replicate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedray.core.text import choose_unit, format_bytes, format_seconds
from fedray.core.types import FloatArray, IntArray
from fedray.report import pictures
from fedray.report.pictures import NumberTable
from fedray.report.read import ReadRun

# ---------------------------------------------------------------------------------------------------------------------
# Rows of clients in bands: by their true clusters, where these are known, else by their tiers.

MOST_BANDS = 12  # more names do not fit beside a picture


class Bands(NamedTuple):
    """How the rows of clients are grouped.

    Attributes:
        order: Which client stands in each row, as places among those shown, `[n]`.
        names: Of the bands, from top to bottom.
        sizes: Rows of each.

    Example:
        >>> bands = Bands(np.array([1, 3, 0, 2]), ("left", "right"), (2, 2))
        >>> bands.order.tolist()
        [1, 3, 0, 2]
    """

    order: IntArray
    names: tuple[str, ...]
    sizes: tuple[int, ...]


def group_rows(run: ReadRun, table: pa.Table, shown: IntArray) -> Bands:
    """The bands of the clients that are shown: clusters, or tiers, whose clients have consecutive ids.

    Args:
        run: What is drawn.
        table: Its jobs.
        shown: Ids of the clients, `[n]`, rising.
    """
    clusters = run.pictures.get("clusters")
    if clusters is not None and len(shown) and shown.max() < len(clusters):
        label = clusters[shown]
        known, sizes = np.unique(label, return_counts=True)
        if 1 < len(known) <= MOST_BANDS:
            names = tuple(f"cluster {k}" for k in known.tolist())
            return Bands(np.argsort(label, kind="stable"), names, tuple(sizes.tolist()))
    of = dict(zip(table["client"].to_pylist(), table["tier"].to_pylist(), strict=True))
    tiers = [tier for tier in run.tiers if tier in {of[i] for i in shown.tolist()}]
    sizes_of = [sum(of[i] == tier for i in shown.tolist()) for tier in tiers]
    return Bands(np.arange(len(shown)), tuple(tiers) if len(run.tiers) > 1 else (), tuple(sizes_of))


def mark_bands(axes: Axes, bands: Bands) -> None:
    """The bands' names along the right side, a line where one ends.

    Args:
        axes: A row for each client, from 0 at the top.
        bands: What is marked.
    """
    number, first = len(bands.order), 0
    look: dict[str, Any] = {"transform": axes.transAxes, "va": "center", "rotation": 0, "color": pictures.INK}
    for name, size in zip(bands.names, bands.sizes, strict=False):
        axes.text(1.008, 1 - (first + size / 2) / number, name, **look)
        if first > 0:
            axes.axhline(first - 0.5, color=pictures.INK, linewidth=1.2, linestyle=(0, (4, 3)))
        first += size


# ---------------------------------------------------------------------------------------------------------------------
# Which client trained which model, and at which cost: read from the jobs of the first replicate.

MOST_ROUNDS, MOST_CLIENT_ROWS, MOST_BARS = 60, 100, 100  # shown at most
MOST_DRAWN_MODELS = 2000  # more are not told apart by their colours, and take minutes to draw
FAINT_ALPHA = 0.25  # of a job that did not finish


def figure_assignment(run: ReadRun) -> Figure | None:
    """Client x round, coloured by the model trained; several models share a cell from top to bottom.

    Clients whose true clusters are known stand cluster by cluster.
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
    bands = group_rows(run, table, shown)
    rows = np.argsort(bands.order)[np.searchsorted(shown, client[keep])]
    image = _paint_cells(
        rows,
        round_[keep] - first,
        model[keep],
        faint=~find_finished(table)[keep],
        shape=(len(shown), wide),
        models=run.trained,
    )
    if len(np.unique(image.reshape(-1, 4), axis=0)) == 1:  # everybody trains everything in every round
        return None
    limits = [f"{len(shown)} of {len(everyone)} clients"] * (len(shown) < len(everyone))
    limits += [f"first {wide} of {total} rounds"] * (wide < total)
    note = f" ({', '.join(limits)})" if limits else ""
    title = f"{_count_noun(len(shown), 'client')} train {_count_noun(run.trained, 'model')}: who trains which{note}"
    tall = float(np.clip(0.085 * len(shown) + 0.9, 2.4, 7.4))
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, tall))
    axes.imshow(image, aspect="auto", extent=(first - 0.5, first + wide - 0.5, len(shown) - 0.5, -0.5))
    if wide * len(shown) <= 6000:
        _draw_cell_borders(axes, first, wide, len(shown))
    axes.set_xlabel("round")
    axes.set_ylabel("client")
    pictures.use_whole_numbers(axes.xaxis)
    pictures.name_places(axes.yaxis, shown[bands.order].tolist())
    mark_bands(axes, bands)
    draw_model_key(axes, run.trained, every=bool((image[..., :3] == to_rgb(pictures.GREY)).all(axis=-1).any()))
    return figure


def list_assignments(run: ReadRun) -> NumberTable | None:
    """Who trained which models in which round: the numbers of the picture, of its rounds alone."""
    table = run.first_world()
    if table is None:
        return None
    first = pc.min(table["round"]).as_py()
    shown = table.filter(pc.less(table["round"], first + MOST_ROUNDS))
    rows = zip(*(shown[name].to_pylist() for name in ("round", "client", "model", "status")), strict=True)
    cells: dict[tuple[Any, ...], list[str]] = {}
    for round_, client, model, status in rows:
        cells.setdefault((round_, client, status), []).append(str(model))
    found = [[*cell[:2], " ".join(models), cell[2]] for cell, models in sorted(cells.items())]
    return NumberTable(["round", "client", "models", "status"], found)


def find_finished(table: pa.Table) -> NDArray[np.bool_]:
    """Which jobs counted, `[J]`: not late, dropped, unavailable, failed or without data."""
    return np.isin(table["status"].to_pylist(), ("ok", "done"))


def keep_counted(table: pa.Table | None) -> pa.Table | None:
    """The jobs that counted, if there are any."""
    table = None if table is None else table.filter(pa.array(find_finished(table)))
    return table if table is not None and len(table) else None


def figure_participation(run: ReadRun) -> Figure | None:
    """How often each client trained each model: the jobs that counted."""
    table = keep_counted(run.first_world())
    if table is None:
        return None
    client, model = read_job_column(table, "client"), read_job_column(table, "model")
    clients = max(_count_clients(run), int(client.max()) + 1)
    rounds = np.unique(np.stack([client, read_job_column(table, "round")]), axis=1)[0]
    who, often = np.unique(rounds, return_counts=True)  # those who took part at all
    least = often.min() if len(who) == clients else 0
    title = f"A client takes part in {len(rounds) / clients:.3g} rounds on average ({least} to {often.max()})"
    if clients > MOST_BARS:
        return _figure_participation_counts(run, table, dict(zip(who.tolist(), often.tolist(), strict=True)), title)
    trained, column = np.unique(model, return_inverse=True)
    if len(trained) > MOST_DRAWN_MODELS:
        return None
    counts = np.zeros((clients, len(trained)))
    np.add.at(counts, (client, column), 1)
    if np.ptp(counts.sum(axis=1)) == 0:  # bars of equal length say nothing
        return None
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, 3.2))
    draw_stacked_bars(axes, counts, [pictures.pick_color(k, run.trained) for k in trained.tolist()])
    axes.set_xlabel("client")
    axes.set_ylabel("models trained")
    pictures.use_whole_numbers(axes.yaxis)
    pictures.draw_grid(axes)
    draw_model_key(axes, run.trained)
    return figure


def figure_traffic(run: ReadRun) -> Figure | None:
    """Bytes each tier sends and receives."""
    if run.clients is None:
        return None
    sums = run.clients.group_by("tier").aggregate([("up_bytes", "sum"), ("down_bytes", "sum")])
    by = {row["tier"]: row for row in sums.to_pylist()}
    tiers = run.tiers
    up = np.array([by[tier]["up_bytes_sum"] for tier in tiers], float) / run.worlds
    down = np.array([by[tier]["down_bytes_sum"] for tier in tiers], float) / run.worlds
    if len(tiers) < 2 or np.ptp(np.concatenate([up, down])) == 0:  # the cards say it in two numbers
        return None
    most = tiers[int((up + down).argmax())]
    share = float((up + down).max() / max(float((up + down).sum()), 1.0))
    title = f"{format_bytes(float(up.sum()))} go up and {format_bytes(float(down.sum()))} come down"
    title += f"; {100 * share:.0f} % of it is {most}'s" if len(tiers) > 1 else ""
    unit, name = choose_unit("bytes", float(max(up.max(), down.max())))
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, 1.1 + 0.55 * len(tiers)))
    where = np.arange(len(tiers))
    for shift, values, color in ((-0.19, up, pictures.ACCENT), (0.19, down, pictures.PALETTE[4])):
        axes.barh(where + shift, values / unit, 0.34, color=color, linewidth=0)
        for y, value in zip(where + shift, values, strict=True):
            axes.annotate(format_bytes(value), (value / unit, y), (4, 0), textcoords="offset points", va="center")
    axes.set_yticks(where, tiers)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set_xlabel(f"bytes ({name}{', mean of the replicates' if run.worlds > 1 else ''})")
    pictures.draw_key(axes, ["uplink", "downlink"], [pictures.ACCENT, pictures.PALETTE[4]])
    return figure


def read_job_column(table: pa.Table, name: str) -> Any:
    """A column as an array, empty values of numbers as zero."""
    return pc.fill_null(table[name], 0).to_numpy()


def pick_evenly(values: IntArray, most: int) -> IntArray:
    """At most so many of the values, evenly spaced.

    Example:
        >>> pick_evenly(np.arange(9), 3).tolist()
        [0, 4, 8]
    """
    if len(values) <= most:
        return values
    return np.asarray(values[np.unique(np.linspace(0, len(values) - 1, most).astype(int))])


def draw_stacked_bars(axes: Axes, counts: FloatArray, colors: list[str], names: Sequence[str] = ()) -> None:
    """Draws stacked bars.

    Args:
        axes: where to draw.
        counts: height of each part of each bar, `[bars, parts]`.
        colors: one a part.
        names: one a part, where the key above the axes does not name all of them.
    """
    width = 0.82 if len(counts) <= 60 else 0.92
    bottom = np.zeros(len(counts))
    for place, (part, color) in enumerate(zip(counts.T, colors, strict=True)):
        pictures.draw_bars(
            axes,
            np.arange(len(counts)) - width / 2,
            bottom,
            width,
            part,
            facecolor=color,
            rasterized=counts.shape[1] > 20,
            label=names[place] if names else None,
        )
        bottom = bottom + part
    axes.set_xlim(-0.7, len(counts) - 0.3)
    axes.set_ylim(0, max(float(bottom.max()) * 1.04, 1e-9))
    pictures.use_whole_numbers(axes.xaxis)


def draw_model_key(axes: Axes, models: int, every: bool = False) -> None:
    """Names the colours of the models, three of them where they are many.

    Args:
        axes: where to draw.
        models: K.
        every: whether the colour of a cell with all models is named too.
    """
    shown = range(models) if models <= len(pictures.PALETTE) else (0, models // 2, models - 1)
    if models > 1:
        more, colors = [f"all {models}"] * every, [pictures.pick_color(k, models) for k in shown]
        pictures.draw_key(axes, [*(f"model {k}" for k in shown), *more], [*colors, *[pictures.GREY] * every])


def _paint_cells(
    row: IntArray, x: IntArray, model: IntArray, *, faint: NDArray[np.bool_], shape: tuple[int, int], models: int
) -> FloatArray:
    """An RGBA image of jobs `[J]` at their row and column; the models of one cell stand from top to bottom."""
    cell = row * shape[1] + x
    order = np.lexsort((model, cell))
    cell, model, faint = cell[order], model[order], faint[order]
    _, start, count = np.unique(cell, return_index=True, return_counts=True)
    if models > 1:  # a client that trains all models: one colour, not stripes
        full = count == models
        keep = np.repeat(~full, count)
        keep[start[full]] = True
        model = np.where(np.repeat(full, count), models, model)
        cell, model, faint = cell[keep], model[keep], faint[keep]
        _, start, count = np.unique(cell, return_index=True, return_counts=True)
    place = np.arange(len(cell)) - np.repeat(start, count)
    share = np.repeat(count, count)
    high = int(min(count.max(), 10))  # image rows of a client
    image = np.zeros((shape[0] * high, shape[1], 4))
    for h in range(high):
        chosen = (place * high // share <= h) & (h < np.maximum((place + 1) * high // share, place * high // share + 1))
        target = cell[chosen] // shape[1] * high + h, cell[chosen] % shape[1]
        painted, place_of = np.unique(model[chosen], return_inverse=True)
        colors = [to_rgb(pictures.GREY if k == models else pictures.pick_color(k, models)) for k in painted.tolist()]
        image[(*target, slice(0, 3))] = np.array(colors)[place_of]
        image[(*target, 3)] = np.where(faint[chosen], FAINT_ALPHA, 1.0)
    return image


def _draw_cell_borders(axes: Axes, first: int, wide: int, tall: int) -> None:
    axes.vlines(np.arange(first, first + wide + 1) - 0.5, -0.5, tall - 0.5, color=pictures.PAPER, linewidth=0.8)
    axes.hlines(np.arange(tall + 1) - 0.5, first - 0.5, first + wide - 0.5, color=pictures.PAPER, linewidth=0.8)


def _figure_participation_counts(run: ReadRun, table: pa.Table, often: dict[int, int], title: str) -> Figure | None:
    """How many clients took part how often, from the rounds of those who did; None where all did so equally often."""
    if len(set(often.values())) == 1 and len(often) >= _count_clients(run):
        return None
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, 3.2))
    most = max(often.values())
    client, tier = read_job_column(table, "client"), np.array(table["tier"].to_pylist())
    edges = np.unique(np.linspace(0, most + 1, min(most + 2, 41)).astype(int))
    bottom = np.zeros(len(edges) - 1)
    groups = [
        (name, np.histogram([often[c] for c in np.unique(client[tier == name]).tolist()], edges)[0].astype(float))
        for name in run.tiers
    ]
    never = np.zeros(len(edges) - 1)
    never[0] = max(_count_clients(run), int(client.max()) + 1) - len(often)
    groups = [(name, high) for name, high in [*groups, ("never", never)] if high.any()]
    colors = [*pictures.pick_colors(len(groups))]
    for (_, high), color in zip(groups, colors, strict=True):
        pictures.draw_bars(axes, edges[:-1] - 0.42, bottom, np.diff(edges) * 0.86, high, facecolor=color)
        bottom += high
    axes.set_xlabel("rounds a client took part in")
    axes.set_ylabel("clients")
    axes.set_ylim(bottom=0)
    pictures.use_whole_numbers(axes.xaxis)
    pictures.draw_grid(axes)
    pictures.draw_key(axes, [name for name, _ in groups], colors)
    return figure


def _count_clients(run: ReadRun) -> int:
    clients = run.scenario.get("clients")
    number = clients.get("number") if isinstance(clients, dict) else None
    return number if isinstance(number, int) else 0


def _count_noun(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)


# ---------------------------------------------------------------------------------------------------------------------
# One round on the virtual clock: which device the others wait for.

MOST_CLIENT_LANES = 40  # clients shown at most
EQUAL_SHARE = 0.99  # of the slowest client's seconds: no worse is no wait


def figure_gantt(run: ReadRun) -> Figure | None:
    """The last round: a lane a client, its jobs that counted one after another (or side by side, as the tier says)."""
    table = keep_counted(run.first_world())
    if table is None or "start_seconds" in table.column_names:  # without rounds: `flights.figure_flights`
        return None
    if not pc.any(pc.greater(table["sim_seconds"], 0)).as_py():
        return None
    table = table.filter(pc.equal(table["round"], pc.max(table["round"])))
    client, seconds, model = (read_job_column(table, name) for name in ("client", "sim_seconds", "model"))
    tier = np.array(table["tier"].to_pylist())
    together = np.isin(tier, [name for name in run.tiers if _runs_side_by_side(run, name)])
    start, busy = _job_starts(client, seconds, together)
    who = np.unique(client)
    of = {int(c): str(t) for c, t in zip(client, tier, strict=True)}
    lanes = _arrange_lanes(who, busy, of, run.tiers)
    slowest = int(max(busy, key=lambda c: busy[c]))
    half = float(np.median(list(busy.values())))
    if half >= EQUAL_SHARE * busy[slowest]:  # nobody waits: bars of equal length
        return None
    name = f"client {slowest}" + (f" ({of[slowest]})" if len(run.tiers) > 1 else "")
    title = _title(int(table["round"][0].as_py()), name, busy[slowest], half)
    row = {c: y for y, c in lanes}
    shown = np.isin(client, list(row))
    trained = np.unique(model[shown])
    if len(trained) > MOST_DRAWN_MODELS:
        return None
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, max(2.2, 1.0 + 0.155 * len(lanes))))
    share, order = np.where(together, _height_shares(client), 1.0), _job_order(client)
    for k in trained.tolist():
        pick = shown & (model == k)
        low = np.array([row[int(c)] for c in client[pick]]) - 0.4
        low = low + np.where(together[pick], 0.8 * order[pick] * share[pick], 0.0)
        color = pictures.pick_color(k, run.trained)
        pictures.draw_bars(axes, start[pick], low, seconds[pick], 0.8 * share[pick], facecolor=color)
    axes.set_yticks([y for y, _ in lanes], [str(c) for _, c in lanes], fontsize=7)
    axes.set_ylim(max(row.values()) + 0.7, -0.7)
    axes.set_xlim(0, busy[slowest] * 1.01)
    _name_tiers(axes, {name: [y for y, c in lanes if of[c] == name] for name in run.tiers})
    _label_axes(axes, half, len(lanes), len(who))
    draw_model_key(axes, run.trained)
    return figure


def _label_axes(axes: Axes, half: float, shown: int, clients: int) -> None:
    axes.axvline(half, color=pictures.INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_xlabel("virtual seconds since the round began (computing and transfers)")
    axes.set_ylabel("client" if shown == clients else f"client ({shown} of {clients})")
    pictures.draw_grid(axes, "x")


def _name_tiers(axes: Axes, rows: dict[str, list[float]]) -> None:
    """Writes the name of each tier beside its lanes, where there are several tiers."""
    for name, places in rows.items() if len(rows) > 1 else ():
        if places:
            axes.text(
                1.008,
                float(np.mean(places)),
                name,
                transform=axes.get_yaxis_transform(),
                va="center",
                color=pictures.INK,
            )


def _title(round: int, slowest: str, longest: float, half: float) -> str:
    whole, middle = format_seconds(longest), format_seconds(half)
    return f"Round {round} waits {whole} for {slowest}; half the clients are done after {middle}"


def _job_starts(
    client: IntArray, seconds: FloatArray, together: NDArray[np.bool_]
) -> tuple[FloatArray, dict[int, float]]:
    """Start of each job, and when each client is done.

    Example:
        >>> client, seconds = np.array([7, 7, 9]), np.array([1.0, 2.0, 1.5])
        >>> start, busy = _job_starts(client, seconds, together=np.array([False, False, False]))
        >>> start.tolist(), busy
        ([0.0, 1.0, 0.0], {7: 3.0, 9: 1.5})
    """
    start, busy = np.zeros(len(client)), dict.fromkeys(client.tolist(), 0.0)
    for j, (c, s) in enumerate(zip(client.tolist(), seconds.tolist(), strict=True)):
        start[j] = 0.0 if together[j] else busy[c]
        busy[c] = max(busy[c], s) if together[j] else busy[c] + s
    return start, busy


def _arrange_lanes(
    who: IntArray, busy: dict[int, float], of: dict[int, str], tiers: list[str]
) -> list[tuple[float, int]]:
    """Rows and clients: tier by tier, slowest first; of each tier the same share of its clients is shown."""
    lanes: list[tuple[float, int]] = []
    y = 0.0
    for tier in tiers:
        clients = sorted((int(c) for c in who if of[int(c)] == tier), key=lambda c: -busy[c])
        most = max(1, round(MOST_CLIENT_LANES * len(clients) / len(who)))
        kept = pick_evenly(np.array(clients, dtype=np.int64), most).tolist()
        lanes += [(y + i, c) for i, c in enumerate(kept)]
        y += len(kept) + (0.8 if kept else 0)
    return lanes


def _height_shares(client: IntArray) -> FloatArray:
    """One over the jobs of each job's client."""
    _, place, counts = np.unique(client, return_inverse=True, return_counts=True)
    return np.asarray(1.0 / counts[place])


def _job_order(client: IntArray) -> IntArray:
    """Which of its client's jobs each job is."""
    count: dict[int, int] = {}
    place = np.zeros(len(client), dtype=np.int64)
    for j, c in enumerate(client.tolist()):
        place[j] = count.get(c, 0)
        count[c] = place[j] + 1
    return place


def _runs_side_by_side(run: ReadRun, tier: str) -> bool:
    clients = run.scenario.get("clients")
    tiers = clients.get("tiers") if isinstance(clients, dict) else None
    one = tiers.get(tier) if isinstance(tiers, dict) else None
    return bool(isinstance(one, dict) and one.get("side_by_side"))
