"""Runs compared from Python: `fedray.compare`, and what it returns.

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
import pyarrow as pa

from fedray.core.errors import BadInput, quote_value, suggest_nearest
from fedray.experiments.results import Run

if TYPE_CHECKING:  # matplotlib is slow to import
    from matplotlib.figure import Figure

    from fedray.report.compare import RunPair
    from fedray.report.read import ReadRun


NAMED = ("metric", "run", "baseline")


class Comparison:
    """Runs compared with the first of them, score by score and seed by seed.

    Attributes:
        pairs: the paired difference of each score, for each run after the first.
        notes: what must be known first: data, lengths and seeds that differ, too few seeds.
    """

    def __init__(self, runs: Sequence[ReadRun], cost: str | None = None, metrics: Sequence[str] | None = None) -> None:
        """Computes the differences.

        Args:
            runs: what the run directories say, at least two.
            cost: the cost that is equal (`fedray.report.compare`); None means that rounds are, if there are rounds.
            metrics: columns of `rounds.parquet`; None means the usual scores and the metrics of the user's own.
        """
        from fedray.report.compare import compare_with_first, list_caveats, list_compared_metrics

        self._runs = list(runs)
        wanted = list_compared_metrics(self._runs) if metrics is None else metrics
        pairs = compare_with_first(self._runs, wanted, over=cost)
        self.pairs: list[RunPair] = [pair for pair in pairs if "-" not in pair.read]
        self.notes: list[str] = list_caveats(self._runs, cost)

    @property
    def dataframe(self) -> Any:
        """One row a score and run: means over the shared seeds, difference, its interval and the number of pairs.

        Where the test rows chose the round in which runs ended, `chosen_on_test` names them.
        """
        from fedray.report.read import list_chosen

        known = [(pair, pair.difference) for pair in self.pairs]
        numbers: dict[str, list[float | None]] = {
            "run_mean": [pair.run_mean for pair, _ in known],
            "baseline_mean": [pair.baseline_mean for pair, _ in known],
            "difference": [found and found.mean for _, found in known],
            "low": [found and found.low for _, found in known],
            "high": [found and found.high for _, found in known],
        }
        columns = {name: pa.array([getattr(p, name) for p, _ in known], pa.string()) for name in NAMED}
        columns |= {name: pa.array(values, pa.float64()) for name, values in numbers.items()}
        columns["n"] = pa.array([found.n if found else 0 for _, found in known], pa.int64())
        columns["over"] = pa.array([found.over if found else "seeds" for _, found in known], pa.string())
        if chosen := list_chosen(self._runs):
            marks = [", ".join(name for name in (pair.run, pair.baseline) if name in chosen) for pair, _ in known]
            columns["chosen_on_test"] = pa.array(marks, pa.string())
        return pa.table(columns).to_pandas()

    def plot(self, metric: str | None = None, over: str = "rounds") -> Figure:
        """Returns the curves of all runs in one picture.

        Args:
            metric: a score of `rounds.parquet`; None means accuracy or RMSE: that of the clients' own answers where
                clients of one run use those, and all runs have it.
            over: `rounds`, `bytes` (up and down) or `seconds` (of virtual time), on the horizontal axis.

        Raises:
            BadInput: there is no such picture.
        """
        from fedray.report.compare import overlay_curves
        from fedray.report.notebook import draw_alone
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
        from fedray.report.notebook import show_comparison

        return show_comparison(self._runs, self.pairs, self.notes)


def compare(
    runs: Sequence[Run | str | Path],
    names: Sequence[str] | None = None,
    *,
    at_equal: str = "rounds",
    metrics: str | Sequence[str] | None = None,
) -> Comparison:
    """Compares runs with the first of them, over the seeds that they share.

    Args:
        runs: at least two runs, or their directories.
        names: what they are called, one a run; None means their methods, or the key that tells them apart, or the
            names of their directories.
        at_equal: `rounds`, or a cost: `uplink`, `bytes` (up and down) or `seconds` (of virtual time). Every run is read
            where a seed had cost what the cheapest run cost in all, on the line between the evaluations around that; a
            run without evaluations near enough is left out, and `notes` say so. Where clients of one of the runs do not
            wait for rounds, `rounds` means `seconds`. Of `rounds`, a method with phases is read at its end.
        metrics: the scores to compare, columns of `rounds.parquet` that are one number; None means accuracy, RMSE and
            the other usual scores, and the metrics of your own that all runs have. Personalized accuracy comes first
            where clients of one of the runs use answers of their own.

    Raises:
        BadInput: there are fewer than two runs, one of the names is not a name of one run alone, there is no such
            cost, one of the runs has none of it, or the first run and another one do not share a score.

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
    """Returns the scores that are wanted by name; None: the usual ones.

    Raises:
        BadInput: one of them is no score of the first run and another one.
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
        BadInput: there is no such cost, or a run has none of it.
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
    """Names that tell runs apart: by method, by the only key that differs, or by directory."""
    from fedray.report.compare import find_differences

    keys = find_differences(runs)
    methods = [values for key, values in keys if key in ("method", "method.name")]
    alone = [f"{keys[0][0]}={value}" for value in keys[0][1]] if len(keys) == 1 else []
    folders = [run.name for run in runs]
    for names in (*methods, alone, folders):
        if len(set(names)) == len(runs):
            return [str(name) for name in names]
    return [f"{name} ({place})" for place, name in enumerate(folders, 1)]
