"""Which client failed, and when one has had its time: code of the user's own may raise, diverge or hang.

A block of jobs that fails is trained again in halves until every job that fails stands alone. The others keep their
bits: a lane does not depend on its neighbours, a sum not on its order, and a failing block has written nothing.
"""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.core.errors import BadInput, Diverged, FedrayError
from fedray.core.types import IntArray, Stats

TEXT, MOST_TEXT = 4_000, 100_000  # characters: of a traceback, and of all of a call (a reply is read through 1 MB)


class Done(NamedTuple):
    """Jobs that came through together: their places in the plan, reduced statistics, and losses `[W]`."""

    jobs: IntArray
    stats: Stats
    loss: Tensor


Work = Callable[[IntArray], tuple[Stats, Tensor]]
Errors = dict[int, str]  # a job's place in the plan -> its traceback


def try_jobs(work: Work, name: Callable[[int], str], skip: bool, index: IntArray) -> tuple[list[Done], Errors]:
    """Trains some jobs; those that fail are left out.

    Args:
        work: trains the jobs at `index` as one block. name: of a job, for the message. skip: else a failure is raised.

    Raises:
        FedrayError: a job failed, and failures are not skipped; one line naming it.
    """
    try:
        return [Done(index, *work(index))], {}
    except Exception as error:
        if isinstance(error, Diverged) and not skip:
            raise  # it names its clients
        if len(index) == 1:
            if skip:
                return [], {int(index[0]): _traceback(error)}
            why = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            raise FedrayError(
                f"{name(int(index[0]))} failed: {why}: correct it, or set on_client_error: skip"
            ) from error
    (done, errors), (more, others) = (try_jobs(work, name, skip, half) for half in np.array_split(index, 2))
    return done + more, errors | others


def score_clients(
    score: Callable[[IntArray], Tensor], client: IntArray, rows: int, skip: bool, limit: float | None
) -> Tensor:
    """`score(client)` `[rows, c]`; with `skip`, NaN for a client whose own score fails or takes too long."""
    try:
        with limit_seconds(limit):
            return score(client)
    except Exception:
        if not skip:
            raise
        if len(client) == 1:
            return torch.full((rows, 1), torch.nan, dtype=torch.float64)
    return torch.cat([score_clients(score, half, rows, skip, limit) for half in np.array_split(client, 2)], dim=1)


def shorten_traceback(errors: Errors) -> Errors:
    """Tracebacks that a reply can carry: beyond the first ones only their last lines."""
    left, out = MOST_TEXT, {}
    for job, text in sorted(errors.items()):
        out[job] = text if left > len(text) else text.strip().rpartition("\n")[2][:200]
        left -= len(out[job])
    return out


def _traceback(error: Exception) -> str:
    return "".join(traceback.format_exception(error))[-TEXT:]


@contextmanager
def limit_seconds(seconds: float | None) -> Iterator[None]:
    """Raises TimeoutError inside after some seconds of wall time, between two steps of the interpreter.

    It is a timer signal and so belongs to the main thread; another timer that was running goes on afterwards.
    """
    if seconds is None:
        yield
        return
    armed = [True]

    def ring(number: int, frame: Any) -> None:
        if armed:
            raise TimeoutError(f"it took longer than client_timeout = {seconds:g} s")

    before, began = signal.signal(signal.SIGALRM, ring), time.monotonic()
    left, again = signal.setitimer(signal.ITIMER_REAL, seconds, seconds)  # again: whoever swallows the first one
    try:
        try:
            yield
        finally:
            armed.clear()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(1e-3, left - (time.monotonic() - began)), again)


def check_limit(seconds: float | None) -> None:
    """Refuses a limit where none can be kept."""
    if seconds is not None and threading.current_thread() is not threading.main_thread():
        raise BadInput(
            f"client_timeout = {seconds:g} is kept by the main thread only, and this is another one: run it there, "
            "with runtime: ray, or leave client_timeout out"
        )
