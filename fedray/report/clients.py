"""Draws pictures of the final predictions, and of single clients."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedray.core.errors import format_number, name_score
from fedray.core.types import FloatArray, IntArray
from fedray.metrics.classification import ANOMALY_Z
from fedray.report import curves, pictures
from fedray.report.read import ReadRun, list_personal_runs, pivot_rounds
from fedray.scenario.loader import tier_counts
from fedray.scenario.sections import TierKeys

# ---------------------------------------------------------------------------------------------------------------------
# Pictures of the quality of the final predictions: confusion, calibration, and the pictures of regression.

MOST_WRITTEN_CLASSES = 12  # with more classes the cells of the confusion matrix have no numbers
MOST_TURNS = 12  # full rises and falls that a curve over one input may have
MOST_DRAWN_ROWS = 100_000  # targets drawn at most
MOST_DRAWN_INTERVALS = 400  # targets with an interval of their own drawn at most
MOST_NAMED_CLASSES = 20  # with more classes the axes show no names


def figure_calibration(run: ReadRun) -> Figure | None:
    """Draws the reliability diagram of the predictions, and below it the number of samples in each bin."""
    table = run.pictures.get("calibration")
    if table is None or not np.nansum(table[:, 2]):
        return None
    bins = len(table)
    filled = np.flatnonzero(table[:, 2] > 0)
    confidence, right, count = table[filled].T
    gap = float(np.sum(count * np.abs(confidence - right)) / count.sum())
    lean = float(np.sum(count * (confidence - right)) / count.sum())
    word = "too sure" if lean > 0.01 else "too cautious" if lean < -0.01 else "neither too sure nor too cautious"
    title = f"The answers are {word} (calibration error {100 * gap:.1f} %)"
    size = (pictures.NARROW, 4.2)
    figure, (top, low) = pictures.make_canvas(title, 2, 1, size=size, height_ratios=[4, 1], sharex=True)
    left = filled / bins  # only the table knows the bin of a confidence between two bins
    both = np.minimum(confidence, right)
    colors = (pictures.PALETTE[4], pictures.ORANGE, pictures.PALETTE[2])
    parts = ((0.0, both), (both, confidence - both), (both, right - both))
    for (low_end, high), color in zip(parts, colors, strict=True):
        pictures.draw_bars(top, left + 0.08 / bins, low_end, 0.84 / bins, high, facecolor=color)
    top.plot([0, 1], [0, 1], **pictures.DASHED)
    top.set(ylabel="accuracy of these samples", xlim=(0, 1), ylim=(0, 1))
    pictures.draw_key(top, ["accuracy", "too sure", "too cautious"], colors)
    pictures.draw_bars(low, left + 0.08 / bins, 0.0, 0.84 / bins, count, facecolor=pictures.PALETTE[8])
    low.set(xlabel="confidence of the answer", ylabel="samples", ylim=(0, None))
    low.yaxis.set_major_locator(MaxNLocator(2, integer=True))
    pictures.use_percent(low.xaxis, top.yaxis)
    return figure


def figure_confusion(run: ReadRun) -> Figure | None:
    """Draws the confusion matrix. Each row shows the predictions for the samples of one class, and sums to one."""
    counts = run.pictures.get("confusion")
    if counts is None or not counts.sum():
        return None
    names = read_class_names(run, len(counts))
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    off = shares * (1 - np.eye(len(shares)))
    i, j = np.unravel_index(int(off.argmax()), off.shape)
    title = f"Most confused: {100 * off[i, j]:.0f} % of class {names[int(i)]} is answered {names[int(j)]}"
    title = title if off.any() else "No class is taken for another"
    figure, axes = pictures.make_canvas(title, size=(pictures.NARROW, 4.8))
    draw_shares(axes, shares, names)
    axes.set(xlabel="answer", ylabel="true class")
    return figure


def draw_shares(axes: Axes, shares: FloatArray, classes: Sequence[str] = (), *, high: float = 1.0) -> None:
    """Draws a table of shares `[rows, columns]` as cells, and writes the shares of at least 0.5 % in the cells.

    A table of many columns has no written shares. Rows and columns are labeled by the names in `classes`. If there are
    no names or too many names, the labels are numbers. The darkest color stands for the share `high`.
    """
    axes.imshow(shares, cmap=pictures.make_colormap(), vmin=0, vmax=high, label=pictures.SHARES)
    if shares.shape[1] <= MOST_WRITTEN_CLASSES:
        for (i, j), share in np.ndenumerate(shares):
            if share >= 0.005:
                color = "#ffffff" if share > 0.55 * high else pictures.INK
                axes.text(j, i, f"{100 * share:.0f}", ha="center", va="center", fontsize=8.5, color=color)
    if 0 < len(classes) <= MOST_NAMED_CLASSES:
        turn: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
        axes.set_xticks(range(len(classes)), classes, **(turn if max(map(len, classes)) > 3 else {}))
        axes.set_yticks(range(len(classes)), classes)
    else:
        pictures.use_whole_numbers(axes.xaxis, axes.yaxis)
    pictures.hide_frame(axes)


def figure_predictive(run: ReadRun) -> Figure | None:
    """Draws the predicted mean and interval over the input.

    If there are several inputs, draws predictions over targets.
    """
    rows = run.pictures.get("predictive")
    if rows is None:
        return None
    rows = rows[curves.pick_evenly(np.arange(len(rows)), MOST_DRAWN_ROWS)]
    x, y, mean, sd = rows[np.argsort(rows[:, 0])].T
    known = np.isfinite(y)
    inside = 100 * (np.abs(y - mean)[known] <= 1.96 * sd[known]).mean() if known.any() else 0.0
    title = f"{inside:.0f} % of the targets lie in the 95 % interval" if known.any() else "Mean and interval"
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, 4.2))
    look: dict[str, Any] = {"color": pictures.ACCENT}
    # if there are other inputs, the mean would jump from one x to the next
    if np.isfinite(x).all() and np.abs(np.diff(mean)).sum() <= MOST_TURNS * np.ptp(mean):
        axes.plot(x, mean, linewidth=2, label="mean and 95 % interval", **look)
        axes.fill_between(x, mean - 1.96 * sd, mean + 1.96 * sd, alpha=0.2, linewidth=0, label=pictures.BAND, **look)
        dots: dict[str, Any] = {"color": pictures.ORANGE, "markersize": 4, "alpha": 0.8, "rasterized": len(y) > 400}
        axes.plot(x[known], y[known], ".", label="target", **dots)
        axes.set(xlabel="input", ylabel="output (target units)")
    else:
        some = curves.pick_evenly(np.arange(len(y)), MOST_DRAWN_INTERVALS)
        if len(some) < len(y):
            figure.set_label(f"{title} ({len(some)} of {len(y)} drawn)")
        look |= {"fmt": ".", "elinewidth": 0.6, "markersize": 4, "alpha": 0.45, "rasterized": True}
        axes.errorbar(y[some], mean[some], yerr=1.96 * sd[some], label="95 % interval", **look)
        ends = [float(np.nanmin(y)), float(np.nanmax(y))]
        axes.plot(ends, ends, label="right answer", **pictures.DASHED)
        axes.set(xlabel="target (its own units)", ylabel="prediction (target units)")
    axes.legend(loc="upper left", ncols=3)
    return figure


def figure_disagreement(run: ReadRun) -> Figure | None:
    """Draws a cell for each pair of members: the share of samples for which the two predict different classes."""
    pairs = run.pictures.get("disagreement")
    if pairs is None or len(pairs) < 3:
        return None
    mean = float(pairs[~np.eye(len(pairs), dtype=bool)].mean())
    title = f"Two members answer differently on {100 * mean:.1f} % of the samples"
    figure, axes = pictures.make_canvas(title, size=(pictures.NARROW, 4.2))
    draw_shares(axes, pairs, high=max(float(pairs.max()), 1e-9))
    axes.set(xlabel="model", ylabel="other model")
    return figure


def figure_pit(run: ReadRun) -> Figure | None:
    """Draws the histogram of the test targets' probability integral transform.

    The histogram is flat for calibrated predictions.
    """
    shares = run.pictures.get("pit")
    if shares is None or not shares.sum():
        return None
    shares = shares / shares.sum()
    bins = len(shares)
    middle = float(shares[bins // 4 : bins - bins // 4].sum()) / ((bins - 2 * (bins // 4)) / bins)
    word = "too wide" if middle > 1.15 else "too narrow" if middle < 0.85 else "about as wide as the errors"
    figure, axes = pictures.make_canvas(f"The predictive distributions are {word}", size=(pictures.NARROW, 3.0))
    pictures.draw_bars(axes, np.arange(bins) / bins + 0.04 / bins, 0.0, 0.92 / bins, shares, facecolor=pictures.ACCENT)
    axes.axhline(1 / bins, **pictures.DASHED)
    axes.annotate("calibrated", (1, 1 / bins), (0, 3), textcoords="offset points", ha="right", color=pictures.INK)
    axes.set(xlabel="predicted probability of a smaller value than the target (PIT)", ylabel="share of the targets")
    axes.set(xlim=(0, 1), ylim=(0, float(shares.max()) * 1.15))
    pictures.use_percent(axes.yaxis)
    return figure


def figure_coverage(run: ReadRun) -> Figure | None:
    """Draws the observed coverage of central intervals over the nominal coverage."""
    levels = run.pictures.get("coverage")
    if levels is None or not len(levels):
        return None
    nominal, observed = levels[np.argsort(levels[:, 0])].T
    title = f"The {100 * nominal[-1]:.0f} % interval holds {100 * observed[-1]:.0f} % of the targets"
    figure, axes = pictures.make_canvas(title, size=(pictures.NARROW, 3.4))
    axes.plot([0, 1], [0, 1], **pictures.DASHED, label="calibrated")
    axes.plot(nominal, observed, "o-", color=pictures.ACCENT, linewidth=1.8, markersize=5, label="observed")
    axes.set(xlabel="nominal coverage", ylabel="observed coverage", xlim=(0, 1.02), ylim=(0, 1.04))
    pictures.use_percent(axes.xaxis, axes.yaxis)
    axes.grid(visible=True, axis="x")
    axes.legend(loc="upper left")
    return figure


def read_class_names(run: ReadRun, number: int) -> list[str]:
    """Returns the names of the classes, or their numbers if the run has no names.

    Example:
        >>> read_class_names(ReadRun("one", {}, "", {}, {}, {}, None, None, {}), 3)
        ['0', '1', '2']
    """
    names = run.pictures.get("class_names")
    if names is None or len(names) != number:
        return [str(i) for i in range(number)]
    return [str(name) for name in names]


# ---------------------------------------------------------------------------------------------------------------------
# The uncertainty of predictions for out-of-distribution inputs, and for test samples.


def figure_ood(run: ReadRun) -> Figure | None:
    """Draws two histograms of the entropy of predictions, for test samples and for out-of-distribution inputs.

    Example:
        >>> pictures = {"ood_entropies": np.array([[0.0, 0.9, 0.2], [0.5, 0.1, 0.8]]), "ood_auroc": np.array([0.91])}
        >>> figure_ood(ReadRun("one", {}, "", {}, {}, {}, None, None, pictures)).get_label()
        'By the entropy of the answers 91.0 % of the pairs of a test row and an unknown input are told apart'
    """
    table, area = run.pictures.get("ood_entropies"), run.pictures.get("ood_auroc")
    if table is None or area is None or len(table) < 2 or not np.isfinite(table).all():
        return None
    left, *shares = np.asarray(table, dtype=np.float64).T
    width = float(left[1] - left[0])
    title = f"By the entropy of the answers {100 * float(area[0]):.1f} % of the pairs of a test row and an unknown "
    figure, axes = pictures.make_canvas(f"{title}input are told apart", size=(pictures.NARROW, 3.4))
    colors = (pictures.ACCENT, pictures.ORANGE)
    for place, (share, color) in enumerate(zip(shares, colors, strict=True)):
        look: dict[str, Any] = {"at": left + width / 2, "facecolor": color}
        pictures.draw_bars(axes, left + (0.08 + 0.42 * place) * width, 0.0, 0.42 * width, share, **look)
    axes.set(xlabel="entropy of the answer (nats)", ylabel="share of the inputs", xlim=(0.0, left[-1] + width))
    axes.set_ylim(0.0, None)
    pictures.use_percent(axes.yaxis)
    pictures.draw_key(axes, ["test rows", "out-of-distribution inputs"], colors)
    return figure


# ---------------------------------------------------------------------------------------------------------------------
# The loss on the plane through three members, which shows how far apart they lie, and the loss between them.


def figure_loss_plane(run: ReadRun) -> Figure | None:
    """Draws the logarithm of the loss on the plane through models 0, 1 and 2, and marks these models."""
    plane = run.pictures.get("loss_plane")
    if plane is None:
        return None
    left, right, bottom, top = run.pictures["loss_plane_extent"]
    x, y = np.linspace(left, right, plane.shape[1]), np.linspace(bottom, top, plane.shape[0])
    title = "The loss on the plane through models 0, 1 and 2"
    figure, axes = pictures.make_canvas(title, size=(pictures.NARROW, 4.2))
    shown = axes.contourf(x, y, plane, levels=14, cmap="cividis")
    for k, (a, b) in enumerate(run.pictures["loss_plane_points"]):
        axes.plot(a, b, "o", color="#ffffff", markersize=8, markeredgecolor="#000000")
        way, side = (7, "left") if a <= (left + right) / 2 else (-7, "right")  # the side with more room
        look: dict[str, Any] = {"color": "#ffffff", "fontweight": "bold", "ha": side}
        axes.annotate(f"model {k}", (a, b), (way, 5), textcoords="offset points", **look)
    axes.set(xlabel="first direction of the plane (distance between weights)", ylabel="second direction")
    axes.set(xlim=(left, right), ylim=(bottom, top))
    bar = figure.colorbar(shown, label="ln of the loss", ticks=MaxNLocator(5))
    bar.outline.set_visible(False)
    return figure


# ---------------------------------------------------------------------------------------------------------------------
# Pictures of single clients, with their data, the models that suit them, and the clients with bad predictions.

MOST_CLIENT_COLUMNS = 100  # clients in a figure at most
LEAST_SPREAD = 0.005  # if the personal weights differ by less, all look equal in percent


def figure_data(run: ReadRun) -> Figure | None:
    """Draws the stacked label counts of each client."""
    counts = run.pictures.get("label_counts")
    if counts is None or (counts == counts[0]).all():  # equal bars show nothing
        return None
    classes, size = counts.shape[1], counts.sum(axis=1)
    held = float((counts > 0).sum(axis=1).mean())
    title = f"A client holds {held:.3g} of {classes} classes and {size.mean():.4g} samples on average"
    title += f" ({size.min():.0f} to {size.max():.0f})"
    return draw_counts(title, counts, read_class_names(run, classes), run.client_ids(len(counts)))


def draw_counts(title: str, counts: IntArray, names: Sequence[str], ids: IntArray | None = None) -> Figure:
    """Draws the number of samples of each class at each of N clients, `[N, C]`, as stacked bars.

    `names` has the names of the C classes. Without classes, C is 1 and the counts are the sizes of the clients. `ids`
    has the ids of the clients. None means 0 to N - 1.
    """
    clients, classes = counts.shape
    shown = curves.pick_evenly(np.arange(clients), MOST_CLIENT_COLUMNS)
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, 3.4))
    colors = pictures.pick_colors(classes)
    width, bottom = 0.82 if len(shown) <= 60 else 0.92, np.zeros(len(shown))
    for part, color, name in zip(counts[shown].T, colors, names, strict=True):
        look: dict[str, Any] = {"facecolor": color, "rasterized": classes > 20, "label": f"class {name}"}
        pictures.draw_bars(axes, np.arange(len(shown)) - width / 2, bottom, width, part, **look)
        bottom = bottom + part
    axes.set_xlabel("client" if len(shown) == clients else f"client ({len(shown)} of {clients}, evenly chosen)")
    axes.set(ylabel="training samples", xlim=(-0.7, len(shown) - 0.3), ylim=(0, float(bottom.max()) * 1.04))
    pictures.name_places(axes.xaxis, (shown if ids is None else ids[shown]).tolist())
    if 1 < classes <= len(pictures.PALETTE):
        pictures.draw_key(axes, names, colors)
    elif classes > 1:
        ends = (0, classes // 2, classes - 1)
        pictures.draw_key(axes, [f"class {names[i]}" for i in ends], [colors[i] for i in ends])
    return figure


def figure_weights(run: ReadRun) -> Figure | None:
    """Draws the weights with which each client of the run averages the models."""
    alpha = run.pictures.get("alpha")
    if alpha is None or alpha.shape[1] < 2 or float(np.ptp(alpha)) < LEAST_SPREAD:
        return None
    clients, models = alpha.shape
    most = float(alpha.max(axis=1).mean())
    title = f"Personal weights: a client's favourite model gets {100 * most:.0f} % (equal: {100 / models:.0f} %)"
    shown = curves.pick_evenly(np.arange(clients), MOST_CLIENT_COLUMNS)
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, float(np.clip(1.2 + 0.22 * models, 1.9, 5))))
    look: dict[str, Any] = {"vmin": 0, "vmax": float(alpha.max()), "aspect": "auto", "label": pictures.SHARES}
    picture = axes.imshow(alpha[shown].T, cmap=pictures.make_colormap(), **look)
    axes.set_yticks(range(models) if models <= 12 else np.linspace(0, models - 1, 6).astype(int))
    axes.set_xlabel("client" if len(shown) == clients else f"client ({len(shown)} of {clients}, evenly chosen)")
    axes.set_ylabel("model")
    pictures.name_places(axes.xaxis, run.client_ids(clients)[shown].tolist())
    pictures.hide_frame(axes)
    bar = figure.colorbar(picture, pad=0.015, aspect=12, label="weight")
    if bar.solids is not None:
        bar.solids.set_rasterized(True)
    bar.outline.set_visible(False)
    pictures.use_percent(bar.ax.yaxis)
    return figure


def figure_clients(run: ReadRun) -> Figure | None:
    """Draws the accuracy or RMSE of each client, the best first.

    For a regression, also draws each client's RMSE if all clients average the models with the same weights.
    """
    is_class = "client_accuracy" in run.pictures
    name, found = ("accuracy", "client_accuracy") if is_class else ("RMSE", "client_rmse")
    values = run.pictures.get(found)
    ranked = sort_clients(values if is_class or values is None else -values)
    if values is None or ranked is None:
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
    axes.set(xlabel=f"{len(each)} clients, best first", ylabel=f"{name} for the client", xlim=(-0.7, len(each) - 0.3))
    axes.set_ylim(0, None)
    pictures.name_places(axes.xaxis, run.client_ids(len(values))[who].tolist(), whole="client ")
    if is_class:
        pictures.use_percent(axes.yaxis)
    return figure


def draw_sorted_bars(axes: Axes, values: FloatArray, color: str) -> None:
    """Draws a bar for each of the sorted values `[N]`. If there are many values, the bars touch each other."""
    width = 0.84 if len(values) <= 120 else 1.0
    look: dict[str, Any] = {"facecolor": color, "rasterized": len(values) > pictures.MOST_VECTOR_MARKS}
    pictures.draw_bars(axes, np.arange(len(values)) - width / 2, 0.0, width, values, **look)


def sort_clients(values: FloatArray | None) -> tuple[FloatArray, list[int]] | None:
    """Sorts the finite values of N clients, the highest first. Returns the values and the clients in this order.

    Returns None if all values are equal, or if fewer than two are finite.

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
# Accuracy by class and by tier, which a mean over all clients hides, and by tier over rounds (`evaluate.clients`).

