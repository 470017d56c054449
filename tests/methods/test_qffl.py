"""q-FFL: where it is FedAvg, its formula, and what it is for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small import scenario

import fedray
from fedray.components.servers import Rows
from fedray.core.types import State, Uploads
from fedray.methods.qffl import fair_mean

SKEWED = {"data": {"partition": {"name": "dirichlet", "alpha": 0.3}}}


def models(method: dict[str, object], **keys: object) -> torch.Tensor:
    """The models of a small run."""
    return fedray.run(scenario({**SKEWED, **keys, "method": method})).progress.state.models


def test_with_q_0_it_is_fedavg_with_equal_weights() -> None:
    found, plain = models({"name": "qffl", "q": 0}), models({"name": "fedavg"}, server={"weighting": "uniform"})
    torch.testing.assert_close(found, plain, rtol=0, atol=1e-6)


def test_with_q_it_is_not_fedavg() -> None:
    found, plain = models({"name": "qffl", "q": 1}), models({"name": "fedavg"}, server={"weighting": "uniform"})
    assert (found - plain).abs().max() > 1e-3


def test_one_client_makes_a_shorter_step_in_the_direction_of_fedavg() -> None:
    """`F^q delta / (F^q + q F^(q - 1) L |delta|^2)` is delta over `1 + q L |delta|^2 / F`: FedAvg's with q = 0."""
    alone = {"clients": {"number": 1}, "rounds": 1, "server": {"weighting": "uniform"}}
    plain = models({"name": "fedavg"}, **alone)
    less = {key: value for key, value in alone.items() if key != "server"}
    found, same = models({"name": "qffl", "q": 0.5}, **less), models({"name": "qffl", "q": 0}, **less)
    start = fedray.run(scenario({**SKEWED, **less, "rounds": 0, "method": {"name": "fedavg"}})).progress.state.models
    torch.testing.assert_close(same, plain, rtol=0, atol=1e-6)
    step, whole = (found - start).double(), (plain - start).double()
    share = (step * whole).sum() / whole.square().sum()
    assert 0 < share < 1
    torch.testing.assert_close(step, share * whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("q", [0.0, 0.5, 3.0])
def test_one_step_of_the_server_is_the_formula(q: float) -> None:
    """Algorithm 2 in NumPy; the buffer behind the trainable numbers is a mean with the weights h."""
    lr, loss, w = 0.05, np.array([0.2, 1.0, 3.0]), np.linspace(0, 1, 4)
    after, zero = w + np.linspace(-0.3, 0.5, 12).reshape(3, 4), np.zeros(3, dtype=np.int64)
    server = fair_mean(Rows(1, 1), "uniform", q=q, lr=lr, trainable=3)
    start = State(torch.from_numpy(w)[None].float(), torch.zeros(1, 0, dtype=torch.int64), {})
    uploads = Uploads(
        torch.from_numpy(after - w).float(), client=np.arange(3), model=zero, world=zero, tier=zero,
        size=np.array([5, 1, 9]), losses=loss[:, None],
    )  # fmt: skip
    found = server.step(start, server.reduce(uploads), 0).models[0].double().numpy()
    steep = 1 / lr
    delta = loss[:, None] ** q * steep * (w - after)
    far = ((steep * (w - after)[:, :3]) ** 2).sum(1)
    h = q * loss ** (q - 1) * far + steep * loss**q
    wanted = w - delta.sum(0) / h.sum()
    wanted[3] = w[3] + (h * (after - w)[:, 3]).sum() / h.sum()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


def test_a_client_of_larger_loss_counts_more() -> None:
    """Two clients that pull to opposite sides: the one of larger loss wins, by far with a large q."""
    zero, delta = np.zeros(2, dtype=np.int64), torch.tensor([[1e-3], [-1e-3]])
    start = State(torch.zeros(1, 1), torch.zeros(1, 0, dtype=torch.int64), {})
    moved = []
    for q in (0.0, 1.0, 8.0):
        server = fair_mean(Rows(1, 1), "uniform", q=q, lr=1.0, trainable=1)
        uploads = Uploads(
            delta,
            client=np.arange(2),
            model=zero,
            world=zero,
            tier=zero,
            size=zero + 1,
            losses=np.array([[2.0], [1.0]]),
        )
        moved.append(float(server.step(start, server.reduce(uploads), 0).models))
    assert moved[0] == 0 < moved[1] < moved[2] < 1e-3


def test_adam_is_refused() -> None:
    with pytest.raises(fedray.BadInput, match="takes 1 / L from the rate of SGD: set it to sgd"):
        models({"name": "qffl"}, local={"optimizer": "adam"})
