"""Draws pictures of a run's jobs, and of its metrics over rounds, bytes and virtual seconds."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from fedray.core.errors import choose_unit, format_bytes, format_number, format_seconds, is_share, name_score
from fedray.core.types import BoolArray, FloatArray, IntArray
from fedray.metrics.scores import lower_is_better
from fedray.report import pictures
from fedray.report.read import BYTES, SECONDS, Curve, ReadRun, name_compared, pivot_rounds
from fedray.scenario.shipped import find_last_phase_start

# ---------------------------------------------------------------------------------------------------------------------
# Pictures of the jobs of the first replicate: which client trained which model, and at which cost.

MOST_ROUNDS, MOST_CLIENT_ROWS = 60, 100  # at most so many rounds and clients are shown
MOST_LANES = 40  # at most so many clients are drawn on a virtual clock, and the client that the title names
FAINT_ALPHA = 0.25  # color of a job that did not finish
EQUAL_SHARE = 0.99  # a client with this share of the slowest client's seconds does not wait


def figure_assignment(run: ReadRun) -> Figure | None:
    """Draws a cell for each client and round, in the colors of the models that the client trained.

    Clients are grouped by their true clusters. If these are not known, clients are grouped by their tiers. Clients
    without jobs are left out, and the title says so.

    Example:
        >>> jobs = {name: [1, 1] for name in ("replicate", "fold", "round")} | {"client": [0, 3], "model": [0, 1]}
        >>> jobs |= {"tier": ["client"] * 2, "status": ["ok"] * 2}
        >>> run = ReadRun("one", {"clients": {"number": 5}}, "", {}, {}, {}, None, pa.table(jobs), {})
        >>> figure_assignment(run).get_label()
        'Clients: 2, models: 2; who trains which (2 of 5 clients)'
    """
    table = run.first_world()
    if table is None:
        return None
    round_, client, model = (table[name].to_numpy() for name in ("round", "client", "model"))
    first = round_.min()
    window = round_ < first + MOST_ROUNDS
    everyone, total = np.unique(client[window]), int(round_.max() - first + 1)
    shown = pick_evenly(everyone, MOST_CLIENT_ROWS)
    keep = window & np.isin(client, shown)
    wide = int(round_[keep].max() - first + 1)
    clusters = run.pictures.get("clusters")
    ids = run.client_ids(0 if clusters is None else len(clusters))
    if clusters is not None and np.isin(shown, ids).all():  # older runs have no ids
        found = clusters[np.searchsorted(ids, shown)]
        groups, order = [f"cluster {one}" for one in found.tolist()], np.argsort(found, kind="stable")
    else:
        of = dict(zip(client.tolist(), table["tier"].to_pylist(), strict=True))
        groups = [str(of[i]) for i in shown.tolist()]
        order = np.arange(len(shown))  # the clients of a tier follow each other
    row, faint = np.argsort(order)[np.searchsorted(shown, client[keep])], ~mark_used_jobs(table)[keep]
    size = (len(shown), wide)
    image = _paint_cells(row, round_[keep] - first, model[keep], faint=faint, shape=size, models=run.trained)
    if len(np.unique(image.reshape(-1, 4), axis=0)) == 1:  # every client trains every model in every round
        return None
    number = run.client_keys.get("number") or len(everyone)
    limits = [f"{len(shown)} of {number} clients"] * (len(shown) < number)
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
    axes.set(xlabel="round", ylabel="client")
    pictures.use_whole_numbers(axes.xaxis)
    pictures.name_places(axes.yaxis, shown[order].tolist())
    mark_groups(axes, [groups[i] for i in order])
    draw_model_key(axes, run.trained, every=bool((image[..., :3] == to_rgb(pictures.GREY)).all(axis=-1).any()))
    return figure


def mark_groups(axes: Axes, groups: Sequence[str]) -> None:
    """Writes the names of groups of rows on the right, with a line between groups. A single group gets no name.

    The axes have a row for each client, from 0 at the top. `groups` has the group of each row.
    """
    first = 0
    look: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center", "color": pictures.INK}
    for name, rows in groupby(groups if len(set(groups)) > 1 else ()):
        size = len(list(rows))
        axes.text(1.008, first + (size - 1) / 2, name, **look)
        if first:
            axes.axhline(first - 0.5, **pictures.DASHED)
        first += size


def mark_used_jobs(table: pa.Table) -> BoolArray:
    """Returns for each of J jobs whether its training was used, `[J]`.

    The training of late, dropped and failed jobs, and of jobs without data, is not used.
    """
    return np.isin(table["status"].to_pylist(), ("ok", "done"))


def keep_used_jobs(table: pa.Table | None) -> pa.Table | None:
    """Returns the jobs whose training was used, or None if there are no such jobs."""
    table = None if table is None else table.filter(pa.array(mark_used_jobs(table)))
    return table if table is not None and len(table) else None


def figure_traffic(run: ReadRun) -> Figure | None:
    """Draws the bytes that each tier sends and receives."""
    if run.clients is None:
        return None
    columns, tiers = ("up_bytes", "down_bytes"), run.tiers
    sums = run.clients.group_by("tier").aggregate([(name, "sum") for name in columns]).to_pandas().set_index("tier")
    up, down = (sums[f"{name}_sum"].reindex(tiers, fill_value=0).to_numpy(float) / run.worlds for name in columns)
    if len(tiers) < 2 or np.ptp(np.concatenate([up, down])) == 0:  # the cards show it as two numbers
        return None
    share = float((up + down).max() / max(float((up + down).sum()), 1.0))
    title = f"{format_bytes(float(up.sum()))} go up and {format_bytes(float(down.sum()))} come down"
    title += f"; {100 * share:.0f} % of it is {tiers[int((up + down).argmax())]}'s"
    most = float(max(up.max(), down.max()))
    unit, name = choose_unit("bytes", most)
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, 1.1 + 0.55 * len(tiers)))
    where = np.arange(len(tiers))
    for shift, values, color in ((-0.19, up, pictures.ACCENT), (0.19, down, pictures.PALETTE[4])):
        pictures.draw_bars(axes, 0.0, where + shift - 0.17, values / unit, 0.34, lying=True, facecolor=color)
        for y, value in zip(where + shift, values, strict=True):
            axes.annotate(format_bytes(value), (value / unit, y), (4, 0), textcoords="offset points", va="center")
    axes.grid(visible=False)
    axes.set_yticks(where, tiers)
    axes.set(xlabel=f"bytes ({name}{', mean of the replicates and folds' if run.worlds > 1 else ''})")
    axes.set(xlim=(0, 1.2 * most / unit), ylim=(len(tiers) - 0.5, -0.5))
    pictures.draw_key(axes, ["uplink", "downlink"], [pictures.ACCENT, pictures.PALETTE[4]])
    return figure


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
    """Draws the legend of the models' colors. If there are many models, the legend names three.

    `every` says whether the legend also names the color of a cell with all models.
    """
    shown = range(models) if models <= len(pictures.PALETTE) else (0, models // 2, models - 1)
    if models > 1:
        more, colors = [f"all {models}"] * every, [pictures.pick_color(k, models) for k in shown]
        pictures.draw_key(axes, [*(f"model {k}" for k in shown), *more], [*colors, *[pictures.GREY] * every])


def _paint_cells(
    row: IntArray, x: IntArray, model: IntArray, *, faint: BoolArray, shape: tuple[int, int], models: int
) -> FloatArray:
    """Paints an RGBA image of J jobs, each in the cell at its `row` and its column `x`. Jobs in `faint` are paler.

    Several models of one cell are stacked in the cell.
    """
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
    """Draws the jobs of the last round, one lane per client. Leaves out jobs whose training was not used.

    The jobs of a client are drawn in sequence. If the client's tier trains models side by side, its jobs are drawn side
    by side. If the round lasted until the deadline, because an upload was missing, the picture reaches to the deadline.
    """
    table = keep_used_jobs(run.first_world())
    if table is None or "start_seconds" in table.column_names:  # without rounds: see `figure_flights`
        return None
    jobs = table.filter(pc.equal(table["round"], pc.max(table["round"]))).to_pandas()
    of = jobs.groupby("client")["sim_seconds"]
    jobs = divide_lanes(run, jobs.assign(start=of.cumsum() - jobs["sim_seconds"], turn=0.0))
    done = (jobs["start"] + jobs["sim_seconds"]).groupby(jobs["client"]).max()
    slowest, half = done.idxmax(), float(done.median())
    if half >= EQUAL_SHARE * done[slowest]:  # bars have equal lengths, because nobody waits
        return None
    tier = jobs.groupby("client")["tier"].first()
    name = f"client {slowest}" + (f" ({tier[slowest]})" if len(run.tiers) > 1 else "")
    number = int(jobs["round"].iloc[0])
    deadline = find_missed_deadline(run, number)
    end = float(done[slowest]) if deadline is None else deadline
    what = f"waits {format_seconds(end)} for {name}; half the clients"
    if deadline is not None:
        what = f"lasts until the deadline, {format_seconds(end)}; half of those who came"
    title = f"Round {number} {what} are done after {format_seconds(half)}"
    lanes = pd.DataFrame({"tier": tier.map(run.tiers.index), "wait": -done}).sort_values(["tier", "wait"]).index
    figure, axes, shown = draw_lanes(run, title, jobs, lanes.to_numpy(), named=int(slowest))
    axes.set_xlim(0, end * 1.01)
    mark_groups(axes, [tier[i] for i in shown])
    axes.axvline(half, **pictures.DASHED)
    axes.set_xlabel("virtual seconds since the round began (computing and transfers)")
    return figure


def divide_lanes(run: ReadRun, jobs: pd.DataFrame) -> pd.DataFrame:
    """Returns jobs with the columns `low` and `tall`, the place of a job's bar within the lane of its client, 0 to 1.

    Jobs that a client trains side by side in a turn all start when the turn does, and divide the lane. `turn` is the
    time at which a job's turn begins.
    """
    tiers = run.client_keys.get("tiers") or {}
    together = jobs["tier"].isin([name for name, one in tiers.items() if one and one.get("side_by_side")])
    of = jobs.groupby(["client", "turn"])["turn"]
    tall = (1 / of.transform("size")).where(together, 1.0)
    low = (of.cumcount() * tall).where(together, 0.0)
    return jobs.assign(start=jobs["start"].where(~together, jobs["turn"]), tall=tall, low=low)


def find_missed_deadline(run: ReadRun, number: int) -> float | None:
    """Returns `participation.deadline`, in virtual seconds, if the round `number` lasted until it, or else None.

    A round lasts until the deadline if an upload is missing. With over-commitment enough others may have come before
    it. Only the length of the round shows this, and it is known if the round before was evaluated.

    Example:
        >>> jobs = pa.table({"replicate": [0, 0], "fold": [0, 0], "round": [1, 1], "status": ["ok", "dropped"]})
        >>> rounds = {"round": np.arange(2.0), "sim_seconds": np.array([0.0, 3.0])}
        >>> rounds["replicate"] = rounds["fold"] = np.zeros(2)
        >>> keys = [{"participation": {"deadline": 8.0, "overcommit": share}} for share in (1.0, 1.5)]
        >>> [find_missed_deadline(ReadRun("one", each, "", {}, {}, rounds, None, jobs, {}), 1) for each in keys]
        [8.0, None]
    """
    rule, table = run.scenario.get("participation") or {}, run.first_world()
    if table is None or rule.get("deadline") is None:
        return None
    deadline, status = float(rule["deadline"]), table.filter(pc.equal(table["round"], number))["status"].to_pylist()
    if not {"dropped", "past deadline"} & {*status}:
        return None
    if rule.get("overcommit", 1.0) > 1 and not run.rounds:
        return None
    if rule.get("overcommit", 1.0) > 1:
        ends = pd.DataFrame(run.rounds).set_index(["replicate", "fold", "round"])["sim_seconds"]
        length = ends.loc[ends.index.min()[:2]].reindex([number - 1, number]).diff().iloc[1]
        return deadline if length >= EQUAL_SHARE * deadline else None
    return deadline


def draw_lanes(
    run: ReadRun, title: str, jobs: pd.DataFrame, clients: IntArray, named: int | None = None
) -> tuple[Figure, Axes, list[int]]:
    """Draws jobs on a virtual clock, one lane per client, in the colors of their models.

    `jobs` has a row for each job. Its columns are `client`, `model`, `start`, `sim_seconds`, `tall` (height of the bar)
    and `low` (space above the bar). `tall` and `low` are fractions of the lane's height. The lanes are in the order of
    `clients`. If there are many clients, only evenly spaced clients and the client `named` are shown.

    Returns:
        The figure, its axes, and the clients that are shown.
    """
    picked = {named, *pick_evenly(clients, MOST_LANES).tolist()}
    shown = [client for client in clients.tolist() if client in picked]
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, max(2.2, 1.0 + 0.155 * len(shown))))
    for model, mine in jobs[jobs["client"].isin(shown)].groupby("model"):
        low = mine["client"].map(shown.index) - 0.4 + 0.8 * mine["low"]
        color = pictures.pick_color(int(model), run.trained)
        look: dict[str, Any] = {"lying": True, "facecolor": color}
        pictures.draw_bars(axes, mine["start"], low, mine["sim_seconds"], 0.8 * mine["tall"], **look)
    axes.set_yticks(range(len(shown)), [str(i) for i in shown], fontsize=7)
    axes.set_ylabel("client" if len(shown) == len(clients) else f"client ({len(shown)} of {len(clients)})")
    axes.set_ylim(len(shown) - 0.3, -0.7)
    axes.grid(visible=False)
    axes.grid(visible=True, axis="x")
    draw_model_key(axes, run.trained)
    return figure, axes, shown


# ---------------------------------------------------------------------------------------------------------------------
# Pictures of training without rounds, with the jobs under way and the staleness of their uploads.

MOST_BARS_SHOWN = 400  # the last jobs, as many at most
MOST_LATE = 20  # steps; later uploads share the last bar


def figure_flights(run: ReadRun) -> Figure | None:
    """Draws the last jobs of a run without rounds on the virtual clock, with one lane per client.

    The bar of a job reaches from its start to the arrival of its upload.
    """
    jobs = _read_flights(run)
    if jobs is None:
        return None
    jobs = jobs.sort_values("arrival_seconds", kind="stable")[-MOST_BARS_SHOWN:]
    turn, end = jobs["start_seconds"], jobs["arrival_seconds"]
    before = jobs.groupby(["client", "start_seconds"])["arrival_seconds"].shift()  # a client trains its models in turn
    jobs = divide_lanes(run, jobs.assign(start=before.fillna(turn), turn=turn))
    start = jobs["start"]
    half, steps = format_seconds(float((end - start).median())), jobs["round"].nunique()
    title = f"Half of the jobs take less than {half}; the server steps {steps} times in this window"
    figure, axes, _ = draw_lanes(run, title, jobs.assign(sim_seconds=end - start), np.unique(jobs["client"]))
    axes.set(xlabel="virtual seconds (from the start of a job to its arrival)", xlim=(start.min(), end.max()))
    return figure


def figure_staleness(run: ReadRun) -> Figure | None:
    """Draws the staleness of each tier's uploads (server steps from a job's start to the use of its upload)."""
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
    axes.set(xlabel="staleness (steps of the model since the job started)", ylabel="uploads of the tier")
    axes.set(xlim=(-0.6, most + 0.6), ylim=(0, None))
    pictures.use_percent(axes.yaxis)
    last = f"{most} or more" if late.max() > most else most
    pictures.name_places(axes.xaxis, [*range(most), last])  # by name: the bars of a tier stand beside these places
    if len(names) > 1:
        pictures.draw_key(axes, names, colors)
    return figure


def _read_flights(run: ReadRun) -> pd.DataFrame | None:
    """Returns the jobs of the first replicate and fold whose uploads were used, or None if training has rounds."""
    table = keep_used_jobs(run.first_world())
    if table is None or "staleness" not in table.column_names:
        return None
    jobs = table.to_pandas().dropna(subset="staleness")
    return jobs if len(jobs) else None


# ---------------------------------------------------------------------------------------------------------------------
# Pictures of a run's metrics over rounds, bytes and virtual seconds.

PANEL_SCORES = (
    *("nll", "nll_residual", "nll_none", "brier", "ece", "entropy", "disagreement", "crps", "coverage_95"),
    *("sharpness", "personal_accuracy", "personal_rmse"),
)
LEGEND_MODELS = 10  # with more models the legend does not name each of them
LEAST_POINTS = 6  # a curve with fewer points is never cut off at its beginning
LEAST_EMPTY = 0.1  # the beginning of an axis is cut off if this share of it is empty
LEAST_WINDOW = 0.15  # this share of the rise from the first to the best value stays visible below the worst final value
MOST_MEMBER_LINES = 50
BAND_NOTE = (
    "Line: mean of the replicates and folds; band: one standard deviation of them up and down, no confidence interval."
)
WORLDS_BAND = "worlds"  # marks the band over worlds


def figure_rounds(run: ReadRun) -> Figure | None:
    """Draws the headline metric of the ensemble and of each member over rounds."""
    curve = run.curve(run.metric)
    if curve is None:
        return None
    single = run.models == 1
    members = [None if single else run.member(k) for k in range(min(run.models, MOST_MEMBER_LINES))]
    left_out = run.models > len(members) and any(member is not None for member in members)
    title = _rounds_title(run, curve) + f" ({len(members)} of {run.models} members drawn)" * left_out
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, 4.4))
    for k, member in enumerate(members):
        if member is not None:
            label = f"model {k}" if run.models <= LEGEND_MODELS else f"_model {k}"
            draw_mean_line(axes, member.round, member, color=pictures.pick_color(k, run.models), width=1.1, label=label)
    name = "the model" if single else "ensemble"
    draw_mean_line(axes, curve.round, curve, color=pictures.INK, width=2.4, label=name)
    mark_best(axes, curve, run.metric, find_last_phase_start(run.scenario))
    personal = run.curve(f"personal_{run.metric}")
    if personal is not None:
        label = name_score(f"personal_{run.metric}")
        look: dict[str, Any] = {"color": pictures.MUTED, "linewidth": 1.4, "label": label}
        axes.plot(personal.round, personal.mean, "--", **look)
    axes.set_xlabel(label_rounds(run))
    pictures.use_whole_numbers(axes.xaxis)
    label_headline(axes, run.metric)
    cut_beginning(axes, run.metric, [curve, *(member for member in members if member is not None)])
    draw_legend(axes, run.metric, columns=2 if run.models > 3 else 1)
    return figure


def figure_scores(run: ReadRun) -> Figure | None:
    """Draws all other scores over rounds, each in a small panel."""
    names = (*list_own_metrics(run.scenario), *PANEL_SCORES)
    curves = {name: curve for name in names if (curve := run.curve(name)) is not None and len(curve.round) > 1}
    if not curves:
        return None
    columns = 2 if len(curves) in (2, 4) else min(3, len(curves))
    figure, panels = pictures.make_grid("The other scores over the rounds", len(curves), columns, 2.2)
    for axes, (name, curve) in zip(panels, curves.items(), strict=True):
        draw_mean_line(axes, curve.round, curve, color=pictures.ACCENT, width=1.8)
        axes.set_title(name_score(name, unit=True), fontsize=9.5, loc="left")
        pictures.use_whole_numbers(axes.xaxis)
        if is_share(name):
            pictures.use_percent(axes.yaxis)
    for axes in panels[-columns:]:
        axes.set_xlabel(label_rounds(run))
    return figure


def list_own_metrics(scenario: Mapping[str, Any]) -> list[str]:
    """Lists the names of the metrics that the user registered or passed.

    Example:
        >>> list_own_metrics({"evaluate": {"metrics": ["margin"]}, "own": {"metrics": ["doubt"]}})
        ['margin', 'doubt']
    """
    return [str(name) for key in ("evaluate", "own") for name in (scenario.get(key) or {}).get("metrics") or ()]


def read_curve_over(run: ReadRun, what: str, metric: str | None = None) -> tuple[FloatArray, Curve] | None:
    """Returns a curve and the positions of its rounds on an axis of `rounds`, `bytes` or `seconds`.

    Bytes and seconds are means over replicates and folds. Returns None if the run has no such curve or no such cost.
    `metric` is the name of the score. None means accuracy or RMSE.
    """
    curve = run.curve(metric or run.metric)
    if curve is None or what == "rounds":
        return None if curve is None else (curve.round, curve)
    cost = run.curve(BYTES if what == "bytes" else SECONDS)
    if cost is None or not cost.mean.any():
        return None
    return np.interp(curve.round, cost.round, cost.mean), curve


def draw_mean_line(
    axes: Axes, x: FloatArray, curve: Curve, *, color: str, width: float, label: str | None = None
) -> None:
    """Draws a line of the mean over replicates and folds, and a band of one standard deviation.

    A single replicate and fold has no band. The width of the line is in points.
    """
    mark = "o" if len(x) == 1 else None
    axes.plot(x, curve.mean, color=color, linewidth=width, label=label, marker=mark, markersize=4)
    if len(curve.values) > 1:
        low, high = curve.mean - curve.sd, curve.mean + curve.sd
        alpha = 0.09 if width < 1.5 else 0.16
        axes.fill_between(x, low, high, color=color, alpha=alpha, linewidth=0, label=pictures.BAND, gid=WORLDS_BAND)


def label_headline(axes: Axes, metric: str) -> None:
    """Labels the value axis of the headline metric. An axis of shares ends at 100 % at most."""
    axes.set_ylabel(name_score(metric, unit=True))
    if is_share(metric):
        pictures.use_percent(axes.yaxis)
        axes.set_ylim(top=min(axes.get_ylim()[1], 1.0))


def mark_best(axes: Axes, curve: Curve, metric: str, begins: int = 0) -> None:
    """Marks the point of a curve at its best round. A curve with fewer than two rounds is not marked.

    The best round has the largest mean over replicates and folds, or the smallest if lower values are better. A method
    may train in two phases. `begins` is then the last round of the first phase, and only later rounds are considered.
    """
    late = np.flatnonzero(curve.round > begins) if begins else np.arange(len(curve.round))
    if len(late) < 2:
        return
    mean = curve.mean[late]
    at = late[int(np.nanargmin(mean) if lower_is_better(metric) else np.nanargmax(mean))]
    label = f"best: {format_number(float(curve.mean[at]), metric)}, round {curve.round[at]:.0f}"
    look: dict[str, Any] = {"markersize": 7, "markeredgecolor": pictures.PAPER, "color": pictures.ORANGE, "zorder": 4}
    axes.plot(curve.round[[at]], curve.mean[[at]], "D", linestyle="none", label=label, **look)


def cut_beginning(axes: Axes, metric: str, drawn: Sequence[Curve]) -> None:
    """Cuts off the part of the value axis that lines reach only in early rounds. The axis label says where the cut is.

    The second half of every line stays visible. Beyond the worst final value, the axis shows at least twice the
    distance between the worst and the best final value.
    """
    sign = -1.0 if lower_is_better(metric) else 1.0
    window = find_window([Curve(curve.round, sign * curve.values) for curve in drawn])
    lines = [(line.get_xdata(), sign * np.asarray(line.get_ydata())) for line in axes.lines]
    seen = [(np.asarray(x), y) for x, y in lines if window is not None and (y >= window).any()]
    if window is None or not seen:
        return
    axes.set_ylim(*((None, -window) if sign < 0 else (window, None)))
    entry = min(float(place[mean >= window][0]) for place, mean in seen)
    left, right = axes.get_xlim()
    if entry - left > LEAST_EMPTY * (right - left):  # the axis would be empty
        axes.set_xlim(left=entry - 0.04 * (right - entry))
    end = format_number(sign * window, metric)
    axes.set_ylabel(f"{axes.get_ylabel()}\n{'up to' if sign < 0 else 'from'} {end}")


def find_window(drawn: Sequence[Curve]) -> float | None:
    """Returns the value at which the axis of rising curves may begin, or None if no cut is needed.

    The axis is not cut if a curve has few points, or if the cut would remove almost nothing.

    Example:
        >>> rounds = np.arange(10.0)
        >>> rising = [Curve(rounds, (end * np.minimum(1.0, (rounds + 1) / 4))[None]) for end in (0.8, 0.9)]
        >>> round(find_window(rising), 3)
        0.6
    """
    means = [curve.mean[np.isfinite(curve.mean)] for curve in drawn]
    means = [mean for mean in means if len(mean)]
    if not means or min(len(mean) for mean in means) < LEAST_POINTS:
        return None
    ends = [float(np.median(mean[-max(1, len(mean) // 5) :])) for mean in means]
    late = min(float((curve.mean - curve.sd)[len(curve.round) // 2 :].min()) for curve in drawn)
    way = max(ends) - min(float(mean[0]) for mean in means)
    window = min(min(ends) - max(2 * (max(ends) - min(ends)), LEAST_WINDOW * way), late)
    lowest = min(float(mean.min()) for mean in means)
    return None if not np.isfinite(window) or window <= lowest + 0.1 * way else window


def draw_legend(axes: Axes, metric: str, columns: int = 1) -> None:
    """Draws the legend, if it has an entry, in the corner that a curve of this metric leaves free."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper right" if lower_is_better(metric) else "lower right", ncols=columns)


