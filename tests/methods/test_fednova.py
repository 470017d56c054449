"""FedNova: where it is FedAvg, where it is not, and its formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small import scenario

import fedray
from fedray.components.servers import Rows
from fedray.core.method import Local
from fedray.core.types import State, Uploads
from fedray.methods.fednova import normalized_mean


def run(name: str, local: dict[str, Any]) -> fedray.Run:
    """A small run under a Dirichlet partition: clients differ in size."""
    return fedray.run(scenario({"method": {"name": name}, "local": local}))


def test_with_equal_steps_it_is_fedavg() -> None:
    """All clients do 7 steps, whatever their size: tau_eff / tau_i is 1."""
    nova, avg = (run(name, {"epochs": None, "steps": 7}) for name in ("fednova", "fedavg"))
    torch.testing.assert_close(nova.progress.state.models, avg.progress.state.models, rtol=0, atol=1e-6)


def test_with_unequal_steps_it_is_not_fedavg() -> None:
    nova, avg = (run(name, {"epochs": 2}) for name in ("fednova", "fedavg"))
    assert (nova.progress.state.models - avg.progress.state.models).abs().max() > 1e-3


def test_one_step_of_the_server_is_the_formula() -> None:
    """`w + tau_eff sum_i p_i delta_i / tau_i`, and the buffer behind the trainable numbers is averaged with p_i."""
    size, local = np.array([3, 8, 20]), Local(batch_size=4, epochs=2)
    delta = torch.linspace(-1, 1, 12).view(3, 4)
    zero = np.zeros(3, dtype=np.int64)
    server = normalized_mean(Rows(1, 1), "examples", local=local, trainable=3)
    start = State(torch.zeros(1, 4), torch.zeros(1, 0, dtype=torch.int64), {})
    uploads = Uploads(delta, client=np.arange(3), model=zero, world=zero, tier=zero, size=size)
    found = server.step(start, server.reduce(uploads), 0).models[0].double().numpy()
    steps, share = np.array([2, 4, 10]), size / size.sum()
    wanted = (share * steps).sum() * (share[:, None] * delta.double().numpy() / steps[:, None]).sum(0)
    wanted[3] = share @ delta.double().numpy()[:, 3]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-7)


@pytest.mark.parametrize("local", [{"optimizer": "adam"}, {"momentum": 0.9}, {"pull": 0.1}])
def test_what_is_no_plain_sgd_is_refused(local: dict[str, Any]) -> None:
    with pytest.raises(fedray.BadInput, match="FedNova's mean is written for plain SGD"):
        run("fednova", local)
