"""Finds the clients whose training fails, and limits the time of a job: a user's own code may raise, diverge or hang.

If a block of jobs fails, its halves are trained again, until every job that fails is alone. The results of the other
jobs stay equal bit for bit: a lane does not depend on the other lanes of its block, a sum does not depend on its order,
and a block that fails has written nothing.

Example:
    >>> def train(jobs):
    ...     if 2 in jobs:
    ...         raise ValueError("client 2 has a bad row")
    ...     return {}, torch.zeros(len(jobs))
    >>> blocks, errors = try_jobs(train, "client {}".format, skip=True, index=np.arange(4))
    >>> [block.jobs.tolist() for block in blocks], list(errors)
    ([[0, 1], [3]], [2])
"""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.core.errors import BadInput, Diverged, FedrayError
from fedray.core.types import IntArray, Net, Plan, Stats
from fedray.models.nets import MODEL_NAMES
from fedray.models.trial import check_finite_outputs
from fedray.own_code.user_code import blame_user_code, describe_exception
from fedray.scenario.names import method_spec_of
from fedray.training.choice import Engine

MOST_TRACEBACK = 4_000  # characters of one traceback
LONE_ROW = (
    "batch normalization cannot train on one row: choose another local.batch_size, layer or group normalization "
    "(model.norm), or clients with more rows (data.partition.min_rows)"
)


class TrainedBlock(NamedTuple):
    """Jobs that were trained together without a failure.

    Attributes:
        jobs: Indexes of the jobs in the plan, `[W]`.
        stats: Reduced statistics of the jobs.
        loss: Loss of each job, summed over its steps, `[W]`.
    """

    jobs: IntArray
    stats: Stats
    loss: Tensor


TrainJobs = Callable[[IntArray], tuple[Stats, Tensor]]  # indexes in the plan `[W]` -> statistics and losses `[W]`
Tracebacks = dict[int, str]  # index of a job in the plan -> its traceback


def try_jobs(
    train: TrainJobs, name: Callable[[int], str], skip: bool, index: IntArray, *, atom: int = 1
) -> tuple[list[TrainedBlock], Tracebacks]:
    """Trains some jobs and leaves out those that fail.

    Args:
        train: Trains the jobs with some indexes in the plan as one block.
        name: Describes the job with an index, for the message.
        skip: Whether jobs that fail are left out; otherwise the first failure is raised.
        index: Indexes of the jobs in the plan, `[W]`.
        atom: Number of consecutive jobs that can only be trained together, and fail together.

    Returns:
        The blocks that were trained, and the tracebacks of the jobs that failed.

    Raises:
        FedrayError: A job failed, and failures are not skipped. The message names the job in one line.
    """
    try:
        return [TrainedBlock(index, *train(index))], {}
    except Exception as error:
        if isinstance(error, Diverged) and not skip:
            raise  # its message names the clients
        if len(index) <= atom:
            if isinstance(error, torch.OutOfMemoryError):  # not the client's fault, so nothing to skip
                raise explain_full_gpu(error) from error
            if skip:
                return [], dict.fromkeys(index.tolist(), "".join(traceback.format_exception(error))[-MOST_TRACEBACK:])
            who = name(int(index[0]))
            lone = isinstance(error, ValueError) and str(error).startswith("Expected more than 1 value per channel")
            remedy = LONE_ROW if lone else "correct it"  # torch's error of batch normalization
            raise FedrayError(f"{who} failed: {_explain(error)}: {remedy}, or set on_client_error: skip") from error
    halves = np.array_split(index.reshape(-1, atom), 2)
    first, second = (try_jobs(train, name, skip, half.ravel(), atom=atom) for half in halves)
    return first[0] + second[0], first[1] | second[1]


