"""How uploads become the next models: what nobody sent stays as it was."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedray.components.servers import Rows, by_tier, mean
from fedray.core.method import Server
from fedray.core.types import State, Uploads

ROWS = Rows(worlds=1, models=3)


@pytest.mark.parametrize("server", [mean(ROWS), by_tier(ROWS, 2)], ids=["mean", "by_tier"])
def test_the_counters_of_a_model_that_nobody_trained_stay(server: Server) -> None:
    """Those of batch normalization count steps; of a trained model the largest that was sent is the new one."""
    state = State(torch.zeros(3, 2), torch.tensor([[5, 1], [6, 2], [7, 3]]), {})
    zero, client = np.zeros(2, np.int64), np.arange(2)
    counters = torch.tensor([[8, 4], [9, 3]])
    uploads = Uploads(torch.ones(2, 2), client, 1 + zero, zero, client, 1 + zero, counters)
    after = server.step(state, server.reduce(uploads), 0)
    assert after.counters.tolist() == [[5, 1], [9, 4], [7, 3]]
    assert after.models.tolist() == [[0, 0], [1, 1], [0, 0]]
