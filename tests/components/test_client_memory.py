"""What a selection remembers of its clients: Oort's pace rises when, and only when, the utility does not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedray.components.memory import FIRST_PACE, PACE_STEP, read_memory, write_memory
from fedray.core import rng
from fedray.core.types import Plan, State

WINDOW = 2
SIZES = np.array([3, 5])


def follow_pace(loss: np.ndarray) -> np.ndarray:
    """The pace after each round `[T, R]` where both clients have these losses, `[T, R]`."""
    rounds, worlds = loss.shape
    pace = torch.zeros((worlds, 1 + 2 * WINDOW), dtype=torch.float64)
    pace[:, 0] = FIRST_PACE
    extra = {
        "client_loss": torch.full((worlds, 2), float("nan")),
        "client_round": torch.zeros((worlds, 2), dtype=torch.int64),
        "pace": pace,
    }
    state, world = (
        State(torch.zeros(1, 1), torch.zeros(1, 0, dtype=torch.int64), extra),
        np.repeat(np.arange(worlds), 2),
    )
    plan, found = Plan(np.tile([0, 1], worlds), np.zeros(2 * worlds, np.int64), world), []
    for t in range(rounds):
        state = write_memory(t, state, plan, np.repeat(loss[t], 2), sizes=lambda _world: SIZES, window=WINDOW)
        found.append([read_memory(state, w, 2)[2] for w in range(worlds)])
    return np.array(found)


def test_oorts_pace_rises_where_the_newest_rounds_were_not_more_useful_than_those_before() -> None:
    """In each world by itself, at the end of each window but the first, and to 100 % at most."""
    loss = rng.stream(0, "loss").integers(1, 5, (60, 6)).astype(float)
    wanted, expected = np.full(6, FIRST_PACE), []
    for done in range(1, 61):
        if done % WINDOW == 0 and done >= 2 * WINDOW:
            newest, before = (loss[done - n : done - n + WINDOW].sum(axis=0) for n in (WINDOW, 2 * WINDOW))
            wanted = np.where(newest <= before, np.minimum(wanted + PACE_STEP, 100.0), wanted)
        expected.append(wanted)
    assert np.array_equal(follow_pace(loss), np.array(expected))


@pytest.mark.parametrize(("loss", "last"), [(np.arange(1.0, 9.0), 30.0), (np.arange(8.0, 0.0, -1.0), 60.0)])
def test_oorts_pace_stays_while_clients_get_more_useful_and_rises_while_they_get_less(
    loss: np.ndarray, last: float
) -> None:
    assert follow_pace(loss[:, None])[-1].tolist() == [last]
