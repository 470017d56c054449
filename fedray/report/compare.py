"""Compares several runs seed by seed in pictures and tables, at equal rounds, cost or time."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from fedray.core import errors
from fedray.core.errors import format_bytes, format_digits, format_number, format_seconds, is_share, name_score
from fedray.core.types import FloatArray
from fedray.methods import METHOD_SPECS
from fedray.metrics.scores import LEVEL, ROUNDING, PairedDifference, compare_paired, has_direction, lower_is_better
from fedray.report import curves, pictures, read
from fedray.report.read import Best, Curve, ReadRun, Table
from fedray.scenario.identity import UNSET
from fedray.scenario.nested import flatten
from fedray.scenario.shipped import has_own_rounds

# ---------------------------------------------------------------------------------------------------------------------
# Compares runs seed by seed: the paired differences of their scores, and notes on the pairs for the reader. Runs with
# rounds are compared at the last round of the shortest run. A run whose method has phases is compared at the end of the
# run. If a run has no rounds, all runs are compared at the virtual time at which the first run ended. Runs are also
# compared at an equal cost (bytes, virtual time), which is the total cost of the cheapest run.

MOST_NAMED_SEEDS = 12
ALIKE = 0.01  # costs count as equal if they differ by at most this share
COSTS = (read.UPLINK, read.BYTES, read.SECONDS)


class RunPair(NamedTuple):
    """The comparison of two runs by one score.

    Attributes:
        metric: The name of the score.
        run: The name of the run.
        baseline: The name of the run with which `run` is compared.
        run_mean: The mean score of the run over the seeds and folds that both runs have. It is NaN if they share none.
        baseline_mean: The mean score of the baseline over the same seeds and folds.
        difference: The score of the run minus the score of the baseline, over the seeds that both runs have. None means
            that there are no such seeds, or that one of the runs has no score at `at`.
        at: The round, or the cost, at which both scores are taken.
        read: Two texts, for the run and for the baseline. Each text says at which share of `at` the score was
            measured. Without a score the text is `-`.
    """

    metric: str
    run: str
    baseline: str
    run_mean: float
    baseline_mean: float
    difference: PairedDifference | None
    at: str = ""
    read: tuple[str, str] = ("", "")


def format_budget(over: str, value: float) -> str:
    """Formats `value`, a round or a cost, with its unit. `over` is the column of the round or cost.

    Example:
        >>> format_budget(read.ROUNDS, 20.0), format_budget(read.BYTES, 2e6), format_budget(read.SECONDS, 90.0)
        ('round 20', '2 MB up and down', '1.5 min of virtual time')
    """
    if over == read.ROUNDS:
        return f"round {value:.0f}" if value < math.inf else "the end"
    words = {read.UPLINK: "up", read.BYTES: "up and down", read.SECONDS: "of virtual time"}
    return f"{format_seconds(value) if over == read.SECONDS else format_bytes(value)} {words[over]}"


def find_axis(runs: Sequence[ReadRun]) -> str:
    """Returns the axis that runs have in common: rounds, or virtual seconds if a run has no rounds.

    Example:
        >>> keys = [{}, {"participation": {"mode": "buffered"}}]
        >>> find_axis([ReadRun("", each, "", {}, {}, {}, None, None, {}) for each in keys])
        'sim_seconds'
    """
    modes = {(run.scenario.get("participation") or {}).get("mode", "sync") for run in runs}
    return read.SECONDS if modes - {"sync"} else read.ROUNDS


def compare_with_first(
    runs: Sequence[ReadRun], metrics: Sequence[str], last: float | None = None, over: str | None = None
) -> list[RunPair]:
    """Compares every run with the first run, by each score that both runs have, at the same round or cost.

    Args:
        runs: At least two runs.
        metrics: Columns of `rounds.parquet`. A pair of runs is not compared by a column that one of them lacks.
        last: The round, or the cost, at which the runs are compared. None means the end of the shortest run.
        over: The unit of `last`: rounds, or a cost. None means rounds, or virtual seconds if a run has no rounds.

    Example:
        Each run has two seeds. The second run sends half as much per round. Two rounds of the second run are therefore
        compared with one round of the first run.

        >>> def run(name, scores, each):
        ...     worlds = {"replicate": np.repeat([0.0, 1.0], 3), "fold": np.zeros(6)}
        ...     worlds["round"] = np.tile([0.0, 1.0, 2.0], 2)
        ...     found = {"accuracy": np.r_[scores, np.array(scores) + 0.1], "up_bytes": worlds["round"] * each}
        ...     return ReadRun(name, {}, "", {}, {}, worlds | found, None, None, {})
        >>> (pair,) = compare_with_first([run("dense", [0.1, 0.5, 0.7], 1e6), run("sparse", [0.1, 0.4, 0.6], 5e5)],
        ...                              ["accuracy"], over="up_bytes")
        >>> pair.run, pair.baseline, round(pair.difference.mean, 3), pair.difference.n, pair.at, pair.read
        ('sparse', 'dense', 0.1, 2, '1 MB up', ('100 %', '100 %'))
    """
    over = over or find_axis(runs)
    at = read.find_common_end(runs, over) if last is None else last
    found = []
    for run in runs[1:]:
        for metric in (name for name in metrics if read.has_score(run, name) and read.has_score(runs[0], name)):
            both = [read.read_worlds(each, metric, at, over) for each in (run, runs[0])]
            mine, theirs = ({world: score.value for world, score in one.items()} for one in both)
            shared = sorted(mine.keys() & theirs.keys())
            mean, base = (float(np.mean([one[w] for w in shared])) if shared else math.nan for one in (mine, theirs))
            used = (read.tell_share(list(both[0].values())), read.tell_share(list(both[1].values())))
            difference = compare_paired(mine, theirs)
            found.append(RunPair(metric, run.name, runs[0].name, mean, base, difference, format_budget(over, at), used))
    return found


def compare_at_all_budgets(runs: Sequence[ReadRun]) -> list[RunPair]:
    """Compares every run with the first run at the end of the shortest run.

    The headline score is also compared at equal bytes up, equal total bytes and equal virtual time. Such a comparison
    is left out if all runs have the same total of this cost, or if a run lacks the cost.
    """
    headline = read.find_headline(runs)
    own = [name for name in list_compared_metrics(runs) if name not in COMPARED_METRICS]
    shown = dict.fromkeys([headline, *SHOWN_METRICS, *own])
    pairs = [pair for metric in shown for pair in compare_with_first(runs, [metric])]
    for cost in (cost for cost in COSTS if cost != find_axis(runs)):
        ends = np.array([read.find_end(run, cost) for run in runs])
        if np.all((ends > 0) & (ends < math.inf)) and float(np.ptp(ends)) > ALIKE * float(ends.max()):
            pairs += compare_with_first(runs, [headline], over=cost)
    return pairs


def list_pairing_notes(runs: Sequence[ReadRun], over: str | None = None) -> list[str]:
    """Lists notes for readers of a comparison: on different lengths, different seeds, or few seeds.

    `over` is the cost at which runs are compared. None means rounds, or virtual time if a run has no rounds.

    Example:
        >>> import numpy as np
        >>> worlds = {name: np.array([0.0]) for name in ("replicate", "fold")}
        >>> runs = [ReadRun(name, {"seed": seed}, "", {}, {}, worlds | {"round": np.array([length])}, None, None, {})
        ...         for name, seed, length in (("a", 0, 5.0), ("b", 1, 9.0))]
        >>> for line in list_pairing_notes(runs):
        ...     print(line)
        The runs differ in their rounds: a 5, b 9. They are compared by the last evaluation of each up to round 5.
        a and b share no seed: a has 0, b has 1. They cannot be compared in pairs.
    """
    axis = over or find_axis(runs)
    last = read.find_common_end(runs, axis)
    told = (read.explain_position(run, last, axis) for run in runs if read.has_score(run, run.metric))
    found = [text for text in told if text]
    ends = {run.name: read.find_end(run, read.ROUNDS) for run in runs if not has_own_rounds(run.scenario)}
    if over is not None:
        found.insert(0, f"Compared at equal cost, {format_budget(over, last)} a seed.")
    elif axis == read.SECONDS:
        text = f"Not all runs have rounds. They are compared at equal virtual time, after {format_seconds(last)}."
        found.insert(0, text)
    elif len(set(ends.values())) > 1:
        said = ", ".join(f"{name} {f'{end:.0f}' if end < math.inf else 'none'}" for name, end in ends.items())
        how = "at" if "between" in " ".join(found) else "by the last evaluation of each up to"
        found.insert(0, f"The runs differ in their rounds: {said}. They are compared {how} round {last:.0f}.")
    each = [{run.scenario.get("seed", 0) + int(r) for r in run.rounds.get("replicate", ())} for run in runs]
    for run, mine in zip(runs[1:], each[1:], strict=True):
        shared, both = mine & each[0], f"{runs[0].name} and {run.name}"
        names = f"{runs[0].name} has {_name_seeds(each[0])}, {run.name} has {_name_seeds(mine)}"
        if not shared:
            found.append(f"{both} share no seed: {names}. They cannot be compared in pairs.")
        elif mine != each[0]:
            found.append(f"{both} share the seeds {_name_seeds(shared)} only: {names}.")
        if len(shared) == 1 and len(np.intersect1d(run.rounds["fold"], runs[0].rounds["fold"])) < 2:
            found.append(f"{both} share one seed: nothing says how far chance goes.")
    return found


def _name_seeds(seeds: set[int]) -> str:
    """Formats seeds as text.

    Example:
        >>> _name_seeds({0, 1, 2, 7}), _name_seeds(set(range(40)))
        ('0, 1, 2, 7', '40 seeds from 0 to 39')
    """
    if len(seeds) > MOST_NAMED_SEEDS:
        return f"{len(seeds)} seeds from {min(seeds)} to {max(seeds)}"
    return ", ".join(map(str, sorted(seeds))) or "none"


# ---------------------------------------------------------------------------------------------------------------------
# Checks whether runs have the same data. Otherwise scores cannot be paired, or cannot be compared at all. The digests
# of `identity.json` decide this. For runs without digests the names of the data decide.

TRAINING = ("training inputs", "training labels", "generated clients")  # names of digests in `fedray.data.shards`
TEST = ("test inputs", "test labels", "classes")
ROWS = "the clients' rows"
PAIRING_KEYS = (
    "data.hold_out", "data.test_clients", "data.partition", "clients.number", "method.server_data", "method.validation",
)  # fmt: skip


def list_data_notes(runs: Sequence[ReadRun]) -> list[str]:
    """Lists notes for readers of a comparison: how the data of each run differ from the data of the first run.

    The list is empty if all runs have the same data.

    Example:
        >>> runs = [ReadRun(name, {"data": {"name": "digits", "hold_out": out}}, "", {}, {}, {}, None, None, {})
        ...         for name, out in (("a", 0.0), ("b", 0.2))]
        >>> list_data_notes(runs)
        ["The runs differ in data.hold_out (a 0.0, b 0.2): their pairs share seeds, but not the clients' rows."]
    """
    known: list[Mapping[str, Any]] = [run.identity.get("data") or {} for run in runs]
    given = [run.scenario.get("data") or {} for run in runs]
    names = [one.get("object") or one.get("name", "unknown") for one in given]
    first, found = known[0], list[str]()
    for run, name, now in zip(runs[1:], names[1:], known[1:], strict=True):
        other = [part for part in (*TRAINING, *TEST) if now.get(part) != first.get(part)]
        if name != names[0] and (other or not (now and first)):
            each = ", ".join(f"{run.name} {name}" for run, name in zip(runs, names, strict=True))
            return [f"The runs differ in their data: {each}. Their scores cannot be compared."]
        if now and first and other:
            what = "Their scores cannot be compared" if set(other) & set(TEST) else "They do not train on the same rows"
            names_of = f"{runs[0].name} and {run.name}: {', '.join(other)}"
            found.append(f"The runs differ in their data, though both are called {name} ({names_of}). {what}.")
    if first.get(ROWS) is not None and all(now.get(ROWS) == first[ROWS] for now in known):
        return found
    every = find_differences(runs, UNSET)
    differ = [(key, each) for key, each in every if key in PAIRING_KEYS or key.startswith("data.partition.")]
    shared = [(key, values) for key, values in differ if UNSET not in values]  # the other keys differ because these do
    said = []
    for key, values in shared or differ:
        said.append(f"{key} ({', '.join(f'{run.name} {value}' for run, value in zip(runs, values, strict=True))})")
    sources = [run.identity.get("source") or {} for run in runs]
    own = [{name: one for name, one in each.items() if name.startswith("partition ")} for each in sources]
    if not said and any(one != own[0] for one in own):
        said = ["the code of data.partition"]
    more = f"The runs differ in {', '.join(said)}: their pairs share seeds, but not the clients' rows."
    return [*found, more] if said else found


# ---------------------------------------------------------------------------------------------------------------------
# Checks whether the regressions of several runs treat the noise of the observations in the same way. The variance of an
# ensemble is the spread of its models, unless `predict.noise` adds noise. A single model has no spread, and its
# variance is the residual variance. So NLL and coverage of an ensemble and of a single model cannot be compared
# directly.


def list_noise_notes(runs: Sequence[ReadRun]) -> list[str]:
    """Returns a list with a note if only some runs have scores that include the observation noise.

    Otherwise the list is empty.

    Example:
        >>> nll = {"nll_none": np.array([9.0]), "nll_residual": np.array([2.0])}
        >>> runs = [ReadRun(name, {}, "", {}, {}, {**nll, "nll": np.array([value])}, None, None, {})
        ...         for name, value in (("five models", 9.0), ("one model", 2.0))]
        >>> list_noise_notes(runs[:1]), len(list_noise_notes(runs))
        ([], 1)
    """
    without: list[str] = []  # runs whose NLL leaves out the noise
    within: list[str] = []
    for run in runs:
        predicted = (run.scenario.get("model") or {}).get("objective") == "gaussian_nll"  # predicted by models
        if read.has_score(run, "nll") and read.has_score(run, "nll_none") and not predicted:
            known = np.isfinite(run.rounds["nll_none"])
            same = np.allclose(run.rounds["nll"][known], run.rounds["nll_none"][known])
            (without if same else within).append(run.name)
    if not without or not within:
        return []
    return [
        f"NLL, CRPS, coverage and widths leave out the noise of the observations in {', '.join(without)}, and "
        f"hold it in {', '.join(within)}. Compare `nll_residual`, which adds it everywhere, or run with "
        "predict.noise=residual."
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Curves, clients and final scores of several runs.

Line = tuple[int, str, tuple[FloatArray, Curve]]  # the number, name and curve of a run, and the positions on the axis
MOST_NAMED_RUNS = 4  # a title names at most so many runs
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
COMPARED_METRICS: tuple[str, ...] = (
    *("accuracy", "accuracy_average", "accuracy_mean", "accuracy_max", "personal_accuracy", "personal_p10"),
    *("personal_rmse", "rmse", "rmse_mean", "rmse_min"),
    *("nll", "nll_residual", "brier", "ece", "crps", "coverage_95", "sharpness", "disagreement"),
    *("conformal_coverage", "conformal_coverage_client_worst", "conformal_size", "conformal_width"),
)
OOD_METRICS = ("ood_auroc", "ood_auroc_knowledge", "ood_fpr95")


def list_compared_metrics(runs: Sequence[ReadRun]) -> tuple[str, ...]:
    """Lists the scores by which runs are compared: the usual scores, and the user's metrics that all runs have.

    Scores of out-of-distribution inputs are listed if all runs have the same inputs of this kind (`evaluate.ood`).

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
    return tuple(dict.fromkeys([read.find_headline(runs), *COMPARED_METRICS, *ood, *shared]))


