"""FedExP: where it is FedAvg, its formula, and how long its step can be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small import scenario

import fedray
from fedray.components.servers import Rows
from fedray.core.types import State, Uploads
from fedray.methods.fedexp import extrapolated_mean


def models(method: str, **keys: object) -> torch.Tensor:
    """The models of a small run."""
    return fedray.run(scenario({**keys, "method": {"name": method}})).progress.state.models


def step(delta: np.ndarray, size: np.ndarray, eps: float = 1e-9) -> np.ndarray:
    """One step of the server from 0, where the last number of a row is a buffer, `[d]`."""
    jobs, d = delta.shape
    zero = np.zeros(jobs, dtype=np.int64)
    server = extrapolated_mean(Rows(1, 1), "examples", eps=eps, trainable=d - 1)
    start = State(torch.zeros(1, d), torch.zeros(1, 0, dtype=torch.int64), {})
    uploads = Uploads(
        torch.from_numpy(delta).float(), client=np.arange(jobs), model=zero, world=zero, tier=zero, size=size
    )
    return server.step(start, server.reduce(uploads), 0).models[0].double().numpy()


def test_with_one_client_it_is_fedavg() -> None:
    alone = {"clients": {"number": 1}}
    assert torch.equal(models("fedexp", **alone), models("fedavg", **alone))


def test_with_a_large_eps_it_is_fedavg() -> None:
    found = fedray.run(scenario({"method": {"name": "fedexp", "eps": 1e6}})).progress.state.models
    torch.testing.assert_close(found, models("fedavg"), rtol=0, atol=1e-6)


def test_with_clients_that_differ_it_is_not_fedavg() -> None:
    skewed = {"data": {"partition": {"name": "classes", "classes": 1}}, "clients": {"number": 10}}
    assert (models("fedexp", **skewed) - models("fedavg", **skewed)).abs().max() > 1e-3


def test_updates_that_are_alike_make_fedavgs_step() -> None:
    delta = np.linspace(-1, 1, 4)
    np.testing.assert_allclose(step(np.tile(delta, (5, 1)), np.arange(1, 6)), delta, rtol=0, atol=1e-7)


@pytest.mark.parametrize("clients", [2, 3, 8])
def test_orthogonal_updates_of_one_length_make_half_as_many_steps_as_there_are_clients(clients: int) -> None:
    """Their mean is 1 / N in each place, and eta = N / 2: half of each update is made. The buffer is averaged."""
    delta = np.concatenate([np.eye(clients), np.ones((clients, 1))], axis=1)
    wanted = np.concatenate([np.full(clients, 0.5), [1.0]])
    np.testing.assert_allclose(step(delta, np.full(clients, 7)), wanted, rtol=0, atol=1e-6)


def test_one_step_of_the_server_is_the_formula() -> None:
    delta = np.cos(np.arange(20.0)).reshape(4, 5)
    size, eps = np.array([3, 8, 20, 1]), 0.01
    share = size / size.sum()
    mean = share @ delta
    eta = max(1, (share * (delta[:, :4] ** 2).sum(1)).sum() / (2 * ((mean[:4] ** 2).sum() + eps)))
    assert eta > 1.1
    wanted = np.concatenate([eta * mean[:4], mean[4:]])
    np.testing.assert_allclose(step(delta, size, eps), wanted, rtol=0, atol=1e-6)
