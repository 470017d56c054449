"""Fewer steps than a method is made of: pFedBayes's turns, FedPA's samples, the fit of β-Predictive Bayes.

Example:
    Four clients with 1, 3, 5 and 0 steps, of whom four are asked.

    >>> tell_short(np.array([1, 3, 5, 0]), 4)
    '2 clients (the first is 0) make'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedray.core.errors import warn_user
from fedray.core.types import IntArray
from fedray.scenario.methods import method_spec_of
from fedray.simulation.study import Study
from fedray.training.block import count_steps
from fedray.training.windows import steps_in_windows

_SENDS_PRIOR = "and a client that does sends the global Gaussian back as it came"
_TAKES_FEWER = "such a client takes a sample a step"
_WAY = 0.5  # where a fit of beta begins, and how far 0 and 1 are from there
_MOST = 1 << 20  # clients that are looked at; of a larger population the first ones


def warn_of_few_steps(study: Study) -> None:
    """Warns where clients make fewer steps than their upload waits for, and servers than a fit needs.

    Args:
        study: what will run.
    """
    if study.scenario["method"].get("beta") == "fit":
        _tell_fit(study, study.scenario["method"])
    windows = study.method.phase.local.windows
    if method_spec_of(study.method.name).mean_field == "prior":
        _tell("method.personal_steps", study.scenario["method"]["personal_steps"], _steps(study), _SENDS_PRIOR)
    elif windows is not None:
        key = "method.samples" if "samples" in study.scenario["method"] else "Windows.number"
        text = f"behind the share of {windows.mixing:g} that is passed over; {_TAKES_FEWER}"
        _tell(key, windows.number, steps_in_windows(_steps(study), windows), text)


def _tell_fit(study: Study, keys: Mapping[str, Any]) -> None:
    """Warns where beta cannot come from 0.5 to 0 or 1: a step of Adam is about as long as its rate."""
    rows = min(len(study.shards.server(world)[1]) for world in range(study.worlds))
    steps = keys["beta_epochs"] * -(-rows // keys["beta_batch"])
    if steps * keys["beta_lr"] < _WAY:
        rate = keys["beta_lr"]
        warn_user(
            f"method.beta = fit makes {steps} steps of {rate:g} on the {rows:,} rows of the server, and comes no "
            f"farther than {steps * rate:.2g} from {_WAY}: raise method.beta_lr or method.beta_epochs"
        )


def _tell(key: str, wanted: int, steps: IntArray, then: str) -> None:
    """Warns of clients with fewer steps than wanted, and of what they do `then`."""
    if who := tell_short(steps, wanted):
        remedy = "lower it, or raise local.steps or local.epochs"
        warn_user(f"{key} = {wanted}, but {who} fewer steps in a round {then}: {remedy}")


def tell_short(steps: IntArray, wanted: int) -> str:
    """Which clients make fewer steps than wanted, with the verb; empty where none does.

    Args:
        steps: of each client, `[N]`; who makes none does not train, and is not meant.
        wanted: how many are needed.
    """
    trains = steps > 0
    (few,) = np.nonzero(trains & (steps < wanted))
    if not len(few):
        return ""
    if len(few) == trains.sum() > 1:
        return "every client makes"
    return f"client {few[0]} makes" if len(few) == 1 else f"{len(few):,} clients (the first is {few[0]}) make"


def _steps(study: Study) -> IntArray:
    """The fewest steps of each client in any world in which it trains, `[N]`; 0 where it never does."""
    client = np.arange(min(study.clients.number, _MOST))
    least = np.full_like(client, np.iinfo(np.int64).max)
    for world in range(study.worlds):
        steps = count_steps(study.shards.sizes(np.full_like(client, world), client), study.method.phase.local)
        least = np.minimum(least, np.where(steps > 0, steps, least))
    return np.where(least == np.iinfo(np.int64).max, 0, least)