def _list_ood(runs: Sequence[ReadRun]) -> list[str]:
    """Lists the different values of `evaluate.ood` in the runs that set this key."""
    given = [(run.scenario.get("evaluate") or {}).get("ood") for run in runs]
    return list(dict.fromkeys(str(one) for one in given if one is not None))


def figure_bytes(run: ReadRun) -> Figure | None:
    """Draws the headline metric over the bytes sent up and down."""
    return overlay_curves([run], run.metric, "bytes")


def figure_seconds(run: ReadRun) -> Figure | None:
    """Draws the headline metric over virtual time."""
    return overlay_curves([run], run.metric, "seconds")


def overlay_curves(runs: Sequence[ReadRun], metric: str, what: str) -> Figure | None:
    """Draws the curves of one score for all runs, over `what`: `rounds`, `bytes` or `seconds`.

    The picture of a single run has a title with the last value instead of a legend.
    """
    found = [(i, run.name, curves.read_curve_over(run, what, metric)) for i, run in enumerate(runs)]
    lines: list[Line] = [(i, name, each) for i, name, each in found if each is not None]
    if not lines or metric in read.CONTEXT:
        return None
    word, wide, alone = read.name_compared(runs, metric), what == "rounds", len(runs) == 1
    word = word[0].upper() + word[1:]
    title = word + {"bytes": " for its bytes", "seconds": " for its virtual time"}.get(what, "")
    if alone:
        x, curve = lines[0][2]
        ends = {"bytes": f"{format_bytes(x[-1])} moved", "seconds": f"{format_seconds(x[-1])} of virtual time"}
        end = format_number(float(curve.mean[-1]), metric)
        title = f"{word} is {end} after {ends.get(what, curves.count_rounds(runs[0], float(x[-1])))}"
    elif wide:  # the spread at the end of the runs; only paired differences show which run is better
        title += f" over the rounds of {len(lines)} runs"
        if len(lines) <= MOST_NAMED_RUNS:
            each = [(name, format_number(float(curve.mean[-1]), metric), curve) for _, name, (_, curve) in lines]
            text = ", ".join(f"{name} {end} after {curve.round[-1]:.0f}" for name, end, curve in each)
            title = f"{word} over the rounds: {text}"
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, 4.6) if wide else (pictures.NARROW, 3.4))
    colors = pictures.pick_colors(len(runs))
    size, unit = (1.0, "") if wide else errors.choose_unit(what, max(float(x[-1]) for _, _, (x, _) in lines))
    for index, name, (x, curve) in lines:
        curves.draw_mean_line(axes, x / size, curve, color=colors[index], width=2.0, label=None if alone else name)
        axes.lines[-1].set_linestyle(DASHES[index % len(DASHES)])
    unit += ", one replicate" * any(run.worlds > 1 for run in runs)
    words = {"rounds": "rounds completed", "bytes": f"bytes up and down ({unit})", "seconds": f"virtual time ({unit})"}
    axes.set_xlabel(words[what])
    if wide:
        pictures.use_whole_numbers(axes.xaxis)
    elif alone:
        axes.set_xlim(left=0)
    curves.label_headline(axes, metric)
    if has_direction(metric) and not (wide and alone):
        curves.cut_beginning(axes, metric, [curve for _, _, (_, curve) in lines])
    if wide or len(lines) <= 6:
        curves.draw_legend(axes, metric)
    return figure