def label_rounds(run: ReadRun) -> str:
    """Returns the label of an axis of rounds."""
    return "steps of each walk" if "graph_edges" in run.pictures else "rounds completed"


def count_rounds(run: ReadRun, number: float) -> str:
    """Returns a number of rounds in words, which are steps in a run of random walks.

    Example:
        >>> count_rounds(ReadRun("one", {}, "", {}, {}, {}, None, None, {}), 1)
        '1 round'
    """
    word = "step" if "graph_edges" in run.pictures else "round"
    return f"{number:.0f} {word}{'s' * (number != 1)}"


def _rounds_title(run: ReadRun, curve: Curve) -> str:
    """Returns the title of the picture of a run's headline metric over rounds.

    Example:
        >>> run = ReadRun("one", {"method": {"name": "fedrep"}}, "", {}, {}, {}, None, None, {})
        >>> _rounds_title(run, Curve(np.array([5.0]), np.array([[0.3]])))
        'Accuracy of the common answer is 30.0 % after 5 rounds'
    """
    what = name_compared([run], run.metric)
    end = format_number(float(curve.mean[-1]), run.metric)
    after = f"after {count_rounds(run, float(curve.round[-1]))}"
    best = run.curve("accuracy_max" if run.metric == "accuracy" else "rmse_min")
    if run.models == 1 or best is None:
        return f"{what[0].upper() + what[1:]} is {end} {after}"
    top = format_number(float(best.mean[-1]), run.metric)
    return f"The ensemble of {run.models} reaches {end} {what} {after}; its best member {top}"