def score_clients(
    score: Callable[[IntArray], Tensor], client: IntArray, rows: int, skip: bool, limit: float | None
) -> Tensor:
    """Scores some clients; where failures are skipped, a client whose score fails or takes too long gets NaN.

    Args:
        score: A function that scores clients: ids `[c]` -> scores `[rows, c]`.
        client: Ids of the clients, `[c]`.
        rows: How many scores each client has.
        skip: Whether failures are skipped; otherwise they are raised.
        limit: Wall seconds that one call of `score` may take, or None.

    Returns:
        The scores, `[rows, c]`.

    Raises:
        FedrayError: A score failed, and failures are not skipped. The message names the client in one line.
    """
    try:
        with limit_seconds(limit):
            return score(client)
    except Exception as error:
        if len(client) == 1 and skip:
            return torch.full((rows, 1), torch.nan, dtype=torch.float64)
        if len(client) == 1:
            raise FedrayError(
                f"client {client[0]} cannot be scored: {_explain(error)}: correct it, or set on_client_error: skip"
            ) from error
    return torch.cat([score_clients(score, half, rows, skip, limit) for half in np.array_split(client, 2)], dim=1)


def compute_answers(engine: Engine, net: Net, rows: Tensor, counters: Tensor, inputs: Tensor) -> Tensor:
    """Computes raw outputs of models outside training, `[M, n, C]`; errors of a user's network become one line.

    Args:
        engine: The engine that computes.
        net: The network.
        rows: The models, `[M, d]`.
        counters: The counters of the models, `[M, c]`.
        inputs: Inputs of each model, `[M, n, ...]`.

    Raises:
        FedrayError: The network raised an exception, or its outputs are not finite numbers.
    """
    try:
        outputs = engine.outputs(net, rows, counters, inputs)
    except Exception as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise explain_full_gpu(error) from error
        if net.name in MODEL_NAMES:
            raise
        with blame_user_code(f"model.name = {net.name} in evaluation"):
            raise
    if net.name in MODEL_NAMES:
        return outputs
    check_finite_outputs(net, outputs, " in evaluation")
    return outputs


def explain_divergence(scenario: Mapping[str, Any], t: int, plan: Plan, jobs: Iterable[int]) -> Diverged:
    """Returns the error of a round in which training diverged: it names the clients and the step sizes to lower.

    Args:
        scenario: The scenario in plain types.
        t: The round, from 0.
        plan: The plan of the jobs.
        jobs: Indexes of the jobs that diverged.
    """
    names = ", ".join(f"client {plan.client[j]} (model {plan.model[j]})" for j in jobs)
    step = method_spec_of(scenario.get("method", {}).get("name")).step
    steps = f"local.lr or method.{step}" if step else "local.lr"
    return Diverged(f"round {t + 1}: training diverged (NaN, infinite or huge weights) at {names}: lower {steps}")


def explain_full_gpu(error: BaseException) -> FedrayError:
    """Returns the error of a GPU whose memory is full, in one line.

    Example:
        >>> full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...")
        >>> print(explain_full_gpu(full))  # doctest: +ELLIPSIS
        the memory of the GPU is full (CUDA out of memory. Tried to allocate 2.00 GiB): raise clients.tiers.NAME...
    """
    why = ". ".join(" ".join(str(error).split()).split(". ")[:2])[:200]
    return FedrayError(
        f"the memory of the GPU is full ({why}): raise clients.tiers.NAME.num_gpus so that fewer actors share it, or "
        "lower local.batch_size, method.models, replicates or the model's size"
    )


def _explain(error: Exception) -> str:
    """Describes an error in one line; errors of fedray itself are written without their type."""
    return str(error) if isinstance(error, FedrayError) else describe_exception(error)


@contextmanager
def limit_seconds(seconds: float | None) -> Iterator[None]:
    """Raises TimeoutError in the body after some seconds of wall time, between two steps of the interpreter.

    The limit is a timer signal, so it works in the main thread only.
    """
    if seconds is None:
        yield
        return
    inside = [True]

    def stop(_number: int, _frame: Any) -> None:
        if inside:
            raise TimeoutError(f"it took longer than client_timeout = {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)  # it repeats, because the body may catch the first exception
    try:
        try:
            yield
        finally:
            inside.clear()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def check_limit(seconds: float | None) -> None:
    """Raises an error if a time limit is set outside the main thread, where it has no effect."""
    if seconds is not None and threading.current_thread() is not threading.main_thread():
        raise BadInput(
            f"client_timeout = {seconds:g} is kept by the main thread only, and this is another one: run it there, "
            "with runtime: ray, or leave client_timeout out"
        )
