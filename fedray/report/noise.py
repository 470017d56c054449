"""Whether the regressions of several runs count the noise of the observations in the same way.

An ensemble's variance is the spread of its models, unless `predict.noise` adds noise; one model has no spread, so its
residual variance stands there. Side by side, their NLL and coverage are of two kinds.

Example:
    >>> nll = {"nll_none": np.array([9.0]), "nll_residual": np.array([2.0])}
    >>> runs = [ReadRun(name, {}, "", {}, {}, {**nll, "nll": np.array([value])}, None, None, {})
    ...         for name, value in (("five models", 9.0), ("one model", 2.0))]
    >>> list_noise_notes(runs[:1]), len(list_noise_notes(runs))
    ([], 1)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedray.report.read import ReadRun


def list_noise_notes(runs: Sequence[ReadRun]) -> list[str]:
    """A note where the scores of some runs leave out the noise of the observations and those of others hold it.

    Args:
        runs: to be compared.
    """
    holds = [(run.name, _holds_noise(run)) for run in runs]
    without, within = ([name for name, value in holds if value is which] for which in (False, True))
    if not without or not within:
        return []
    return [
        f"NLL, CRPS, coverage and widths leave out the noise of the observations in {', '.join(without)}, and "
        f"hold it in {', '.join(within)}. Compare `nll_residual`, which adds it everywhere, or run with "
        "predict.noise=residual."
    ]


def _holds_noise(run: ReadRun) -> bool | None:
    """Whether the run's NLL is not the one without noise; None where that cannot be said, or its models predict it."""
    model = run.scenario.get("model")
    if isinstance(model, Mapping) and model.get("objective") == "gaussian_nll":
        return None
    if not {"nll", "nll_none"} <= run.rounds.keys():
        return None
    known = np.isfinite(run.rounds["nll_none"])
    if not known.any():
        return None
    return not np.allclose(run.rounds["nll"][known], run.rounds["nll_none"][known])