WIDE_FROM = 16  # with more classes the figure is as wide as the page
Z = 1.96  # normal quantile of a 95 % interval


def figure_classes(run: ReadRun) -> Figure | None:
    """Draws the share of correct predictions for each class, with its interval, the best class first."""
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
    title += " by the common answer" * bool(list_personal_runs([run]))
    size = (pictures.WIDE, 3.2) if len(order) > WIDE_FROM else (pictures.NARROW, 3.8)
    figure, axes = pictures.make_canvas(title, size=size)
    error = np.maximum(np.stack([right - low[order], high[order] - right]), 0.0)
    look: dict[str, Any] = {"color": pictures.ACCENT, "ecolor": pictures.ACCENT, "elinewidth": 1.2, "markersize": 5}
    axes.errorbar(np.arange(len(order)), right, yerr=error, fmt="o", **look)
    pictures.name_places(axes.xaxis, names, whole=None if len(names) <= MOST_NAMED_CLASSES else "class ")
    if len(names) <= MOST_NAMED_CLASSES:
        axes.set_xticks(range(len(names)))
        axes.tick_params(axis="x", labelrotation=40 if max(map(len, names)) > 3 else 0)
    axes.set(xlabel="class, the best answered first", ylabel="accuracy within the class")
    pictures.use_percent(axes.yaxis)
    return figure


