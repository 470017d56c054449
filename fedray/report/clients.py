"""Pictures of the single clients: their data, the models that suit them, and who is served badly."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedray.core.errors import format_number, name_score
from fedray.core.types import FloatArray, IntArray
from fedray.metrics.unknown import ANOMALY_Z
from fedray.report import pictures
from fedray.report.curves import cut_beginning, draw_legend, draw_mean_line, label_headline, label_rounds
from fedray.report.jobs import pick_evenly, read_job_column
from fedray.report.predictions import MOST_NAMED_CLASSES, read_class_names
from fedray.report.read import ReadRun, pivot_rounds

# ---------------------------------------------------------------------------------------------------------------------
# Pictures of the single clients: their data, the models that suit them, and who is served badly.

MOST_CLIENT_COLUMNS = 100  # clients in a figure at most
LEAST_SPREAD = 0.005  # range of personal weights below which all look equal in percent


def figure_data(run: ReadRun) -> Figure | None:
    """Draws the stacked label counts of each client."""
    counts = run.pictures.get("label_counts")
    if counts is None or (counts == counts[0]).all():  # bars of equal length and colors tell nothing
        return None
    clients, classes = counts.shape
    size = counts.sum(axis=1)
    held = float((counts > 0).sum(axis=1).mean())
    title = f"A client holds {held:.3g} of {classes} classes and {size.mean():.4g} samples on average"
    title += f" ({size.min():.0f} to {size.max():.0f})"
    shown = pick_evenly(np.arange(clients), MOST_CLIENT_COLUMNS)
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, 3.4))
    colors = pictures.pick_colors(classes)
    names = read_class_names(run, classes)
    width, bottom = 0.82 if len(shown) <= 60 else 0.92, np.zeros(len(shown))
    for part, color, name in zip(counts[shown].T, colors, names, strict=True):
        look: dict[str, Any] = {"facecolor": color, "rasterized": classes > 20, "label": f"class {name}"}
        pictures.draw_bars(axes, np.arange(len(shown)) - width / 2, bottom, width, part, **look)
        bottom = bottom + part
    axes.set_xlim(-0.7, len(shown) - 0.3)
    axes.set_ylim(0, float(bottom.max()) * 1.04)
    pictures.name_places(axes.xaxis, shown.tolist())
    axes.set_xlabel("client" if len(shown) == clients else f"client ({len(shown)} of {clients}, evenly chosen)")
    axes.set_ylabel("training samples")
    if 1 < classes <= len(pictures.PALETTE):
        pictures.draw_key(axes, names, colors)
    elif classes > 1:
        ends = (0, classes // 2, classes - 1)
        pictures.draw_key(axes, [f"class {names[i]}" for i in ends], [colors[i] for i in ends])
    return figure


def figure_weights(run: ReadRun) -> Figure | None:
    """Draws the weights with which each known client combines the models."""
    alpha = run.pictures.get("alpha")
    if alpha is None or alpha.shape[1] < 2 or float(np.ptp(alpha)) < LEAST_SPREAD:
        return None
    clients, models = alpha.shape
    most = float(alpha.max(axis=1).mean())
    title = f"Personal weights: a client's favourite model gets {100 * most:.0f} % (equal: {100 / models:.0f} %)"
    shown = pick_evenly(np.arange(clients), MOST_CLIENT_COLUMNS)
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, float(np.clip(1.2 + 0.22 * models, 1.9, 5))))
    high = float(alpha.max())
    picture = axes.imshow(alpha[shown].T, cmap=pictures.make_colormap(), vmin=0, vmax=high, aspect="auto")
    axes.set_yticks(range(models) if models <= 12 else np.linspace(0, models - 1, 6).astype(int))
    axes.set_ylabel("model")
    pictures.name_places(axes.xaxis, shown.tolist())
    axes.set_xlabel("client" if len(shown) == clients else f"client ({len(shown)} of {clients}, evenly chosen)")
    pictures.hide_frame(axes)
    bar = figure.colorbar(picture, pad=0.015, aspect=12, label="weight")
    if bar.solids is not None:
        bar.solids.set_rasterized(True)
    bar.outline.set_visible(False)
    pictures.use_percent(bar.ax.yaxis)
    return figure


def figure_clients(run: ReadRun) -> Figure | None:
    """Draws the accuracy or RMSE of each client, the best first; for RMSE, also the value under equal weights."""
    is_class = "client_accuracy" in run.pictures
    name, found = ("accuracy", "client_accuracy") if is_class else ("RMSE", "client_rmse")
    values = run.pictures.get(found)
    ranked = sort_clients(values if is_class or values is None else -values)
    if ranked is None:
        return None
    each, who = np.abs(ranked[0]), ranked[1]
    tenth, mean = float(np.quantile(each, 0.1 if is_class else 0.9)), float(each.mean())
    low, middle = (format_number(value, "accuracy" if is_class else "rmse") for value in (tenth, mean))
    title = f"One client in ten {'stays below' if is_class else 'is above'} {low} {name} (mean {middle})"
    figure, axes = pictures.make_canvas(title, size=(pictures.NARROW, 3.4))
    draw_sorted_bars(axes, each, pictures.ACCENT)
    equal = None if is_class else run.pictures.get("client_rmse_equal")
    if equal is not None and not np.allclose(equal[who], each):
        look: dict[str, Any] = {"color": pictures.ORANGE, "markersize": 5, "label": "_all models alike"}
        look["rasterized"] = len(each) > pictures.MOST_VECTOR_MARKS
        axes.plot(np.arange(len(each)), equal[who], ".", **look)
        pictures.draw_key(axes, ["own weights or models", "all models alike"], [pictures.ACCENT, pictures.ORANGE])
    for text, value, side in (("mean", mean, "bottom"), ("one in ten", tenth, "top")):
        axes.axhline(value, **pictures.DASHED)
        axes.text(1.01, value, text, transform=axes.get_yaxis_transform(), va=side, fontsize=8.5)
    axes.set_xlim(-0.7, len(each) - 0.3)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"{len(each)} clients, best first")
    axes.set_ylabel(f"{name} for the client")
    pictures.name_places(axes.xaxis, who, whole="client ")
    if is_class:
        pictures.use_percent(axes.yaxis)
    return figure


def draw_sorted_bars(axes: Axes, values: FloatArray, color: str) -> None:
    """Draws one bar per client; many bars touch each other.

    Args:
        axes: the axes to draw on.
        values: the sorted values, `[N]`.
        color: the color of the bars.
    """
    width = 0.84 if len(values) <= 120 else 1.0
    look: dict[str, Any] = {"facecolor": color, "rasterized": len(values) > pictures.MOST_VECTOR_MARKS}
    pictures.draw_bars(axes, np.arange(len(values)) - width / 2, 0.0, width, values, **look)


def sort_clients(values: FloatArray | None) -> tuple[FloatArray, list[int]] | None:
    """Sorts the finite values of clients `[N]`, the highest first, with their clients; None if no two values differ.

    Example:
        >>> values, who = sort_clients(np.array([0.5, np.nan, 0.75]))
        >>> values.tolist(), who
        ([0.75, 0.5], [2, 0])
    """
    if values is None or np.isfinite(values).sum() < 2 or np.ptp(values[np.isfinite(values)]) == 0:
        return None
    known = np.flatnonzero(np.isfinite(values))
    order = known[np.argsort(-np.asarray(values[known], dtype=np.float64), kind="stable")]
    return np.asarray(values[order], dtype=np.float64), order.tolist()


# ---------------------------------------------------------------------------------------------------------------------
# Accuracy by class and by tier, which a mean over all clients hides; also by tier over the rounds (`evaluate.clients`).

WIDE_FROM = 16  # classes drawn at most
Z = 1.96  # normal quantile of a 95 % interval


def figure_classes(run: ReadRun) -> Figure | None:
    """Draws the share of each class that is predicted correctly, with its interval, the best class first."""
    counts = run.pictures.get("confusion")
    if counts is None or not counts.sum():
        return None
    share, low, high = measure_classes(counts)
    order = np.argsort(-np.nan_to_num(share, nan=-1.0), kind="stable")[: int(np.isfinite(share).sum())]
    if len(order) < 2 or np.ptp(share[order]) == 0:
        return None
    found = read_class_names(run, len(counts))
    names, right = [found[i] for i in order], share[order]
    title = f"Hardest class: {names[-1]}, {format_number(float(right[-1]), 'accuracy')} of it is answered rightly"
    size = (pictures.WIDE, 3.2) if len(order) > WIDE_FROM else (pictures.NARROW, 3.8)
    figure, axes = pictures.make_canvas(title, size=size)
    error = np.maximum(np.stack([right - low[order], high[order] - right]), 0.0)
    look: dict[str, Any] = {"color": pictures.ACCENT, "ecolor": pictures.ACCENT, "elinewidth": 1.2, "markersize": 5}
    axes.errorbar(np.arange(len(order)), right, yerr=error, fmt="o", **look)
    pictures.name_places(axes.xaxis, names, whole=None if len(names) <= MOST_NAMED_CLASSES else "class ")
    if len(names) <= MOST_NAMED_CLASSES:
        axes.set_xticks(range(len(names)))
        axes.tick_params(axis="x", labelrotation=40 if max(map(len, names)) > 3 else 0)
    axes.set_xlabel("class, the best answered first")
    axes.set_ylabel("accuracy within the class")
    pictures.use_percent(axes.yaxis)
    return figure


def figure_tiers(run: ReadRun) -> Figure | None:
    """Draws the score of each client as a dot, tier by tier, and the mean of each tier."""
    name = "accuracy" if "client_accuracy" in run.pictures else "rmse"
    values, table = run.pictures.get(f"client_{name}"), run.first_world()
    if values is None or table is None or len(run.tiers) < 2:
        return None
    client, tier = read_job_column(table, "client"), np.array(table["tier"].to_pylist())
    each = {one: values[np.unique(client[tier == one])] for one in run.tiers}
    groups = {one: found[np.isfinite(found)] for one, found in each.items() if np.isfinite(found).any()}
    if len(groups) < 2 or np.ptp(np.concatenate(list(groups.values()))) == 0:
        return None
    means = {one: float(found.mean()) for one, found in groups.items()}
    title = ", ".join(f"{one} {format_number(mean, name)}" for one, mean in means.items())
    what = "accuracy" if name == "accuracy" else "RMSE"
    figure, axes = pictures.make_canvas(f"Mean {what} of the tiers' clients: {title}", size=(pictures.NARROW, 3.4))
    for place, (one, found) in enumerate(groups.items()):
        spread = 0.5 * (np.arange(len(found)) * 0.6180339887 % 1 - 0.5)  # golden ratio: an even spread
        look: dict[str, Any] = {"color": pictures.pick_color(place, len(groups)), "alpha": 0.7, "markersize": 8}
        look["rasterized"] = len(values) > pictures.MOST_VECTOR_MARKS
        axes.plot(place + spread, found, ".", label=f"_{one}", **look)
        ends = [place - 0.34, place + 0.34]
        axes.plot(ends, [means[one]] * 2, color=pictures.INK, linewidth=2, label=f"_mean of {one}")
    pictures.name_places(axes.xaxis, [f"{one} ({len(found)})" for one, found in groups.items()])
    axes.set_xlim(-0.6, len(groups) - 0.4)
    axes.set_xlabel("tier (clients)")
    axes.set_ylabel(f"{what} for the client")
    if name == "accuracy":
        pictures.use_percent(axes.yaxis)
    return figure


def figure_tier_rounds(run: ReadRun) -> Figure | None:
    """Draws the mean score of the recorded clients of each tier over the rounds."""
    if run.client_scores is None or run.metric not in run.client_scores.column_names:
        return None
    keys = ["tier", "replicate", "fold", "round"]
    means = run.client_scores.to_pandas().groupby(keys, as_index=False)[run.metric].mean()
    tiers = {tier: means[means["tier"] == tier] for tier in run.tiers}
    found = {tier: pivot_rounds(each, each[run.metric]) for tier, each in tiers.items()}
    lines = {tier: curve for tier, curve in found.items() if curve is not None}
    if len(lines) < 2 or max(len(curve.round) for curve in lines.values()) < 2:
        return None
    text = ", ".join(f"{tier} {format_number(float(curve.mean[-1]), run.metric)}" for tier, curve in lines.items())
    figure, axes = pictures.make_canvas(f"The tiers end at {text}", size=(pictures.NARROW, 3.4))
    for (tier, curve), color in zip(lines.items(), pictures.pick_colors(len(lines)), strict=True):
        draw_mean_line(axes, curve.round, curve, color=color, width=1.8, label=tier)
    axes.set_xlabel(label_rounds(run))
    pictures.use_whole_numbers(axes.xaxis)
    label_headline(axes, run.metric)
    axes.set_ylabel(f"{name_score(run.metric, unit=True)} for the client")
    cut_beginning(axes, run.metric, list(lines.values()))
    draw_legend(axes, run.metric)
    return figure


def measure_classes(counts: NDArray[Any]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Computes the share of each class predicted correctly, and the ends of Wilson's 95 % interval, `[C]` each.

    Args:
        counts: the confusion matrix, `[C, C]`; a row is a true class. The results of a class without samples are NaN.

    Source: Wilson, "Probable inference", Journal of the American Statistical Association 22 (1927).

    Example:
        >>> share, low, high = measure_classes(np.array([[9, 1], [0, 0]]))  # nobody has the second class
        >>> share.tolist(), low.round(2).tolist(), high.round(2).tolist()
        ([0.9, nan], [0.6, nan], [0.98, nan])
    """
    samples = counts.sum(axis=1).astype(np.float64)
    n = np.where(samples > 0, samples, np.nan)
    share = np.diagonal(counts) / n
    middle = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * np.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    return share, middle - half, middle + half


