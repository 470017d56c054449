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

from fedray.core.text import choose_unit, format_bytes, format_number, format_seconds, is_share
from fedray.metrics.names import lower_is_better
from fedray.report import curves, style
from fedray.report.read import ReadRun

DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
COMPARED_METRICS: tuple[str, ...] = (
    "accuracy",
    "accuracy_average",
    "accuracy_mean",
    "accuracy_max",
    "personal_accuracy",
    "personal_p10",
    "rmse",
    "rmse_mean",
    "rmse_min",
)
COMPARED_METRICS += ("nll", "nll_residual", "brier", "ece", "crps", "coverage_95", "sharpness", "disagreement")
COST_COLUMNS = (
    ("up_bytes", "uplink"),
    ("down_bytes", "downlink"),
    ("sim_seconds", "virtual time"),
    ("wall_seconds", "wall time"),
)


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
    lines = []
    for index, run in enumerate(runs):
        found = curves.read_curve_over(run, what) if run.metric == metric else None
        if found is not None:
            lines.append((index, run.name, found))
    if not lines:
        return None
    better = (max if metric == "accuracy" else min)(lines, key=lambda one: one[2][1].mean[-1])
    end = format_number(float(better[2][1].mean[-1]), metric)
    word = "accuracy" if metric == "accuracy" else "RMSE"
    wide = what == "rounds"
    title = {"rounds": f"{better[1]} ends best: {end} {word}", "bytes": f"{word[0].upper() + word[1:]} for its bytes"}
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
    """Header and rows: final metrics with mean +- sd, the best of each marked."""
    metrics = [name for name in COMPARED_METRICS if any(_mean(run, name) is not None for run in runs)]
    best = {name: _best(runs, name) for name in metrics}
    head = ["run", *(_word(name) for name in metrics)]
    return head, [
        [ScoreCell(run.name), *(ScoreCell(format_cell(run, name), _mean(run, name) == best[name]) for name in metrics)]
        for run in runs
    ]


def make_cost_table(runs: list[ReadRun]) -> tuple[list[str], list[list[ScoreCell]]]:
    """Header and rows: what each run is, and its bytes and seconds."""
    head = ["run", "method", "data", "rounds", "n", *(word for _, word in COST_COLUMNS)]
    rows = []
    for run in runs:
        cells = [
            ScoreCell(run.name),
            *(ScoreCell(str(run.summary.get(key, "-"))) for key in ("method", "data", "rounds")),
        ]
        cells.append(ScoreCell(str(run.worlds)))
        totals = run.summary.get("totals", {})
        for key, _ in COST_COLUMNS:
            human = format_bytes if key.endswith("bytes") else format_seconds
            cells.append(ScoreCell(human(totals[key]) if isinstance(totals.get(key), int | float) else "-"))
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


def _best(runs: list[ReadRun], name: str) -> float | None:
    values = [value for run in runs if (value := _mean(run, name)) is not None]
    if len(values) < 2 or name in ("coverage_95", "disagreement"):
        return float("nan")
    return min(values) if lower_is_better(name) else max(values)


def _word(name: str) -> str:
    words = {"accuracy_mean": "members' mean", "accuracy_max": "best member", "rmse_mean": "members' mean RMSE"}
    words |= {
        "rmse_min": "best member's RMSE",
        "personal_accuracy": "personalised",
        "personal_p10": "personalised, p10",
    }
    words |= {
        "accuracy_average": "plain average",
        "rmse": "RMSE",
        "nll": "NLL",
        "nll_residual": "NLL (residual noise)",
        "ece": "ECE",
        "brier": "Brier",
        "crps": "CRPS",
    }
    return words.get(name, name.replace("coverage_95", "95 % coverage"))


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
    found = [(name, metrics) for name, metrics in found if all(part in metrics for part in parts)]
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