def figure_tiers(run: ReadRun) -> Figure | None:
    """Draws the score of each client as a dot, tier by tier, and the mean of each tier. Clients may have no jobs.

    Example:
        >>> keys = {"clients": {"tiers": {"strong": {"number": 2}, "weak": {}}}}
        >>> values = {"client_accuracy": np.array([0.5, 0.7, 0.1])}
        >>> figure_tiers(ReadRun("one", keys, "", {}, {}, {}, None, None, values)).get_label()
        "Mean accuracy of the tiers' clients: strong 60.0 %, weak 10.0 %"
    """
    name = "accuracy" if "client_accuracy" in run.pictures else "rmse"
    values, tiers = run.pictures.get(f"client_{name}"), run.client_keys.get("tiers") or {}
    if values is None or len(tiers) < 2 or len(values) < 2:  # pooled data have one client
        return None
    given = {one: TierKeys(share=keys.get("share"), number=keys.get("number")) for one, keys in tiers.items()}
    numbers = tier_counts(given, len(values))
    each = dict(zip(numbers, np.split(values, np.cumsum([*numbers.values()])[:-1]), strict=True))
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
    axes.set(xlabel="tier (clients)", ylabel=f"{what} for the client", xlim=(-0.6, len(groups) - 0.4))
    if name == "accuracy":
        pictures.use_percent(axes.yaxis)
    return figure


