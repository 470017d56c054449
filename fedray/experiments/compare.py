"""The comparison of runs from Python: `fedray.compare` and the object that it returns.

Example:
    >>> import fedray
    >>> keys = {"rounds": 1, "replicates": 2, "clients": {"number": 4}, "runtime": "inline", "report": False}
    >>> runs = [fedray.run(keys, method=name) for name in ("fed_ensemble", "fedavg")]
    >>> found = compare(runs, names=["ensemble", "fedavg"])
    >>> pair = found.pairs[0]
    >>> pair.run, pair.baseline, pair.metric, pair.difference.n
    ('fedavg', 'ensemble', 'accuracy', 2)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedray.core.errors import BadInput, quote_value, suggest_nearest
from fedray.experiments.results import Run
from fedray.metrics.scores import PairedDifference

if TYPE_CHECKING:  # matplotlib is slow to import
    from matplotlib.figure import Figure

    from fedray.report.compare import RunPair
    from fedray.report.read import ReadRun


COLUMNS = ("metric", "run", "baseline", "run_mean", "baseline_mean", "difference", "low", "high", "p", "n", "over")


class Comparison:
    """The comparison of several runs with the first of them, for each score and over the seeds that both runs share.

    Attributes:
        pairs: the paired differences from the first run: one for each score and each other run.
        notes: warnings, one per line, that a reader needs to interpret the differences. Examples are data, lengths or
            seeds that differ between runs, and too few seeds.
    """

    def __init__(self, runs: Sequence[ReadRun], cost: str | None = None, metrics: Sequence[str] | None = None) -> None:
        """Computes the differences.

        Args:
            runs: the contents of at least two run directories.
            cost: the cost at which runs are compared (`fedray.report.compare`). None means equal rounds, if the runs
                have rounds.
            metrics: the scores to compare, as names of columns of `rounds.parquet`. None means the usual scores and the
                user's own metrics.
        """
        from fedray.report.compare import compare_with_first, list_caveats, list_compared_metrics

        self._runs = list(runs)
        wanted = list_compared_metrics(self._runs) if metrics is None else metrics
        pairs = compare_with_first(self._runs, wanted, over=cost)
        self.pairs: list[RunPair] = [pair for pair in pairs if "-" not in pair.read]
        self.notes: list[str] = list_caveats(self._runs, cost)

    @property
    def dataframe(self) -> Any:
        """Returns a pandas DataFrame with one row for each score and each run after the first.

        A row has the means of both runs over their shared seeds, their difference with its 95 % interval, the p-value
        of the paired t test, and the number of pairs. If the round in which a run ends was chosen by a score on test
        samples, the column `chosen_on_test` names this run.
        """
        import pandas as pd  # slow to import

        from fedray.report.read import list_chosen

        rows = []
        for pair in self.pairs:
            d = pair.difference or PairedDifference(math.nan, math.nan, math.nan, 0, "seeds")
            found = (d.mean, d.low, d.high, d.p, d.n, d.over)
            rows.append((pair.metric, pair.run, pair.baseline, pair.run_mean, pair.baseline_mean, *found))
        frame = pd.DataFrame(rows, columns=COLUMNS)
        if chosen := list_chosen(self._runs):
            each = [(pair.run, pair.baseline) for pair in self.pairs]
            frame["chosen_on_test"] = [", ".join(name for name in both if name in chosen) for both in each]
        return frame

    def to_latex(self) -> str:
        """Returns the paired differences as a LaTeX table (package booktabs), a line for each score and run."""
        frame = self.dataframe
        ends = zip(frame["low"], frame["high"], strict=True)
        spans = ["-" if math.isnan(low) else f"[{low:.4f}, {high:.4f}]" for low, high in ends]
        shown = frame[["metric", "run", "baseline", "difference"]].assign(interval=spans, p=frame["p"], n=frame["n"])
        numbers = {"difference": "{:+.4f}".format, "p": "{:.2g}".format}
        return str(shown.to_latex(index=False, escape=True, formatters=numbers, na_rep="-"))

    def plot(self, metric: str | None = None, over: str = "rounds") -> Figure:
        """Returns a picture with the curves of all runs.

        Args:
            metric: a score in `rounds.parquet`. None means accuracy or RMSE. If clients of a run use predictions of
                their own, and all runs have the score of such predictions, None means this score.
            over: the quantity on the horizontal axis: `rounds`, `bytes` (up and down) or `seconds` (of virtual time).

        Raises:
            BadInput: `over` is another quantity, or no run has a curve of this score.
        """
        from fedray.report.compare import overlay_curves
        from fedray.report.page import draw_alone
        from fedray.report.read import find_headline

        wanted = metric or find_headline(self._runs)
        if over not in ("rounds", "bytes", "seconds"):
            raise BadInput(f"over = {quote_value(over)}: choose rounds, bytes or seconds")
        figure = draw_alone(lambda: overlay_curves(self._runs, wanted, over))
        if figure is None:
            known = ", ".join(dict.fromkeys(pair.metric for pair in self.pairs))
            raise BadInput(f"plot {quote_value(wanted)} over {over}: no run has this curve: choose one of {known}")
        return figure

    def __str__(self) -> str:
        return "\n".join([*self.notes, self.dataframe.to_string(index=False)])

    def _repr_html_(self) -> str:
        from fedray.report.page import show_comparison

        return show_comparison(self._runs, self.pairs, self.notes)


def compare(
    runs: Sequence[Run | str | Path],
    names: Sequence[str] | None = None,
    *,
    at_equal: str = "rounds",
    metrics: str | Sequence[str] | None = None,
) -> Comparison:
    """Compares each run with the first run, over the seeds that both runs share.

    Args:
        runs: at least two runs or run directories.
        names: a name for each run. None means the methods of the runs if they all differ. Otherwise it means the values
            of the only key in which the runs differ, or the names of the directories.
        at_equal: the quantity at which runs are compared. `rounds`: the scores of each run at equal rounds; for a
            method with phases the scores at its end. `uplink`, `bytes` (up and down) or `seconds` (of virtual time):
            the scores at equal cost per seed, namely the total cost of the cheapest run. They are interpolated linearly
            between evaluations. A run without evaluations near this cost is left out, and `notes` name it. If a run has
            no rounds, `rounds` means `seconds`.
        metrics: the scores to compare, as names of columns of `rounds.parquet` that hold numbers. None means accuracy,
            RMSE and the other usual scores, and your own metrics that all runs have. If clients of a run use
            predictions of their own, personalized accuracy comes first.

    Raises:
        BadInput: there are fewer than two runs, two runs have the same name, or the cost is unknown or missing in a
            run. Or a score of `metrics` is not shared by the first run and another run.

    Example:
        >>> import fedray
        >>> keys = {"rounds": 4, "clients": {"number": 4}, "runtime": "inline", "report": False}
        >>> runs = [fedray.run(keys, **{"method.name": name}) for name in ("shefl", "fedavg")]
        >>> compare(runs, at_equal="uplink").notes[0]
        'Compared at equal cost, 94.8 kB up a seed.'
    """
    from fedray.report.read import read_run

    if isinstance(runs, str | Path | Run | Mapping) or len(runs) < 2:
        raise BadInput("compare takes a list of at least two runs: fedray.compare([run, other])")
    paths = [run.path if isinstance(run, Run) else Run.from_path(run).path for run in runs]
    read = [read_run(path) for path in paths]
    known = _name_runs(read) if names is None else list(names)
    if len(known) != len(paths) or len(set(known)) != len(known):
        raise BadInput(f"names = {quote_value(known)}: give {len(paths)} names, each of them once")
    named = [replace(one, name=name) for one, name in zip(read, known, strict=True)]
    return Comparison(named, _find_cost(named, at_equal), _read_metrics(named, metrics))


def _read_metrics(runs: list[ReadRun], metrics: str | Sequence[str] | None) -> list[str] | None:
    """Returns the requested scores as a list; None stands for the usual scores.

    Raises:
        BadInput: a name is no score that the first run shares with another run.
    """
    from fedray.report.read import CONTEXT

    if metrics is None:
        return None
    wanted = [metrics] if isinstance(metrics, str) else list(metrics)
    each = [[name for name, values in run.rounds.items() if not np.isnan(values).all()] for run in runs]
    shared = [name for name in each[0] if name not in CONTEXT and any(name in names for names in each[1:])]
    if unknown := next((name for name in wanted if name not in shared), None):
        both = f"{runs[0].name} and another run have"
        remedy = suggest_nearest(unknown, shared, f"choose of {', '.join(shared)}")
        raise BadInput(f"metrics: {quote_value(unknown)} is no score that {both}: {remedy}")
    return wanted


def _find_cost(runs: list[ReadRun], at_equal: str) -> str | None:
    """Returns the cost at which runs are compared, as `fedray.report.compare` names it; None for rounds.

    Raises:
        BadInput: the cost is unknown, or missing in a run.
    """
    from fedray.report.read import BYTES, SECONDS, UPLINK, find_end

    known = {"rounds": None, "uplink": UPLINK, "bytes": BYTES, "seconds": SECONDS}
    if at_equal not in known:
        raise BadInput(f"at_equal = {quote_value(at_equal)}: choose {', '.join(known)}")
    cost = known[at_equal]
    for run in runs:
        if cost is not None and not 0 < find_end(run, cost) < math.inf:
            raise BadInput(
                f"at_equal = {at_equal}: {run.name} has no {at_equal} to compare by: leave at_equal out, to "
                "compare at equal rounds"
            )
    return cost


def _name_runs(runs: list[ReadRun]) -> list[str]:
    """Returns names that distinguish the runs: methods, values of the only key that differs, or directories."""
    from fedray.report.compare import find_differences

    keys = find_differences(runs)
    methods = [values for key, values in keys if key in ("method", "method.name")]
    alone = [f"{keys[0][0]}={value}" for value in keys[0][1]] if len(keys) == 1 else []
    folders = [run.name for run in runs]
    for names in (*methods, alone, folders):
        if len(set(names)) == len(runs):
            return [str(name) for name in names]
    return [f"{name} ({place})" for place, name in enumerate(folders, 1)]