def figure_clients(runs: list[ReadRun]) -> Figure | None:
    """Draws the sorted accuracy of the clients of every run, with the lowest accuracy at the left end."""
    named = [(i, run) for i, run in enumerate(runs) if "client_accuracy" in run.pictures]
    if len(named) < 2:
        return None
    title = "Who is served worst: the clients of each run, sorted"
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, 3.8))
    for i, run in named:
        each = np.sort(run.pictures["client_accuracy"][np.isfinite(run.pictures["client_accuracy"])])
        share = (np.arange(len(each)) + 0.5) / max(len(each), 1)
        look = {"color": pictures.pick_color(i, len(runs)), "linestyle": DASHES[i % len(DASHES)]}
        axes.plot(share, each, label=run.name, **look)
    axes.set(xlabel="share of the clients, worst first", ylabel="accuracy for the client")
    pictures.use_percent(axes.xaxis, axes.yaxis)
    curves.draw_legend(axes, "accuracy")
    return figure


def make_comparison_table(runs: list[ReadRun]) -> Table:
    """Returns header and rows of a table of the final metrics, mean +- sd.

    The best value is highlighted, and also the values whose difference from the best value may be chance.
    """
    metrics = [name for name in list_compared_metrics(runs) if _list_means(runs, name)]
    best = {name: find_best(runs, name) for name in metrics}
    head = ["run", *(read.name_compared(runs, name) for name in metrics)]
    rows = []
    for i, run in enumerate(runs):
        cells = [format_cell(run, name) for name in metrics]
        rows.append([run.name, *(Best(text) if i in best[name] else text for name, text in zip(metrics, cells))])
    return head, rows