def figure_tier_rounds(run: ReadRun) -> Figure | None:
    """Draws the mean score of each tier over the rounds, from the clients that `evaluate.clients` records.

    Example:
        The lines of two tiers are drawn if they differ.

        >>> import pyarrow as pa
        >>> table = {"round": [0, 0, 1, 1], "tier": ["a", "b"] * 2, "replicate": [0] * 4, "fold": [0] * 4}
        >>> tables = [pa.table(table | {"accuracy": [0.1, 0.1, 0.5, last]}) for last in (0.7, 0.5)]
        >>> keys = {"clients": {"tiers": {"a": {}, "b": {}}}}
        >>> runs = [ReadRun("one", keys, "", {}, {}, {}, None, None, {}, each) for each in tables]
        >>> figure_tier_rounds(runs[0]).get_label(), figure_tier_rounds(runs[1])
        ('The tiers end at a 50.0 %, b 70.0 %', None)
    """
    if run.client_scores is None or run.metric not in run.client_scores.column_names:
        return None
    keys = ["tier", "replicate", "fold", "round"]
    means = run.client_scores.to_pandas().groupby(keys, as_index=False)[run.metric].mean()
    ends = means.groupby(keys[1:])[run.metric].agg(["min", "max"])
    if np.allclose(ends["min"], ends["max"], equal_nan=True):  # all tiers have the same line
        return None
    tiers = {tier: means[means["tier"] == tier] for tier in run.tiers}
    found = {tier: pivot_rounds(each, each[run.metric]) for tier, each in tiers.items()}
    lines = {tier: curve for tier, curve in found.items() if curve is not None}
    if len(lines) < 2 or max(len(curve.round) for curve in lines.values()) < 2:
        return None
    text = ", ".join(f"{tier} {format_number(float(curve.mean[-1]), run.metric)}" for tier, curve in lines.items())
    figure, axes = pictures.make_canvas(f"The tiers end at {text}", size=(pictures.NARROW, 3.4))
    for (tier, curve), color in zip(lines.items(), pictures.pick_colors(len(lines)), strict=True):
        curves.draw_mean_line(axes, curve.round, curve, color=color, width=1.8, label=tier)
    axes.set_xlabel(curves.label_rounds(run))
    pictures.use_whole_numbers(axes.xaxis)
    curves.label_headline(axes, run.metric)
    axes.set_ylabel(f"{name_score(run.metric, unit=True)} for the client")
    curves.cut_beginning(axes, run.metric, list(lines.values()))
    curves.draw_legend(axes, run.metric)
    return figure


