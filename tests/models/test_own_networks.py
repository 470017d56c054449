"""Networks of one's own in a run; what does not fit the data stands in `tests/wording/networks.txt`."""

import numpy as np
import pytest
import torch
from modules import Apply
from small import scenario
from torch import Tensor, nn

import fedray
from fedray.core.errors import ScenarioWarning
from fedray.data.types import Split, classification

X = np.random.default_rng(0).normal(size=(80, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
TWO = classification("mine", Split(X[:60], Y[:60]), Split(X[60:], Y[60:]), ("no", "yes"))


class Adapter(nn.Module):
    """A low-rank adapter whose `up` begins at 0, as LoRA's; `down` is drawn, and is a buffer."""

    down: Tensor

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.register_buffer("down", torch.randn(3, 4))
        self.up = nn.Parameter(torch.zeros(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.down.T @ self.up.T


def test_each_model_has_a_buffer_of_its_own_that_no_client_changes() -> None:
    keys = {"rounds": 2, "clients": {"number": 4}, "method": {"models": 2}, "runtime": "inline", "report": False}
    runs = [fedray.run(keys | {"rounds": n}, data=TWO, model=Adapter) for n in (1, 3)]
    short, long = (run.models for run in runs)
    assert not torch.equal(long[0]["down"], long[1]["down"])
    assert [torch.equal(a["down"], b["down"]) for a, b in zip(short, long, strict=True)] == [True, True]
    assert [torch.equal(a["up"], b["up"]) for a, b in zip(short, long, strict=True)] == [False, False]


def test_scores_that_depend_on_the_pieces_of_the_test_set_were_printed_in_silence() -> None:
    """One line says it; the answers of such a network for one row do depend on the others."""

    def network() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), Apply(lambda x: x - x.mean(0)))

    with pytest.warns(ScenarioWarning) as said:
        run = fedray.run(scenario({"rounds": 1}), model=network)
    assert sum("depends on the rows" in str(one.message) for one in said) == 1
    x = np.random.default_rng(0).integers(0, 17, (4, 1, 8, 8)).astype(np.uint8)
    assert not np.allclose(run.predict(x).mean[:2], run.predict(x[:2]).mean)