# ---------------------------------------------------------------------------------------------------------------------
# The conformal sets of the known clients: how often a set holds the true class or value, and how large the sets are.


def figure_conformal(run: ReadRun) -> Figure | None:
    """Draws the sorted coverage of the clients, above the mean size of each client's sets.

    Example:
        >>> pictures = {"conformal_clients": np.array([[0.95, 2.0], [0.8, 3.0]]), "conformal_alpha": np.array([0.1])}
        >>> figure_conformal(ReadRun("one", {}, "", {}, {}, {}, None, None, pictures)).get_label()
        'Sets hold the answer for 80.0 % of the rows of client 1, the least; 90 % is wanted over all clients'
    """
    table, alpha = run.pictures.get("conformal_clients"), run.pictures.get("conformal_alpha")
    if table is None or alpha is None:
        return None
    known = np.flatnonzero(np.isfinite(table).all(axis=1))
    if len(known) < 2:
        return None
    order = known[np.argsort(-table[known, 0], kind="stable")]
    coverage, size = np.asarray(table[order], dtype=np.float64).T
    wanted, is_class = 1.0 - float(alpha[0]), run.metric == "accuracy"
    what = "Sets hold the answer" if is_class else "Intervals hold the target"
    title = f"{what} for {100 * coverage[-1]:.1f} % of the rows of client {order[-1]}, the least; "
    title += f"{100 * wanted:.3g} % is wanted over all clients"
    figure, (top, low) = pictures.make_canvas(title, 2, 1, size=(pictures.WIDE, 4.2), sharex=True)
    draw_sorted_bars(top, coverage, pictures.ACCENT)
    top.axhline(wanted, **pictures.DASHED)
    top.set_ylabel("coverage for the client")
    top.set_ylim(0, 1.04)
    pictures.use_percent(top.yaxis)
    draw_sorted_bars(low, size, pictures.PALETTE[4])
    low.set_ylabel("labels in a set" if is_class else "width (target units)")
    low.set_ylim(bottom=0)
    low.set_xlim(-0.7, len(order) - 0.3)
    low.set_xlabel(f"{len(order)} clients, best covered first")
    pictures.name_places(low.xaxis, order.tolist(), whole="client ")
    return figure