def measure_classes(counts: NDArray[Any]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Computes the share of correct predictions for each class, and the ends of Wilson's 95 % interval, `[C]` each.

    Args:
        counts: The confusion matrix, `[C, C]`, whose rows are true classes. The results of a class without samples are
            NaN.

    Source: Wilson, "Probable inference", Journal of the American Statistical Association 22 (1927).

    Example:
        Nobody has the second class, and no sample of the third is answered rightly.

        >>> share, low, high = measure_classes(np.array([[9, 1, 0], [0, 0, 0], [4, 5, 0]]))
        >>> share.tolist(), low.round(2).tolist(), high.round(2).tolist(), float(low[2])
        ([0.9, nan, 0.0], [0.6, nan, 0.0], [0.98, nan, 0.3], 0.0)
    """
    samples = counts.sum(axis=1).astype(np.float64)
    n = np.where(samples > 0, samples, np.nan)
    share = np.diagonal(counts) / n
    middle = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * np.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    return share, np.maximum(middle - half, 0.0), np.minimum(middle + half, 1.0)


# ---------------------------------------------------------------------------------------------------------------------
# The conformal sets of the known clients, with the share of sets that hold the true class or value, and their sizes.


def figure_conformal(run: ReadRun) -> Figure | None:
    """Draws the coverage of each client's conformal sets, sorted, and below it the mean size of these sets.

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
    ids = run.client_ids(len(table))[order].tolist()
    wanted, is_class = 1.0 - float(alpha[0]), run.metric == "accuracy"
    what = "Sets hold the answer" if is_class else "Intervals hold the target"
    title = f"{what} for {100 * coverage[-1]:.1f} % of the rows of client {ids[-1]}, the least; "
    title += f"{100 * wanted:.3g} % is wanted over all clients"
    figure, (top, low) = pictures.make_canvas(title, 2, 1, size=(pictures.WIDE, 4.2), sharex=True)
    draw_sorted_bars(top, coverage, pictures.ACCENT)
    top.axhline(wanted, **pictures.DASHED)
    top.set(ylabel="coverage for the client", ylim=(0, 1.04))
    pictures.use_percent(top.yaxis)
    draw_sorted_bars(low, size, pictures.PALETTE[4])
    low.set_xlabel(f"{len(order)} clients, best covered first")
    low.set(ylabel="labels in a set" if is_class else "width (target units)", xlim=(-0.7, len(order) - 0.3))
    low.set_ylim(0, None)
    pictures.name_places(low.xaxis, ids, whole="client ")
    return figure


# ---------------------------------------------------------------------------------------------------------------------
# The drift score of a client: the z-score of the ensemble's disagreement on the data of this client.

MOST_NAMED_CLIENTS = 8


def figure_drift(run: ReadRun) -> Figure | None:
    """Draws the sorted drift scores of the clients. Names the clients whose scores are unusually high or low.

    Example:
        >>> scores = {"client_scores": np.array([2.0, -0.5, -0.5, -0.5, -0.5])}
        >>> figure_drift(ReadRun("one", {}, "", {}, {}, {}, None, None, scores)).get_label()
        'Clients with a drift score beyond 3 standard deviations: 0 of 5 (possible from 11 clients on)'
    """
    scores = run.pictures.get("client_scores")
    found = sort_clients(scores)
    if scores is None or found is None:
        return None
    z, who = found[0], run.client_ids(len(scores))[found[1]].tolist()
    anomaly = np.abs(z) > ANOMALY_Z
    number = int(anomaly.sum())
    title = f"Clients with a drift score beyond {ANOMALY_Z:.0f} standard deviations: {number} of {len(z)}"
    if len(z) <= ANOMALY_Z**2 + 1:
        title += f" (possible from {ANOMALY_Z**2 + 2:.0f} clients on)"
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
    axes.set(xlabel=f"{len(z)} clients, highest score first", ylabel="drift score (standard deviations)")
    axes.set(xlim=(-0.7, len(z) - 0.3), ylim=(min(float(z[-1]), -ANOMALY_Z) * 1.12, max(float(z[0]), ANOMALY_Z) * 1.25))
    pictures.name_places(axes.xaxis, who, whole="client ")
    return figure


# ---------------------------------------------------------------------------------------------------------------------
# Pictures of a stack: accuracy of sub models, confusion of the stack and of the plain average, weights of the meta
# model.


def figure_folds(run: ReadRun) -> Figure | None:
    """Draws the test accuracy of every sub model of a stack, with a row per base model and a column per fold."""
    table = run.pictures.get("stack_folds")
    if table is None:
        return None
    title = f"Sub models reach {100 * table.min():.0f} to {100 * table.max():.0f} %"
    size = (pictures.NARROW, float(np.clip(1.4 + 0.45 * len(table), 2.2, 5.0)))
    figure, axes = pictures.make_canvas(title, size=size)
    draw_shares(axes, table)
    axes.set_aspect("auto")
    axes.set_yticks(range(len(table)), [str(name) for name in run.pictures["stack_bases"]])
    axes.set(xlabel="left out (client, or fold of every client)", ylabel="base")
    return figure


def figure_confusions(run: ReadRun) -> Figure | None:
    """Draws two confusion matrices side by side: of the plain average of the sub models, and of the stack."""
    both = [run.pictures.get(name) for name in ("confusion_average", "confusion")]
    counts = [np.asarray(table, dtype=np.float64) for table in both if table is not None and table.sum()]
    if len(counts) < 2:
        return None
    right = [float(np.trace(table) / table.sum()) for table in counts]
    change = 100 * (right[1] - right[0])
    title = f"Stacking {'gains' if change >= 0 else 'loses'} {abs(change):.1f} points on the plain average of its "
    figure, axes = pictures.make_canvas(f"{title}sub models", 1, 2, size=(pictures.WIDE, 5.0))
    names = read_class_names(run, len(counts[0]))
    for one, table, what, share in zip(axes, counts, ("plain average", "stack"), right, strict=True):
        draw_shares(one, table / np.maximum(table.sum(axis=1, keepdims=True), 1), names)
        one.set_title(f"{what}, {100 * share:.1f} % right", fontsize=9.5, loc="left")
        one.set(xlabel="answer", ylabel="true class")
    return figure


def figure_meta(run: ReadRun) -> Figure | None:
    """Draws the weights that a stack's softmax meta model gives to each base model's class probabilities."""
    weights = run.pictures.get("meta_weights")
    if weights is None:
        return None
    classes, bases = len(weights), weights.shape[1] // len(weights)
    most = max(float(np.abs(weights).max()), 1e-9)
    opposing = sum((each.diagonal() < 0).sum() for each in np.split(weights, bases, axis=1))
    title = f"{opposing} of {bases * classes} probabilities speak against their own class"
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, float(np.clip(1.2 + 0.26 * classes, 2.4, 5.0))))
    shown = axes.imshow(weights, cmap="RdBu", vmin=-most, vmax=most, aspect="auto")
    for i in range(1, bases):
        axes.axvline(i * classes - 0.5, color=pictures.INK, linewidth=1)
    names = [str(name) for name in run.pictures["stack_bases"]]
    names = names if len(names) == bases else [str(i) for i in range(bases)]  # number of sub models side by side
    known = read_class_names(run, classes)
    columns = [f"class {one} by {base}" for base in names for one in known]
    ticks = {(i + 0.5) * classes - 0.5: base for i, base in enumerate(names)}
    pictures.name_places(axes.xaxis, columns, whole="probability of ", ticks=ticks)
    if classes <= MOST_NAMED_CLASSES:
        axes.set_yticks(range(classes), known)
    pictures.hide_frame(axes)
    axes.set(xlabel="probability of class 0, 1, ... by base", ylabel="answer")
    bar = figure.colorbar(shown, label="weight")
    bar.outline.set_visible(False)
    return figure


