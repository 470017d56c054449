"""One round on the virtual clock: which device the others wait for.

Example:
    >>> client, seconds = np.array([7, 7, 9]), np.array([1.0, 2.0, 1.5])
    >>> start, busy = _job_starts(client, seconds, together=np.array([False, False, False]))
    >>> start.tolist(), busy
    ([0.0, 1.0, 0.0], {7: 3.0, 9: 1.5})
"""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedray.core.text import format_seconds
from fedray.core.types import FloatArray, IntArray
from fedray.report import style
from fedray.report.jobs import MOST_DRAWN_MODELS, draw_model_key, keep_counted, pick_evenly, read_job_column
from fedray.report.read import ReadRun

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
    figure, axes = style.make_canvas(title, size=(style.WIDE, max(2.2, 1.0 + 0.155 * len(lanes))))
    share, order = np.where(together, _height_shares(client), 1.0), _job_order(client)
    for k in trained.tolist():
        pick = shown & (model == k)
        low = np.array([row[int(c)] for c in client[pick]]) - 0.4
        low = low + np.where(together[pick], 0.8 * order[pick] * share[pick], 0.0)
        color = style.pick_color(k, run.trained)
        style.draw_bars(axes, start[pick], low, seconds[pick], 0.8 * share[pick], facecolor=color)
    axes.set_yticks([y for y, _ in lanes], [str(c) for _, c in lanes], fontsize=7)
    axes.set_ylim(max(row.values()) + 0.7, -0.7)
    axes.set_xlim(0, busy[slowest] * 1.01)
    _name_tiers(axes, {name: [y for y, c in lanes if of[c] == name] for name in run.tiers})
    _label_axes(axes, half, len(lanes), len(who))
    draw_model_key(axes, run.trained)
    return figure


def _label_axes(axes: Axes, half: float, shown: int, clients: int) -> None:
    axes.axvline(half, color=style.INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_xlabel("virtual seconds since the round began (computing and transfers)")
    axes.set_ylabel("client" if shown == clients else f"client ({shown} of {clients})")
    style.draw_grid(axes, "x")


def _name_tiers(axes: Axes, rows: dict[str, list[float]]) -> None:
    """Writes the name of each tier beside its lanes, where there are several tiers."""
    for name, places in rows.items() if len(rows) > 1 else ():
        if places:
            axes.text(
                1.008, float(np.mean(places)), name, transform=axes.get_yaxis_transform(), va="center", color=style.INK
            )


def _title(round: int, slowest: str, longest: float, half: float) -> str:
    whole, middle = format_seconds(longest), format_seconds(half)
    return f"Round {round} waits {whole} for {slowest}; half the clients are done after {middle}"


def _job_starts(
    client: IntArray, seconds: FloatArray, together: NDArray[np.bool_]
) -> tuple[FloatArray, dict[int, float]]:
    """Start of each job, and when each client is done."""
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
