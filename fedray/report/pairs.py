"""Runs compared seed by seed: the paired differences of their scores, and what a reader must know about the pairs.

Example:
    >>> import numpy as np
    >>> columns = {name: np.zeros(4) for name in ("fold", "replicate")} | {"round": np.array([0.0, 1.0, 0.0, 1.0])}
    >>> columns["replicate"] = np.array([0.0, 0.0, 1.0, 1.0])
    >>> one, two = (ReadRun(name, {"seed": 3}, "", {}, {}, columns | {"accuracy": np.array([0.1, up, 0.1, up + 0.1])},
    ...             None, None, {}) for name, up in (("one", 0.8), ("two", 0.6)))
    >>> read_world_scores(one, "accuracy")
    {(3, 0): 0.8, (4, 0): 0.9}
    >>> pair = compare_with_first([one, two], ["accuracy"])[0]
    >>> pair.run, pair.baseline, pair.metric, round(pair.difference.mean, 3), pair.difference.n
    ('two', 'one', 'accuracy', -0.2, 2)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from fedray.metrics.paired import PairedDifference, compare_paired, score_worlds
from fedray.report.read import ReadRun

MOST_NAMED_SEEDS = 12


class RunPair(NamedTuple):
    """One score of two runs.

    Attributes:
        metric: the score.
        run: name of the run.
        baseline: name of the run that it is compared with.
        run_mean: mean score of the run over the shared seeds and folds; NaN where they share none.
        baseline_mean: that of the other run.
        difference: run minus baseline over the shared seeds; None where they share none.
    """

    metric: str
    run: str
    baseline: str
    run_mean: float
    baseline_mean: float
    difference: PairedDifference | None


def read_world_scores(run: ReadRun, metric: str, last: float = math.inf) -> dict[tuple[int, int], float]:
    """A score of each replicate and fold at its last evaluated round, by (seed, fold).

    Args:
        run: the run.
        metric: a column of `rounds.parquet`; a run without it has no scores.
        last: rounds after this one do not count.
    """
    if metric not in run.rounds:
        return {}
    columns = (run.rounds[name] for name in ("replicate", "fold", metric))
    return score_worlds(_read_seed(run), *columns, round=run.rounds["round"], last=last)


def find_common_end(runs: Sequence[ReadRun]) -> float:
    """The last round of the shortest run; infinity where a run has evaluated none."""
    return min((float(run.rounds["round"].max()) if run.rounds else math.inf for run in runs), default=math.inf)


def compare_with_first(runs: Sequence[ReadRun], metrics: Sequence[str], last: float | None = None) -> list[RunPair]:
    """Every run against the first one: each score that both have, by the last round of the shortest.

    Args:
        runs: at least two.
        metrics: columns of `rounds.parquet`; those that two runs do not share are left out.
        last: rounds after this one do not count; None means the last one of the shortest run.
    """
    at = find_common_end(runs) if last is None else last
    found = []
    for run in runs[1:]:
        for metric in metrics:
            mine, theirs = read_world_scores(run, metric, at), read_world_scores(runs[0], metric, at)
            if mine and theirs:
                shared = sorted(mine.keys() & theirs.keys())
                mean, base = (_mean([one[key] for key in shared]) for one in (mine, theirs))
                found.append(RunPair(metric, run.name, runs[0].name, mean, base, compare_paired(mine, theirs)))
    return found


def list_pairing_notes(runs: Sequence[ReadRun]) -> list[str]:
    """What a reader must know before the runs are compared: lengths and seeds that differ, and too few of them.

    Example:
        >>> import numpy as np
        >>> worlds = {name: np.array([0.0]) for name in ("replicate", "fold")}
        >>> runs = [ReadRun(name, {"seed": seed}, "", {}, {}, worlds | {"round": np.array([length])}, None, None, {})
        ...         for name, seed, length in (("a", 0, 5.0), ("b", 1, 9.0))]
        >>> for line in list_pairing_notes(runs):
        ...     print(line)
        The runs differ in their rounds: a 5, b 9. They are compared by what each had reached in round 5.
        a and b share no seed: a has 0, b has 1. They cannot be compared in pairs.
    """
    found = []
    ends = [f"{run.rounds['round'].max():.0f}" if run.rounds else "none" for run in runs]
    if len(set(ends)) > 1:
        each = ", ".join(f"{run.name} {end}" for run, end in zip(runs, ends, strict=True))
        found.append(
            f"The runs differ in their rounds: {each}. They are compared by what each had reached in round "
            f"{find_common_end(runs):.0f}."
        )
    for run in runs[1:]:
        mine, theirs = _list_seeds(run), _list_seeds(runs[0])
        shared = mine & theirs
        names = f"{runs[0].name} has {_name_seeds(theirs)}, {run.name} has {_name_seeds(mine)}"
        if not shared:
            found.append(f"{runs[0].name} and {run.name} share no seed: {names}. They cannot be compared in pairs.")
        elif mine != theirs:
            found.append(f"{runs[0].name} and {run.name} share the seeds {_name_seeds(shared)} only: {names}.")
        if len(shared) == 1 and not _shares_folds(run, runs[0]):
            found.append(f"{runs[0].name} and {run.name} share one seed: nothing says how far chance goes.")
    return found


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _read_seed(run: ReadRun) -> int:
    seed = run.scenario.get("seed", 0)
    return seed if isinstance(seed, int) else 0


def _list_seeds(run: ReadRun) -> set[int]:
    """Seeds of the replicates of a run."""
    return {_read_seed(run) + int(r) for r in run.rounds.get("replicate", ())}


def _shares_folds(run: ReadRun, other: ReadRun) -> bool:
    """Whether two runs share several folds."""
    return len(set(run.rounds["fold"].tolist()) & set(other.rounds["fold"].tolist())) > 1


def _name_seeds(seeds: set[int]) -> str:
    """Seeds as text.

    Example:
        >>> _name_seeds({0, 1, 2, 7}), _name_seeds(set(range(40)))
        ('0, 1, 2, 7', '40 seeds from 0 to 39')
    """
    if len(seeds) > MOST_NAMED_SEEDS:
        return f"{len(seeds)} seeds from {min(seeds)} to {max(seeds)}"
    return ", ".join(map(str, sorted(seeds))) or "none"