# ---------------------------------------------------------------------------------------------------------------------
# The graph of a random walk, and how often each client held a model.

MOST_NODES = 300
MOST_NAMED_NODES = 40  # with more nodes the graph shows no numbers


def count_visits(run: ReadRun) -> tuple[IntArray, IntArray] | None:
    """Returns the graph's edges, `[E, 2]`, and how often each client trained in the first replicate and fold, `[N]`.

    Returns None if the run has no graph or a large graph. With `data.test_clients` it also returns None, because the
    ids of clients are then not the numbers of nodes.
    """
    edges, table = run.pictures.get("graph_edges"), run.first_world()
    unseen = (run.scenario.get("data") or {}).get("test_clients")
    if edges is None or table is None or unseen is not None or (nodes := int(edges.max()) + 1) > MOST_NODES:
        return None
    return edges, np.bincount(table["client"].to_numpy(), minlength=nodes)


def figure_graph(run: ReadRun) -> Figure | None:
    """Draws the graph. Clients that trained models more often are larger and darker nodes."""
    found = count_visits(run)
    if found is None:
        return None
    edges, visits = found
    nodes = len(visits)
    most = int(visits.argmax())
    title = f"Client {most} trained most often: {visits[most]} of {visits.sum()} steps"
    title += f" ({100 * visits[most] / visits.sum():.1f} %; equal shares: {100 / nodes:.1f} %)"
    figure, axes = pictures.make_canvas(title, size=(pictures.NARROW, 4.6))
    place = layout_graph(edges, nodes)
    axes.add_collection(LineCollection(list(place[edges]), colors=pictures.GRID, linewidths=1.0, zorder=1))
    share = visits / max(1, visits.max())
    area = (0.35 + 0.65 * share) * min(520.0, 9000.0 / nodes)
    axes.scatter(
        *place.T, s=area, c=share, cmap=pictures.make_colormap(), vmin=0, vmax=1, edgecolors=pictures.MUTED, zorder=2
    )
    if nodes <= MOST_NAMED_NODES:
        for i, (x, y) in enumerate(place):
            color = pictures.PAPER if share[i] > 0.55 else pictures.INK
            axes.text(x, y, str(i), ha="center", va="center", fontsize=8, color=color, zorder=3)
    axes.set_aspect("equal")
    axes.margins(0.08)
    axes.set_axis_off()
    return figure