# ---------------------------------------------------------------------------------------------------------------------
# The drift score of a client: the z-score of the ensemble's disagreement on the data of this client.

MOST_NAMED_CLIENTS = 8


def figure_drift(run: ReadRun) -> Figure | None:
    """Draws the sorted drift scores of the clients; names the clients beyond the threshold."""
    found = sort_clients(run.pictures.get("client_scores"))
    if found is None:
        return None
    z, who = found
    anomaly = np.abs(z) > ANOMALY_Z
    number = int(anomaly.sum())
    title = f"Clients with a drift score beyond {ANOMALY_Z:.0f} standard deviations: {number} of {len(z)}"
    figure, axes = pictures.make_canvas(title, size=(pictures.NARROW, 3.4))
    draw_sorted_bars(axes, np.where(anomaly, z, 0.0), pictures.ORANGE)
    draw_sorted_bars(axes, np.where(anomaly, 0.0, z), pictures.PALETTE[8])
    for threshold in (ANOMALY_Z, -ANOMALY_Z):
        axes.axhline(threshold, **pictures.DASHED)
    axes.axhline(0, color=pictures.GRID, linewidth=1)
    if number:
        far = np.array(who)[np.argsort(-np.abs(z), kind="stable")[:number]].tolist()
        names = ", ".join(map(str, far[:MOST_NAMED_CLIENTS])) + ", ..." * (number > MOST_NAMED_CLIENTS)
        axes.annotate(f"client {names}", (0.08, 0.93), xycoords="axes fraction", color=pictures.ORANGE, fontsize=9)
    axes.set_xlim(-0.7, len(z) - 0.3)
    axes.set_ylim(min(float(z[-1]), -ANOMALY_Z) * 1.12, max(float(z[0]), ANOMALY_Z) * 1.25)
    pictures.name_places(axes.xaxis, who, whole="client ")
    axes.set_xlabel(f"{len(z)} clients, most unlike the others first")
    axes.set_ylabel("drift score (standard deviations)")
    return figure


