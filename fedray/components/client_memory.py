"""What a client selection remembers: the last loss of every client, when it was, and Oort's pace.

Example:
    >>> read_memory(None, world=0, number=2)
    (array([nan, nan]), array([0, 0]), 30.0)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedray.components.kept_state import keep_in_state
from fedray.core.errors import BadInput
from fedray.core.method import Method
from fedray.core.types import FloatArray, IntArray, Plan, State

MOST_KEPT = 50_000_000  # clients x worlds whose losses are kept
WINDOW = 20  # rounds: Oort, section 7.1
FIRST_PACE, PACE_STEP = 30.0, 10.0  # percent: Oort's preferred duration of a round, as its authors' code has them


def read_memory(state: State | None, world: int, number: int) -> tuple[FloatArray, IntArray, float]:
    """Losses and last rounds of the clients of a world, `[N]` each, and Oort's pace.

    Args:
        state: May have them; None or without them: nobody was trained yet.
        world: Number of the world.
        number: Number of clients, N.
    """
    if state is None or "client_loss" not in state.extra:
        return np.full(number, np.nan), np.zeros(number, dtype=np.int64), FIRST_PACE
    loss, last = (state.extra[name][world].numpy() for name in ("client_loss", "client_round"))
    return loss.astype(np.float64), last, float(state.extra["pace"][world, 0])


def remember_clients(method: Method, worlds: int, clients: int, sizes: Callable[[int], IntArray]) -> Method:
    """The method with what its selection reads in its state, before the first job nothing.

    That is `client_loss` and `client_round` `[R, N]`, and `pace` `[R, 1 + 2 WINDOW]`: Oort's percentile, and the
    utility of the last rounds.

    Args:
        method: Any method with a server.
        worlds: Number of worlds, R.
        clients: Number of clients, N.
        sizes: Training samples of all clients of a world, `[N]`.

    Raises:
        BadInput: There are too many clients to keep their losses.
    """
    if worlds * clients > MOST_KEPT:
        raise BadInput(
            f"participation.selection keeps a loss for each client: {worlds * clients:,} of them are too many: lower "
            "clients.number or replicates, or choose uniform"
        )

    def begin_pace() -> Tensor:
        pace = torch.zeros((worlds, 1 + 2 * WINDOW), dtype=torch.float64)
        pace[:, 0] = FIRST_PACE
        return pace

    first = {
        "client_loss": lambda: torch.full((worlds, clients), float("nan")),
        "client_round": lambda: torch.zeros((worlds, clients), dtype=torch.int64),
        "pace": begin_pace,
    }
    return keep_in_state(method, first, partial(write_memory, sizes=sizes, window=WINDOW))


def write_memory(
    t: int, state: State, plan: Plan, loss: FloatArray, *, sizes: Callable[[int], IntArray], window: int
) -> State:
    """The state with the mean loss of each client of a round, and with Oort's pace after that round.

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