def make_cost_table(runs: list[ReadRun]) -> Table:
    """Returns header and rows of a table that describes each run and its costs per replicate and fold."""
    head = ["run", "method", "data", "rounds", "n", *map(name_score, errors.TOTALS), "models to hand over", "passes"]
    rows = []
    for run in runs:
        words = [run.name, *(str(run.summary.get(key, "-")) for key in ("method", "data", "rounds")), str(run.worlds)]
        costs = {key: find_cost(run, key) for key in errors.TOTALS}
        words += ["-" if cost is None else errors.format_total(key, cost) for key, cost in costs.items()]
        answer = run.summary.get("answer")  # older runs have none
        words += [format_bytes(answer["bytes"]), str(answer["passes"] or "-")] if answer else ["-", "-"]
        rows.append(words)
    return head, rows


def find_cost(run: ReadRun, key: str) -> float | None:
    """Returns a total cost of a run, per replicate and fold, or None if the run has no summary.

    The cost is taken from the summary, except for the virtual time. The virtual time is the mean over replicates and
    folds in `rounds.parquet`, because the summary has only the longest time.
    """
    total = run.summary.get("totals", {}).get(key)
    if not isinstance(total, int | float):
        return None
    if key != "sim_seconds":
        return total / run.worlds
    curve = run.curve(key)
    return float(total) if curve is None else float(curve.mean[-1])


