"""FedExP, FedNova and q-FFL: one step of their servers is its formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small import scenario, train

from fedray.components.servers import Rows
from fedray.core.method import Local, Server
from fedray.core.types import State, Uploads
from fedray.methods.fedexp import extrapolated_mean
from fedray.methods.fednova import normalized_mean
from fedray.methods.qffl import fair_mean


def ask(server: Server, delta: np.ndarray, size: np.ndarray, start: Any = 0.0, loss: Any = None) -> np.ndarray:
    """One step of a server from `start`, with the upload of a client in each row of `delta` `[J, d]`."""
    jobs, d = delta.shape
    who, zero = np.arange(jobs), np.zeros(jobs, dtype=np.int64)
    before = State(torch.zeros(1, d) + torch.as_tensor(start).float(), torch.zeros(1, 0, dtype=torch.int64), {})
    losses = None if loss is None else loss[:, None]
    uploads = Uploads(torch.from_numpy(delta).float(), who, zero, zero, zero, size, losses=losses)
    return server.step(before, server.reduce(uploads), 0).models[0].double().numpy()


def step(delta: np.ndarray, size: np.ndarray, eps: float = 1e-9) -> np.ndarray:
    """One step of FedExP from 0, where the last number of a row is a buffer, `[d]`."""
    return ask(extrapolated_mean(Rows(1, 1), "examples", eps=eps, trainable=delta.shape[1] - 1), delta, size)


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


def test_one_step_of_the_server_is_the_formula_in_fednova() -> None:
    """`w + tau_eff sum_i p_i delta_i / tau_i`, and the buffer behind the trainable numbers is averaged with p_i."""
    size, local = np.array([3, 8, 20]), Local(batch_size=4, epochs=2)
    delta = np.linspace(-1, 1, 12).reshape(3, 4)
    found = ask(normalized_mean(Rows(1, 1), "examples", local=local, trainable=3), delta, size)
    steps, share = np.array([2, 4, 10]), size / size.sum()
    wanted = (share * steps).sum() * (share[:, None] * delta / steps[:, None]).sum(0)
    wanted[3] = share @ delta[:, 3]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-7)


def qffl_models(method: dict[str, object], **keys: object) -> torch.Tensor:
    """The models of a small run."""
    return train(scenario({**keys, "method": method}))[1].state.models


def test_one_client_makes_a_shorter_step_in_the_direction_of_fedavg() -> None:
    """`F^q delta / (F^q + q F^(q - 1) L |delta|^2)` is delta over `1 + q L |delta|^2 / F`: FedAvg's with q = 0."""
    alone: dict[str, Any] = {"clients": {"number": 1}, "rounds": 1}
    plain, start = (qffl_models({"name": "fedavg"}, **{**alone, "rounds": rounds}) for rounds in (1, 0))
    found = qffl_models({"name": "qffl", "q": 0.5}, **alone)
    step, whole = (found - start).double(), (plain - start).double()
    share = (step * whole).sum() / whole.square().sum()
    assert 0 < share < 1
    torch.testing.assert_close(step, share * whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("q", [0.0, 0.5, 3.0])
def test_one_step_of_the_server_is_the_formula_in_qffl(q: float) -> None:
    """Algorithm 2 in NumPy; the buffer behind the trainable numbers is a mean with the weights h."""
    lr, loss, w = 0.05, np.array([0.2, 1.0, 3.0]), np.linspace(0, 1, 4)
    after = w + np.linspace(-0.3, 0.5, 12).reshape(3, 4)
    server = fair_mean(Rows(1, 1), "uniform", q=q, lr=lr, trainable=3)
    found = ask(server, after - w, np.array([5, 1, 9]), w, loss)
    steep = 1 / lr
    delta = loss[:, None] ** q * steep * (w - after)
    far = ((steep * (w - after)[:, :3]) ** 2).sum(1)
    h = q * loss ** (q - 1) * far + steep * loss**q
    wanted = w - delta.sum(0) / h.sum()
    wanted[3] = w[3] + (h * (after - w)[:, 3]).sum() / h.sum()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)