# ---------------------------------------------------------------------------------------------------------------------
# The training loss over the rounds, which the clients measured while they trained.


def figure_losses(run: ReadRun) -> Figure | None:
    """Draws the training loss over rounds: its mean over all jobs, and over the jobs of each tier."""
    table = keep_used_jobs(run.clients)
    curve = None if table is None else _average_losses(table)
    if table is None or curve is None or len(curve.round) < 2:
        return None
    first, last = float(curve.mean[0]), float(curve.mean[-1])
    word = "falls" if last < first else "rises"
    title = f"The training loss {word} from {first:.3g} to {last:.3g}"
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, 3.4))
    tiers = run.tiers if len(run.tiers) > 1 else []
    for place, tier in enumerate(tiers):
        of_tier = _average_losses(table.filter(pc.equal(table["tier"], tier)))
        if of_tier is not None:
            color = pictures.pick_color(place, len(tiers))
            draw_mean_line(axes, of_tier.round, of_tier, color=color, width=1.2, label=tier)
    label = "all clients" if tiers else None
    draw_mean_line(axes, curve.round, curve, color=pictures.INK, width=2.2, label=label)
    axes.set(xlabel=label_rounds(run), ylabel="training loss")
    pictures.use_whole_numbers(axes.xaxis)
    draw_legend(axes, "rmse")
    return figure


def _average_losses(table: pa.Table) -> Curve | None:
    """Computes for each round the mean loss of its jobs, weighted by their samples.

    Returns None if no job has a loss.
    """
    jobs = table.select(["replicate", "fold", "round", "loss", "samples"]).to_pandas()
    jobs = jobs[np.isfinite(jobs["loss"].astype(float))]
    jobs["loss"] *= jobs["samples"]
    sums = jobs.groupby(["replicate", "fold", "round"], as_index=False)[["loss", "samples"]].sum()
    return pivot_rounds(sums, sums["loss"] / sums["samples"])