def find_differences(runs: Sequence[ReadRun], missing: str = "-") -> list[tuple[str, list[str]]]:
    """Lists the scenario keys that differ between runs, with the value in each run (or `missing`)."""
    each = [flatten(run.scenario) for run in runs]
    flat = [{k: v if isinstance(v, str) else json.dumps(v, default=str) for k, v in one.items()} for one in each]
    keys = dict.fromkeys(key for one in flat for key in one)
    rows = [(key, [one.get(key, missing) for one in flat]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]


def format_cell(run: ReadRun, name: str) -> str:
    """Formats a final metric as `mean +- sd`."""
    entry = run.summary.get("metrics", {}).get(name)
    if not entry or entry.get("mean") is None:
        return "-"
    mean = format_number(entry["mean"], name) if is_share(name) else format_digits(entry["mean"], 4)
    if entry.get("sd") is not None:
        mean = f"{mean.removesuffix(' %')} \u00b1 {format_deviation(entry['sd'], name)}"
    return read.mark_score(mean, run.summary)


def format_deviation(sd: float, name: str) -> str:
    """Formats a standard deviation in the unit of its metric.

    Example:
        >>> format_deviation(0.0123, "accuracy"), format_deviation(0.0123, "rmse")
        ('1.2 %', '0.012')
    """
    return f"{100 * sd:.1f} %" if is_share(name) else format_digits(sd, 2)


def _list_means(runs: list[ReadRun], name: str) -> dict[int, float]:
    """Returns a metric's final mean for each run, by the run's index in `runs`. Leaves out runs without the metric."""
    found = {i: run.summary.get("metrics", {}).get(name) or {} for i, run in enumerate(runs)}
    return {i: float(entry["mean"]) for i, entry in found.items() if entry.get("mean") is not None}


def find_best(runs: list[ReadRun], name: str) -> list[int]:
    """Finds the run with the best final mean of a metric, and the runs whose difference from it may be chance.

    Two runs that share at least two seeds are compared seed by seed. The best run is the run with the best mean. But if
    another run is better by more than chance on the seeds that both share, this other run counts as the best. Two runs
    that share fewer seeds differ if their means differ by more than twice the standard error
    `sqrt(sd_1^2 / n_1 + sd_2^2 / n_2)`. If one of them has a single replicate and fold, they count as not different.

    Returns:
        Indices in `runs`, the best run first. The list is empty if all differences may be chance, or if neither high
        nor low values of the metric are better.
    """
    means = _list_means(runs, name)
    if len(means) < 2 or not has_direction(name):
        return []
    first = (min if lower_is_better(name) else max)(means, key=lambda i: means[i])
    for i in means:  # the best mean may come from other seeds
        first = i if _is_worse(runs[first], runs[i], name) else first
    alike = [first, *(i for i in means if i != first and not _is_worse(runs[i], runs[first], name))]
    return alike if len(alike) < len(means) else []


def _is_worse(run: ReadRun, other: ReadRun, name: str) -> bool:
    """Returns whether a run is worse than a second run in a metric, by more than chance explains."""
    sign = 1 if lower_is_better(name) else -1
    mine, theirs = ({w: score.value for w, score in read.read_worlds(each, name).items()} for each in (run, other))
    paired = compare_paired(mine, theirs)
    if paired is not None and paired.n > 1:
        return paired.differs and sign * paired.mean > 0
    entries = [each.summary["metrics"][name] for each in (run, other)]
    if any(entry.get("sd") is None or not entry.get("n") for entry in entries):
        return False
    error = sum(entry["sd"] ** 2 / entry["n"] for entry in entries) ** 0.5
    return bool(sign * (entries[0]["mean"] - entries[1]["mean"]) > max(2 * error, ROUNDING * abs(entries[0]["mean"])))


_AT_SERVER = ("seconds_per_step", "seconds_per_sample")


def list_uncounted_work(runs: Sequence[ReadRun], over: str | None) -> list[str]:
    """Returns a list with a note on work that virtual time leaves out.

    The list is empty if runs are not compared by virtual time.

    Example:
        >>> answer = {"answer": {"models": 5, "bytes": 94_800, "passes": 5}}
        >>> run = ReadRun("a", {"method": {"name": "feddf"}}, "", {}, answer, {}, None, None, {})
        >>> print(*list_uncounted_work([run], "sim_seconds"))
        Virtual seconds leave out what it costs to answer (a: 94.8 kB of models, 5 passes), and steps of the server (a).
    """
    if over != read.SECONDS:
        return []
    costs = {run.name: run.summary["answer"] for run in runs if run.summary.get("answer")}
    each = [f"{name}: {format_bytes(cost['bytes'])} of models, {cost['passes']} passes" for name, cost in costs.items()]
    free = []  # runs whose servers make steps that take no time
    for run in runs:
        method, server = (run.scenario.get(section) or {} for section in ("method", "server"))
        spec = METHOD_SPECS.get(method.get("name", ""))
        if spec is not None and spec.server_steps and not any(map(server.get, _AT_SERVER)):
            free.append(run.name)
    said = f"what it costs to answer ({'; '.join(each)})" if each else "what it costs to answer"
    said += f", and steps of the server ({', '.join(free)})" if free else ""
    return [f"Virtual seconds leave out {said}."]


def list_caveats(runs: Sequence[ReadRun], over: str | None = None) -> list[str]:
    """Lists all notes for readers of a comparison, for example on different data, lengths and seeds.

    Example:
        >>> runs = [ReadRun(name, {"data": {"name": name}}, "", {}, {}, {}, None, None, {}) for name in ("a", "b")]
        >>> list_caveats(runs)[0]
        'The runs differ in their data: a a, b b. Their scores cannot be compared.'
    """
    other = _list_ood(runs)
    text = f"The runs differ in evaluate.ood ({', '.join(other)}): their scores of such inputs are not compared."
    notes = [*list_data_notes(runs), *list_pairing_notes(runs, over), *read.list_answer_notes(runs)]
    notes += [line for run in runs for line in read.list_score_notes(run.summary, run.name)]
    notes += [*list_noise_notes(runs), *list_uncounted_work(runs, over)]
    return [*notes, *([text] if len(other) > 1 else [])]


# ---------------------------------------------------------------------------------------------------------------------
# Paired differences between runs over the seeds that they share, as a picture and a table.

MOST_BARS = 40  # the picture shows at most so many runs
SHOWN_METRICS = (
    *("accuracy", "personal_accuracy", "rmse", "personal_rmse", "nll", "brier", "ece", "crps"),
    *("conformal_size", "conformal_width"),
)


def figure_differences(runs: list[ReadRun]) -> Figure | None:
    """Draws the paired difference of every run from the first run in the headline metric, with its interval."""
    metric = read.find_headline(runs)
    pairs = [pair for pair in compare_with_first(runs, [metric]) if pair.difference][:MOST_BARS]
    if not pairs or not any(pair.difference and pair.difference.n > 1 for pair in pairs):
        return None
    apart = [pair.difference.mean for pair in pairs if pair.difference is not None and pair.difference.differs]
    better = sum((mean < 0) == lower_is_better(metric) for mean in apart)
    counts = ((better, "better"), (len(apart) - better, "worse"), (len(pairs) - len(apart), "not told apart"))
    text = ", ".join(f"{number} {word}" for number, word in counts if number)
    title = f"Against {pairs[0].baseline}, over shared seeds: {text}" if len(pairs) > 1 else title_difference(pairs[0])
    figure, axes = pictures.make_canvas(title, size=(pictures.WIDE, 1.3 + 0.36 * len(pairs)))
    factor, unit = (100.0, "points") if is_share(metric) else (1.0, "")
    place = np.arange(len(pairs))[::-1]
    drawn = [(pair.run, pair.difference) for pair in pairs if pair.difference is not None]
    for y, (run, found) in zip(place, drawn, strict=True):
        color = pictures.ACCENT if found.differs else pictures.GREY
        name = f"_{run}, {count_pairs(found)}"
        if not found.missing_interval:
            ends = [factor * found.low, factor * found.high]
            axes.plot(ends, [y, y], color=color, linewidth=2.4, label=f"{name}: interval")
        axes.plot([factor * found.mean], [y], "o", color=color, markersize=7, label=name)
    axes.axvline(0, **pictures.DASHED)
    axes.set_yticks(place, [f"{run} ({count_pairs(found)})" for run, found in drawn])
    axes.set_ylim(-0.6, len(pairs) - 0.4)
    side = "left" if lower_is_better(metric) else "right"
    text = f"{read.name_compared(runs, metric, unit=True)}: difference from {pairs[0].baseline}"
    axes.set_xlabel(f"{text}{f' ({unit})' if unit else ''}; better to the {side}")
    axes.grid(visible=False)
    axes.grid(visible=True, axis="x")
    return figure


def make_difference_table(runs: Sequence[ReadRun], pairs: Sequence[RunPair]) -> Table:
    """Returns header and rows of a table of paired differences. It shows at which round or cost scores were taken."""
    first, chosen = runs[0].name, read.list_chosen_on_test(runs)
    head = ["score, run", "at", "its mean", f"mean of {first}", "difference", "95 % interval", "pairs"]
    rows: list[list[str | Best]] = []
    for pair in pairs:
        metric, found = pair.metric, pair.difference
        both = ((pair.run, pair.run_mean), (first, pair.baseline_mean))
        means = [show_score(metric, value) + (f" {read.MARK}" if name in chosen else "") for name, value in both]
        shown: list[str | Best] = ["not compared", "-", "-"]
        if found is not None:
            mean, low, high = (show_score(metric, value, True) for value in found[:3])
            interval = f"none: {found.missing_interval}" if found.missing_interval else f"{low} to {high}"
            shown = [Best(mean) if found.differs else mean, interval, count_pairs(found)]
        label = f"{read.name_compared(runs, metric, unit=True)}, {pair.run}"
        rows.append([label, pair.at, *means, *shown, *pair.read])
    return [*head, "it is read at", f"{first} is read at"], rows


def title_difference(pair: RunPair) -> str:
    """Returns a title for the picture of a difference. The title says if the difference may be chance.

    Example:
        >>> found = PairedDifference(0.02, 0.01, 0.03, 5, "seeds")
        >>> print(title_difference(RunPair("accuracy", "b", "a", 0.9, 0.88, found)))
        b - a: +2.0 points (95 %: +1.0 to +3.0, 5 seeds) accuracy
    """
    found = pair.difference
    assert found is not None
    mean, low, high = (show_score(pair.metric, value, True).removesuffix(" points") for value in found[:3])
    within = f"{100 * LEVEL:.0f} %: {low} to {high}, {count_pairs(found)}"
    within = f"{found.missing_interval}: no interval" if found.missing_interval else within
    unit = " points" if is_share(pair.metric) else ""
    text = f"{pair.run} - {pair.baseline}: {mean}{unit} ({within}) {name_score(pair.metric)}"
    return text if found.missing_interval or found.differs else f"No difference beyond chance: {text}"


def count_pairs(found: PairedDifference) -> str:
    """Returns the number of pairs as text, with their kind, such as `5 seeds`."""
    return f"{found.n} {found.over if found.n > 1 else found.over.removesuffix('s')}"


def show_score(metric: str, value: float, difference: bool = False) -> str:
    """Formats a score with its unit. NaN becomes a dash.

    If `difference` is True, the value is a difference of two scores. A difference of two shares is given in percentage
    points, with its sign.
    """
    if np.isnan(value):
        return "-"
    if not difference:
        return f"{100 * value:.1f} %" if is_share(metric) else format_digits(value, 4)
    return f"{100 * value:+.1f} points" if is_share(metric) else format_digits(value, 3, "+")