def figure_visits(run: ReadRun) -> Figure | None:
    """Draws each client's share of the steps, and the share that the client would have in an endless walk."""
    found = count_visits(run)
    if found is None:
        return None
    edges, visits = found
    nodes = len(visits)
    law = find_stationary_law(run, edges, nodes)
    share = visits / max(1, visits.sum())
    off = 0.5 * float(np.abs(share - law).sum())
    title = f"Visits are {100 * off:.0f} % of the steps away from the stationary law"
    figure, axes = pictures.make_canvas(title, size=(pictures.NARROW, 4.6))
    pictures.draw_bars(axes, np.arange(nodes) - 0.41, np.zeros(nodes), 0.82, share, facecolor=pictures.ACCENT)
    look: dict[str, Any] = {"drawstyle": "steps-mid", "color": pictures.INK, "linewidth": 1.4}
    axes.plot(np.arange(nodes), law, label="_stationary law", **look)
    axes.set(xlabel="client", ylabel="share of the steps", xlim=(-0.7, nodes - 0.3))
    axes.set_ylim(0, 1.1 * float(max(share.max(), law.max())))
    pictures.use_whole_numbers(axes.xaxis)
    pictures.use_percent(axes.yaxis)
    pictures.draw_key(axes, ["measured", "stationary law"], [pictures.ACCENT, pictures.INK])
    return figure


