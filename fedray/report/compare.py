"""Several runs in one picture and one table.

Example:
    >>> format_deviation(0.0123, "accuracy"), format_deviation(0.0123, "rmse")
    ('1.2 %', '0.012')
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedray.core.text import TOTALS, choose_unit, format_digits, format_number, format_total, is_share, name_score
from fedray.core.types import FloatArray
from fedray.metrics.names import has_direction, lower_is_better
from fedray.metrics.paired import ROUNDING, compare_paired
from fedray.report import curves, style
from fedray.report.choices import list_choice_notes, mark_score
from fedray.report.noise import list_noise_notes
from fedray.report.pairs import list_pairing_notes, read_world_scores
from fedray.report.read import Curve, ReadRun
from fedray.report.readings import find_headline, list_answer_notes, name_compared
from fedray.report.same_data import list_data_notes
from fedray.report.sheets import ScoreCell

Line = tuple[int, str, tuple[FloatArray, Curve]]  # of a run: its place, its name, its curve and where it lies
MOST_NAMED_RUNS = 4  # in a title
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
COMPARED_METRICS += ("conformal_coverage", "conformal_coverage_client_worst", "conformal_size", "conformal_width")
OOD_METRICS = ("ood_auroc", "ood_auroc_knowledge", "ood_fpr95")


def list_compared_metrics(runs: Sequence[ReadRun]) -> tuple[str, ...]:
    """The scores in which runs are compared: the usual ones, and the user's own metrics that all of them have.

    Scores of out-of-distribution inputs are among them where all runs have the same ones (`evaluate.ood`).

    Example:
        >>> own = {"own": {"metrics": ["minority"]}}
        >>> runs = [ReadRun(name, own, "", {}, {}, {"minority": np.zeros(1)}, None, None, {}) for name in ("a", "b")]
        >>> list_compared_metrics(runs)[-1]
        'minority'
    """
    own = [name for name in curves.list_own_metrics(runs[0].scenario) if name not in COMPARED_METRICS]
    each = [{*run.rounds, *run.summary.get("metrics", {})} & {*curves.list_own_metrics(run.scenario)} for run in runs]
    shared = [name for name in dict.fromkeys(own) if all(name in known for known in each)]
    ood = OOD_METRICS if len(_list_ood(runs)) == 1 else ()
    return tuple(dict.fromkeys([find_headline(runs), *COMPARED_METRICS, *ood, *shared]))


def _list_ood(runs: Sequence[ReadRun]) -> list[str]:
    """The different values of `evaluate.ood`, of runs that have it."""
    sections = [run.scenario.get("evaluate") for run in runs]
    given = [section.get("ood") for section in sections if isinstance(section, Mapping)]
    return list(dict.fromkeys(str(one) for one in given if one is not None))


def overlay_curves(runs: list[ReadRun], metric: str, what: str) -> Figure | None:
    """The headline metric of every run that has it, in one picture.

    Args:
        runs: in the order of their colours.
        metric: `accuracy` or `rmse`, of the common answer or the personalized one.
        what: `rounds`, `bytes` or `seconds`, on the horizontal axis.
    """
    lines: list[Line] = []
    for index, run in enumerate(runs):
        found = curves.read_curve_over(run, what, metric) if metric.removeprefix("personal_") == run.metric else None
        if found is not None:
            lines.append((index, run.name, found))
    if not lines:
        return None
    word = name_score(metric)
    wide = what == "rounds"
    title = {"rounds": _tell_ends(metric, lines), "bytes": f"{word[0].upper() + word[1:]} for its bytes"}
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
    curves.cut_beginning(axes, metric, [curve for _, _, (_, curve) in lines])
    if wide or len(lines) <= 6:
        curves.draw_legend(axes, metric)
    return figure


def _tell_ends(metric: str, lines: list[Line]) -> str:
    """Where the runs end; whether one is better is said by their paired differences alone."""
    word = f"{name_score(metric)[0].upper()}{name_score(metric)[1:]} over the rounds"
    if len(lines) > MOST_NAMED_RUNS:
        return f"{word} of {len(lines)} runs"
    lengths = {float(curve.round[-1]) for _, _, (_, curve) in lines}
    ends = []
    for _, name, (_, curve) in lines:
        after = f" after {curve.round[-1]:.0f}" if len(lengths) > 1 else ""
        ends.append(f"{name} {format_number(float(curve.mean[-1]), metric)}{after}")
    return f"{word}: {', '.join(ends)}"


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
    metrics = [name for name in list_compared_metrics(runs) if any(_mean(run, name) is not None for run in runs)]
    best = {name: find_best(runs, name) for name in metrics}
    head = ["run", *(name_compared(runs, name) for name in metrics)]
    return head, [
        [ScoreCell(run.name), *(ScoreCell(format_cell(run, name), i in best[name]) for name in metrics)]
        for i, run in enumerate(runs)
    ]


def make_cost_table(runs: list[ReadRun]) -> tuple[list[str], list[list[ScoreCell]]]:
    """Header and rows: what each run is, and what one of its replicates and folds cost."""
    head = ["run", "method", "data", "rounds", "n", *(name_score(key) for key in TOTALS)]
    rows = []
    for run in runs:
        words = [run.name, *(str(run.summary.get(key, "-")) for key in ("method", "data", "rounds")), str(run.worlds)]
        costs = [find_cost(run, key) for key in TOTALS]
        words += ["-" if cost is None else format_total(key, cost) for key, cost in zip(TOTALS, costs, strict=True)]
        rows.append([ScoreCell(word) for word in words])
    return head, rows


def find_cost(run: ReadRun, key: str) -> float | None:
    """A total of a run for one of its replicates and folds; None where the run has no summary.

    The virtual time is the mean over them; the summary has that of the slowest.
    """
    total = run.summary.get("totals", {}).get(key)
    if not isinstance(total, int | float):
        return None
    if key != "sim_seconds":
        return total / run.worlds
    curve = run.curve(key)
    return float(total) if curve is None else float(curve.mean[-1])


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
    mean = format_number(entry["mean"], name) if is_share(name) else format_digits(entry["mean"], 4)
    if entry.get("sd") is not None:
        mean = f"{mean.removesuffix(' %')} \u00b1 {format_deviation(entry['sd'], name)}"
    return mark_score(mean, run.summary)


def format_deviation(sd: float, name: str) -> str:
    """A standard deviation in the unit of its metric."""
    return f"{100 * sd:.1f} %" if is_share(name) else format_digits(sd, 2)


def _mean(run: ReadRun, name: str) -> float | None:
    entry = run.summary.get("metrics", {}).get(name) or {}
    value = entry.get("mean")
    return float(value) if value is not None else None


def find_best(runs: list[ReadRun], name: str) -> list[int]:
    """Which runs have the best final mean of a metric, or one that is not known to be worse.

    Runs that share two seeds are compared in pairs; where the run with the best mean is worse than another one on the
    seeds that they share, that one is best. Others are apart where their means differ by more than twice the standard
    error `sqrt(sd_1^2 / n_1 + sd_2^2 / n_2)`; a run of one world is apart from none.

    Args:
        runs: to be compared.
        name: of the metric.

    Returns:
        Places in `runs`, the best one first; empty where no run is known to be worse, or no value is better.
    """
    means = {i: value for i, run in enumerate(runs) if (value := _mean(run, name)) is not None}
    if len(means) < 2 or not has_direction(name):
        return []
    first = (min if lower_is_better(name) else max)(means, key=lambda i: means[i])
    for i in means:  # its mean may be the best one of other seeds
        first = i if _is_worse(runs[first], runs[i], name) else first
    alike = [first, *(i for i in means if i != first and not _is_worse(runs[i], runs[first], name))]
    return alike if len(alike) < len(means) else []


def _is_worse(run: ReadRun, other: ReadRun, name: str) -> bool:
    """Whether a run is worse than another one in a metric, by more than chance explains."""
    sign = 1 if lower_is_better(name) else -1
    paired = compare_paired(read_world_scores(run, name), read_world_scores(other, name))
    if paired is not None and paired.n > 1:
        return paired.differs and sign * paired.mean > 0
    entries = [each.summary["metrics"][name] for each in (run, other)]
    if any(entry.get("sd") is None or not entry.get("n") for entry in entries):
        return False
    error = sum(entry["sd"] ** 2 / entry["n"] for entry in entries) ** 0.5
    return bool(sign * (entries[0]["mean"] - entries[1]["mean"]) > max(2 * error, ROUNDING * abs(entries[0]["mean"])))


def list_caveats(runs: Sequence[ReadRun], over: str | None = None) -> list[str]:
    """What a reader must know before the runs are compared: other data, lengths, or seeds.

    Args:
        runs: to be compared.
        over: as in `list_pairing_notes`.

    Example:
        >>> runs = [ReadRun(name, {"data": {"name": name}}, "", {}, {}, {}, None, None, {}) for name in ("a", "b")]
        >>> list_caveats(runs)[0]
        'The runs differ in their data: a a, b b. Their scores cannot be compared.'
    """
    other = _list_ood(runs)
    text = f"The runs differ in evaluate.ood ({', '.join(other)}): their scores of such inputs are not compared."
    notes = [*list_data_notes(runs), *list_pairing_notes(runs, over), *list_answer_notes(runs)]
    notes += [*list_choice_notes(runs), *list_noise_notes(runs)]
    return [*notes, *([text] if len(other) > 1 else [])]


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