# ---------------------------------------------------------------------------------------------------------------------
# The picture of a partition: the number of samples of each class at each client, and the sizes of the clients.

MOST_CLIENTS, MOST_CLASSES = 100, 40  # clients and classes that a picture shows one by one


def draw_png(title: str, counts: IntArray, sizes: IntArray, names: Sequence[str]) -> bytes:
    """Draws the number of samples of each class at each client, and the sizes of the clients, as a PNG on white.

    Args:
        title: The title above the picture.
        counts: The number of samples of each class at the first n clients, `[n, C]`; C is 0 for a regression.
        sizes: The number of samples of each client, `[N]`.
        names: The names of the classes.
    """
    counts, sink = counts[:MOST_CLIENTS], io.BytesIO()
    with pictures.use_figure_style(), matplotlib.rc_context({"figure.facecolor": "#ffffff", "axes.grid": False}):
        figure = Figure(figsize=(pictures.WIDE, 3.6), layout="constrained")
        figure.suptitle(title)
        if counts.shape[1]:  # a cell for each client and class, darker for more samples; blank for none
            cells, bars = figure.subplots(1, 2, width_ratios=(3, 2))
            shown = np.where(counts > 0, counts, np.nan).T[:MOST_CLASSES]
            image = cells.imshow(shown, aspect="auto", origin="lower", cmap="viridis_r", vmin=0)
            cells.set_xlabel("client" if len(counts) < MOST_CLIENTS else f"client (the first {MOST_CLIENTS})")
            cells.set_ylabel("class")
            pictures.use_whole_numbers(cells.xaxis)
            if len(shown) <= 12:
                cells.set_yticks(range(len(shown)), [str(name)[:12] for name in names[: len(shown)]])
            figure.colorbar(image, ax=cells, label="rows", pad=0.02)
        else:
            bars = figure.subplots()
        order = np.sort(sizes)[::-1]
        bars.fill_between(np.arange(len(order)), order, color=pictures.ACCENT, step="mid")
        bars.set_ylim(bottom=0)
        bars.set_xlabel("clients, the largest first")
        bars.set_ylabel("rows")
        title = f"{order.min():,} to {order.max():,} rows, {int(np.median(order)):,} in the middle"
        bars.set_title(title, fontsize=9.5)
        pictures.use_whole_numbers(bars.xaxis)
        figure.savefig(sink, format="png", dpi=80, metadata={"Software": None})
    return sink.getvalue()