def layout_graph(edges: IntArray, nodes: int) -> FloatArray:
    """Computes positions of the nodes, `[N, 2]`, with coordinates between -1 and 1.

    The nodes are on a circle if the graph is a ring or has many edges. Otherwise they have a Kamada-Kawai layout.
    """
    import networkx as nx  # most runs have no graph

    graph = nx.Graph(edges.tolist())
    degree = np.bincount(edges.ravel(), minlength=nodes)
    circular = bool((degree == 2).all()) or len(edges) > 3 * nodes
    placed = nx.circular_layout(sorted(graph)) if circular else nx.kamada_kawai_layout(graph)
    return np.array([placed[i] for i in range(nodes)])


def find_stationary_law(run: ReadRun, edges: IntArray, nodes: int) -> FloatArray:
    """Computes the share of the steps that an endless walk spends at each node, `[N]`.

    For Metropolis steps the shares are equal. Otherwise the share of a node is proportional to its degree.

    Example:
        >>> run = ReadRun("star", {}, "", {}, {}, {}, None, None, {})
        >>> find_stationary_law(run, np.array([[0, 1], [0, 2]]), 3).tolist()
        [0.5, 0.25, 0.25]
    """
    if (run.scenario.get("graph") or {}).get("transition") == "metropolis":
        return np.full(nodes, 1.0 / nodes)
    degree = np.bincount(edges.ravel(), minlength=nodes)
    return np.asarray(degree / degree.sum())
