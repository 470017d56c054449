"""What a state keeps of past rounds for schedules and selections: tensors, losses, and when they were measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedray.core.method import Method, Remember
from fedray.core.types import FloatArray, IntArray, Plan, State, Stats

# ---------------------------------------------------------------------------------------------------------------------
# Tensors that a state keeps of past rounds, beside what the method itself keeps.


def keep_in_state(method: Method, first: Mapping[str, Callable[[], Tensor]], write: Remember) -> Method:
    """Returns the method with further tensors in its state.

    Args:
        method: any method with a server.
        first: makes each tensor before the first round, by its name. The method's own functions do not see them.
        write: the state with these tensors after a round; it comes after what the method remembers by itself.

    Example:
        >>> import torch
        >>> from fedray.assembly.study import build_study
        >>> from fedray.scenario.loader import read_scenario
        >>> method = build_study(read_scenario({"method": {"name": "fedavg"}, "clients": {"number": 3}})).method
        >>> def count(t, state, plan, loss):
        ...     return state._replace(extra={**state.extra, "jobs": state.extra["jobs"] + len(loss)})
        >>> phase = keep_in_state(method, {"jobs": lambda: torch.zeros(1)}, count).phase
        >>> state = State(torch.zeros(1, 2), torch.zeros(1, 0), phase.server.init(torch.zeros(1, 2)))
        >>> phase.remember(0, state, None, [0.5, 0.25]).extra["jobs"].tolist()
        [2.0]
    """
    phase = method.phase

    def init(models: Tensor) -> dict[str, Tensor]:
        return {**phase.server.init(models), **{name: make() for name, make in first.items()}}

    def hide(state: State) -> State:
        return state._replace(extra={name: value for name, value in state.extra.items() if name not in first})

    def carry(before: State, after: State) -> State:
        return after._replace(extra={**after.extra, **{name: before.extra[name] for name in first}})

    def step(state: State, stats: Stats, t: int) -> State:
        return carry(state, phase.server.step(hide(state), stats, t))

    def remember(t: int, state: State, plan: Plan, loss: FloatArray) -> State:
        own = state if phase.remember is None else carry(state, phase.remember(t, hide(state), plan, loss))
        return write(t, own, plan, loss)

    server = phase.server._replace(init=init, step=step)
    return replace(method, phase=replace(phase, server=server, remember=remember))


# ---------------------------------------------------------------------------------------------------------------------
# The adaptive schedule's memory: a state that keeps the last loss of every client on every model, and their odds.


def remember_losses(method: Method, worlds: int, clients: int) -> Method:
    """Returns the method with `job_loss` `[worlds, N, K]` in its state, NaN before the first job.

    Args:
        method: any method with a server.
        worlds: number of worlds.
        clients: N.

    Example:
        >>> import fedray
        >>> scenario = {"schedule": {"kind": "adaptive"}, "rounds": 1, "clients": {"number": 4}}
        >>> run = fedray.run(scenario, runtime="inline", report=False)
        >>> run.progress.state.extra["job_loss"].shape
        torch.Size([1, 4, 5])
    """
    models = method.phase.models
    first = {"job_loss": lambda: torch.full((worlds, clients, models), float("nan"))}
    return keep_in_state(method, first, write_losses)


def write_losses(_t: int, state: State, plan: Plan, loss: FloatArray) -> State:
    """Returns the state with the losses `[J]` of a plan's jobs in its `job_loss`.

    Args:
        state: has `job_loss`.
        plan: the jobs of a round, J of them.
        loss: the mean training loss of each, `[J]`.
    """
    losses = state.extra["job_loss"].clone()
    losses[plan.world, plan.client, plan.model] = torch.from_numpy(loss).float()
    return state._replace(extra={**state.extra, "job_loss": losses})


def find_odds(loss: FloatArray) -> FloatArray:
    """Returns the odds with which clients draw their models; they grow with the losses.

    They are the losses themselves. At a client with a negative loss (a density may be above 1) they are `exp(loss)`, as
    shares of the largest: of a Gaussian's negative log likelihood they do not depend on the units of the target.

    Args:
        loss: The last loss of each client on each model, `[P, K]`, NaN before the first: such a model has the largest
            odds.

    Returns:
        `[P, K]`, above 0.

    Example:
        >>> find_odds(np.array([[1.0, np.nan, 3.0], [0.0, -1.0, -2.0]])).round(2).tolist()
        [[1.0, 3.0, 3.0], [1.0, 0.37, 0.14]]
    """
    most = np.nanmax(np.where(np.isnan(loss), 1e-12, loss), axis=1, keepdims=True)
    known = np.where(np.isnan(loss), most, loss)
    less = np.clip(known, -1e300, 1e300) - np.clip(most, -1e300, 1e300)  # infinity less infinity is no number
    return np.where((known < 0).any(axis=1, keepdims=True), np.exp(less), known) + 1e-12


# ---------------------------------------------------------------------------------------------------------------------
# What a client selection remembers: the last loss of every client, when it was, and Oort's pace.

WINDOW = 20  # rounds: Oort, section 7.1
FIRST_PACE, PACE_STEP = 30.0, 10.0  # percent: Oort's preferred duration of a round, as its authors' code has them


def read_memory(state: State | None, world: int, number: int) -> tuple[FloatArray, IntArray, float]:
    """Losses and last rounds of the clients of a world, `[N]` each, and Oort's pace.

    Args:
        state: May have them; None or without them: nobody was trained yet.
        world: Number of the world.
        number: Number of clients, N.

    Example:
        >>> read_memory(None, world=0, number=2)
        (array([nan, nan]), array([0, 0]), 30.0)
    """
    if state is None or "client_loss" not in state.extra:
        return np.full(number, np.nan), np.zeros(number, dtype=np.int64), FIRST_PACE
    loss, last = (state.extra[name][world].numpy() for name in ("client_loss", "client_round"))
    return loss.astype(np.float64), last, float(state.extra["pace"][world, 0])


def remember_clients(method: Method, worlds: int, clients: int, sizes: Callable[[int], IntArray]) -> Method:
    """Returns the method with what its selection reads in its state; before the first job this is nothing.

    That is `client_loss` and `client_round` `[R, N]`, and `pace` `[R, 1 + 2 WINDOW]`: Oort's percentile, and the
    utility of the last rounds.

    Args:
        method: Any method with a server.
        worlds: Number of worlds, R.
        clients: Number of clients, N.
        sizes: Training samples of all clients of a world, `[N]`.
    """
    pace = torch.zeros((worlds, 1 + 2 * WINDOW), dtype=torch.float64)
    pace[:, 0] = FIRST_PACE
    first = {
        "client_loss": lambda: torch.full((worlds, clients), float("nan")),
        "client_round": lambda: torch.zeros((worlds, clients), dtype=torch.int64),
        "pace": pace.clone,
    }
    return keep_in_state(method, first, partial(write_memory, sizes=sizes, window=WINDOW))


def write_memory(
    t: int, state: State, plan: Plan, loss: FloatArray, *, sizes: Callable[[int], IntArray], window: int
) -> State:
    """Returns the state with the mean loss of each client of a round, and with Oort's pace after that round.

    Args:
        t: The round, from 0.
        state: Has what `remember_clients` keeps.
        plan: The jobs of the round, J of them.
        loss: The mean training loss of each, `[J]`.
        sizes: Training samples of all clients of a world, `[N]`.
        window: Rounds after which the pace may change.
    """
    done = t + 1
    losses, last, pace = (state.extra[name].clone() for name in ("client_loss", "client_round", "pace"))
    for world in np.unique(plan.world).tolist():
        own = plan.world == world
        client, index = np.unique(plan.client[own], return_inverse=True)
        mean = np.bincount(index, loss[own]) / np.bincount(index)
        losses[world, client], last[world, client] = torch.from_numpy(mean).float(), done
        pace[world, 1 + t % (2 * window)] = float((sizes(world)[client] * mean).sum())
        if done % window == 0 and done >= 2 * window:
            half = pace[world, 1:].reshape(2, window).sum(dim=1)
            newest = t // window % 2
            if half[newest] <= half[1 - newest]:
                pace[world, 0] = min(100.0, float(pace[world, 0]) + PACE_STEP)
    return state._replace(extra={**state.extra, "client_loss": losses, "client_round": last, "pace": pace})
