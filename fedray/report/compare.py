"""Several runs in one picture and one table.

Example:
    >>> format_deviation(0.0123, "accuracy"), format_deviation(0.0123, "rmse")
    ('1.2 %', '0.012')
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from fedray.core.text import TOTALS, choose_unit, format_number, format_total, is_share, name_score
from fedray.core.types import FloatArray
from fedray.metrics.names import lower_is_better
from fedray.report import curves, style
from fedray.report.read import Curve, ReadRun

Line = tuple[int, str, tuple[FloatArray, Curve]]  # of a run: its place, its name, its curve and where it lies
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
COMPARED_METRICS: tuple[str, ...] = (
    "accuracy",
    "accuracy_average",
    "accuracy_mean",
    "accuracy_max",
    "personal_accuracy",
    "personal_p10",
    "personal_rmse",
    "rmse",
    "rmse_mean",
    "rmse_min",
)
COMPARED_METRICS += ("nll", "nll_residual", "brier", "ece", "crps", "coverage_95", "sharpness", "disagreement")


class ScoreCell(NamedTuple):
    """One cell of a table.

    Attributes:
        text: what it shows.
        best: whether it is the best of its column.
    """

    text: str
    best: bool = False


def overlay_curves(runs: list[ReadRun], metric: str, what: str) -> Figure | None:
    """The headline metric of every run that has it, in one picture.

    Args:
        runs: in the order of their colours.
        metric: `accuracy` or `rmse`.
        what: `rounds`, `bytes` or `seconds`, on the horizontal axis.
    """
    lines: list[Line] = []
    for index, run in enumerate(runs):
        found = curves.read_curve_over(run, what) if run.metric == metric else None
        if found is not None:
            lines.append((index, run.name, found))
    if not lines:
        return None
    word = name_score(metric)
    wide = what == "rounds"
    title = {"rounds": _tell_best(runs, metric, lines), "bytes": f"{word[0].upper() + word[1:]} for its bytes"}
    title["seconds"] = f"{word[0].upper() + word[1:]} for its virtual time"
    figure, axes = style.make_canvas(title[what], size=(style.WIDE, 4.6) if wide else (style.NARROW, 3.4))
    colors = style.pick_colors(len(runs))
    size, unit = (1.0, "") if wide else choose_unit(what, max(float(x[-1]) for _, _, (x, _) in lines))
    for index, name, (x, curve) in lines:
        curves.draw_mean_line(axes, x / size, curve, color=colors[index], width=2.0, label=name)
        axes.lines[-1].set_linestyle(DASHES[index % len(DASHES)])
    words = {"rounds": "rounds completed", "bytes": f"bytes up and down ({unit})", "seconds": f"virtual time ({unit})"}
    axes.set_xlabel(words[what])
    if wide:
        style.use_whole_numbers(axes.xaxis)
    curves.label_headline(axes, metric)
    if wide or len(lines) <= 6:
        curves.draw_legend(axes, metric)
    return figure


def _tell_best(runs: list[ReadRun], metric: str, lines: list[Line]) -> str:
    """Which run ends best, as far as the spread over the worlds lets one say so."""
    at_end = {index: found[1].mean[-1] for index, _, found in lines}
    best = find_best(runs, metric)
    first = best[0] if best else (min if lower_is_better(metric) else max)(at_end, key=lambda i: at_end[i])
    value = format_cell(runs[first], metric) if best else format_number(float(at_end[first]), metric)
    end = f"{value} {name_score(metric)}"
    if len(best) > 1:
        names = ", ".join(runs[i].name for i in best[:4]) + (" and others" if len(best) > 4 else "")
        return f"{names} end alike, within twice the standard error: {end}"
    if len(lines) > 1 and min(run.worlds for run in runs) == 1:
        return f"{runs[first].name} ends best, without the replicates to be sure: {end}"
    return f"{runs[first].name} ends best: {end}"


def figure_clients(runs: list[ReadRun]) -> Figure | None:
    """Accuracy of the clients of every run, sorted: the left end is who is served worst."""
    named = [(i, run) for i, run in enumerate(runs) if "client_accuracy" in run.pictures]
    if len(named) < 2:
        return None
    figure, axes = style.make_canvas("Who is served worst: the clients of each run, sorted", size=(style.WIDE, 3.8))
    for i, run in named:
        each = np.sort(run.pictures["client_accuracy"][np.isfinite(run.pictures["client_accuracy"])])
        share = (np.arange(len(each)) + 0.5) / max(len(each), 1)
        axes.plot(share, each, color=style.pick_colors(len(runs))[i], linestyle=DASHES[i % len(DASHES)], label=run.name)
    axes.set_xlabel("share of the clients, worst first")
    axes.set_ylabel("accuracy for the client")
    for axis in (axes.xaxis, axes.yaxis):
        style.use_percent(axis)
    style.draw_grid(axes)
    curves.draw_legend(axes, "accuracy")
    return figure


def make_comparison_table(runs: list[ReadRun]) -> tuple[list[str], list[list[ScoreCell]]]:
    """Header and rows: final metrics with mean +- sd; the best of each is marked, and what cannot be told from it."""
    metrics = [name for name in COMPARED_METRICS if any(_mean(run, name) is not None for run in runs)]
    best = {name: find_best(runs, name) for name in metrics}
    head = ["run", *(name_score(name) for name in metrics)]
    return head, [
        [ScoreCell(run.name), *(ScoreCell(format_cell(run, name), i in best[name]) for name in metrics)]
        for i, run in enumerate(runs)
    ]


def make_cost_table(runs: list[ReadRun]) -> tuple[list[str], list[list[ScoreCell]]]:
    """Header and rows: what each run is, the bytes of one of its worlds, and its seconds."""
    head = ["run", "method", "data", "rounds", "n", *(name_score(key) for key in TOTALS)]
    rows = []
    for run in runs:
        cells = [
            ScoreCell(run.name),
            *(ScoreCell(str(run.summary.get(key, "-"))) for key in ("method", "data", "rounds")),
        ]
        cells.append(ScoreCell(str(run.worlds)))
        totals = run.summary.get("totals", {})
        for key in TOTALS:
            share = run.worlds if key.endswith("bytes") else 1
            known = isinstance(totals.get(key), int | float)
            cells.append(ScoreCell(format_total(key, totals[key] / share) if known else "-"))
        rows.append(cells)
    return head, rows


def find_differences(runs: list[ReadRun]) -> list[tuple[str, list[str]]]:
    """Scenario keys whose values are not the same in all runs."""
    flat = [_flat(run.scenario) for run in runs]
    keys = dict.fromkeys(key for one in flat for key in one)
    rows = [(key, [one.get(key, "-") for one in flat]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]


def format_cell(run: ReadRun, name: str) -> str:
    """`mean +- sd` of a final metric."""
    entry = run.summary.get("metrics", {}).get(name)
    if not entry or entry.get("mean") is None:
        return "-"
    if entry.get("sd") is None:
        return format_number(entry["mean"], name)
    return f"{format_number(entry['mean'], name).removesuffix(' %')} \u00b1 {format_deviation(entry['sd'], name)}"


def format_deviation(sd: float, name: str) -> str:
    """A standard deviation in the unit of its metric."""
    return f"{100 * sd:.1f} %" if is_share(name) else f"{sd:.2g}"


def _mean(run: ReadRun, name: str) -> float | None:
    entry = run.summary.get("metrics", {}).get(name) or {}
    value = entry.get("mean")
    return float(value) if value is not None else None


def find_best(runs: list[ReadRun], name: str) -> list[int]:
    """Which runs have the best final mean of a metric, or one that differs by less than twice the standard error.

    The standard error of a difference is `sqrt(sd_1^2 / n_1 + sd_2^2 / n_2)`; a run of one world has none of its own.

    Args:
        runs: to be compared.
        name: of the metric.

    Returns:
        Places in `runs`, the best one first; empty where fewer than two runs have the metric, or no value is better.
    """
    means = {i: value for i, run in enumerate(runs) if (value := _mean(run, name)) is not None}
    if len(means) < 2 or name in ("coverage_95", "disagreement"):
        return []
    first = (min if lower_is_better(name) else max)(means, key=lambda i: means[i])
    error = {i: _squared_error(runs[i], name) for i in means}
    alike = [i for i in means if i != first and abs(means[i] - means[first]) <= 2 * (error[i] + error[first]) ** 0.5]
    return [first, *alike]


def _squared_error(run: ReadRun, name: str) -> float:
    """The squared standard error of a final mean; 0 where one world says nothing about it."""
    entry = run.summary["metrics"][name]
    return (entry.get("sd") or 0.0) ** 2 / max(1, entry.get("n") or 1)


def list_caveats(runs: list[ReadRun]) -> list[str]:
    """What a reader must know before runs of different lengths or numbers of replicates are compared.

    Example:
        >>> short, long = (ReadRun(f"r{n}", {}, "", {}, {"rounds": n}, {}, None, None, {}) for n in (5, 9))
        >>> for line in list_caveats([short, long]):
        ...     print(line)
        The runs differ in their rounds: r5 5, r9 9.
        No run has replicates or folds: nothing says how far chance goes.
    """
    found = []
    for what, values in (
        ("rounds", [run.summary.get("rounds", "unknown") for run in runs]),
        ("number of replicates and folds", [run.worlds for run in runs]),
    ):
        if len(set(values)) > 1:
            each = ", ".join(f"{run.name} {value}" for run, value in zip(runs, values, strict=True))
            found.append(f"The runs differ in their {what}: {each}.")
    if all(run.worlds == 1 for run in runs):
        found.append("No run has replicates or folds: nothing says how far chance goes.")
    return found


def _flat(value: Any, prefix: str = "") -> dict[str, str]:
    if not isinstance(value, dict):
        return {prefix: value if isinstance(value, str) else json.dumps(value)}
    return {
        k: v for key, inner in value.items() for k, v in _flat(inner, f"{prefix}.{key}" if prefix else str(key)).items()
    }


def figure_decomposition(runs: list[ReadRun]) -> Figure | None:
    """Noise, bias and variance of each run on a toy with a known mean (FE eq. 10): they add up to the squared error."""
    parts = ("noise", "bias2", "variance")
    found = [(run.name, run.summary.get("metrics", {})) for run in runs]
    found = [(name, m) for name, m in found if all(m.get(part, {}).get("mean") is not None for part in parts)]
    if not found:
        return None
    values = np.array([[max(0.0, metrics[part]["mean"]) for part in parts] for _, metrics in found])
    best = int(values[:, 2].argmin())
    title = f"{found[best][0]} varies least: {values[best, 2]:.2g} of {values[best].sum():.2g} squared error"
    figure, axes = style.make_canvas(title, size=(style.NARROW, 3.4))
    colors = (style.PALETTE[8], style.PALETTE[1], style.ACCENT)
    for i, color in enumerate(colors):
        style.draw_bars(
            axes, np.arange(len(found)) - 0.35, values[:, :i].sum(axis=1), 0.7, values[:, i], facecolor=color
        )
    error = [1.96 * (m["variance"]["sd"] or 0.0) / max(1, m["variance"]["n"]) ** 0.5 for _, m in found]
    axes.errorbar(np.arange(len(found)), values.sum(axis=1), yerr=error, fmt="none", ecolor=style.INK, elinewidth=1.2)
    axes.set_xticks(np.arange(len(found)), [name for name, _ in found])
    axes.set_ylabel("squared error (target units)")
    axes.set_ylim(bottom=0)
    style.draw_key(axes, ["noise", "bias\u00b2", "variance"], colors)
    style.draw_grid(axes)
    return figure
