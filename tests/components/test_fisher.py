"""FedFisher's server: where it is FedAvg's, what it finds on quadratic losses, and how it goes there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fedray.components.one_shot import LEAST, Descent, adam, descend, fisher_mean, summing_adam
from fedray.components.servers import Rows, mean
from fedray.core.method import Server
from fedray.core.sums import merge_stats
from fedray.core.types import State, Uploads

D, N = 6, 4
GENERATOR = torch.Generator().manual_seed(0)
DELTA = torch.randn(N, D, generator=GENERATOR)
SURE = torch.rand(N, D, generator=GENERATOR)
SIZE = np.array([3, 40, 7, 10])
START = torch.randn(1, D, generator=GENERATOR)


def send(delta: Tensor = DELTA, sure: Tensor = SURE) -> Uploads:
    zero = np.zeros(N, dtype=np.int64)
    return Uploads(delta, client=np.arange(N), model=zero, world=zero, tier=zero, size=SIZE, beside=sure)


def step(server: Server, uploads: Uploads | None = None) -> Tensor:
    state = State(START, torch.zeros(1, 0, dtype=torch.int64), {})
    return server.step(state, server.reduce(uploads or send()), 0).models[0]


def descent(steps: int, score: object = None) -> Descent:
    return Descent(steps, 10, summing_adam(0.01), score)  # type: ignore[arg-type]


@pytest.mark.parametrize("damping", [0.0, 0.7])
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_it_is_the_optimum_of_the_sum_of_quadratic_losses(weighting: str, damping: float) -> None:
    """The damping is added to each client's curvature, once."""
    share = torch.from_numpy(SIZE if weighting == "examples" else np.ones(N)).double()[:, None]
    found = step(fisher_mean(Rows(1, 1), weighting, damping)).double()  # type: ignore[arg-type]
    slope = (share * (SURE + damping) * (found - START.double() - DELTA)).sum(0)
    assert slope.abs().max() < 1e-5
    assert (step(mean(Rows(1, 1), weighting)) - found).abs().max() > 0.05  # type: ignore[arg-type]


@pytest.mark.parametrize("damping", [0.0, 0.3])
def test_where_all_clients_are_equally_sure_it_is_the_mean(damping: float) -> None:
    """Also where they are by many orders of magnitude surer of one number than of another one."""
    same = (10.0 ** torch.linspace(-8, 3, D)).expand(N, -1)
    found = step(fisher_mean(Rows(1, 1), "examples", damping), send(sure=same))
    torch.testing.assert_close(found, step(mean(Rows(1, 1), "examples"), send()), rtol=0, atol=1e-6)


def test_numbers_of_which_nobody_knows_anything_are_those_of_the_mean() -> None:
    """To the bit without damping; and with a damping that dwarfs all Fishers every number is."""
    average, some = step(mean(Rows(1, 1))), SURE.clone()
    some[:, :2], some[:, 2] = 0.0, 0.5 * LEAST
    found = step(fisher_mean(Rows(1, 1)), send(sure=some))
    assert torch.equal(found[:3], average[:3])
    assert not torch.isclose(found[3:], average[3:]).any()
    torch.testing.assert_close(step(fisher_mean(Rows(1, 1), damping=1e-6), send(sure=some))[:2], average[:2])
    torch.testing.assert_close(step(fisher_mean(Rows(1, 1), damping=1e6)), average, rtol=0, atol=1e-5)


def test_a_client_who_alone_knows_a_number_decides_it() -> None:
    alone = SURE.clone()
    alone[1:, 0] = 0.0
    assert float(step(fisher_mean(Rows(1, 1)), send(sure=alone))[0]) == pytest.approx(float(START[0, 0] + DELTA[0, 0]))


def test_the_order_of_uploads_and_their_blocks_change_no_bit() -> None:
    server, whole = fisher_mean(Rows(1, 1), "examples"), send()
    state = State(START, torch.zeros(1, 0, dtype=torch.int64), {})
    names = ("delta", "beside", "client", "model", "world", "tier", "size")
    parts = [server.reduce(Uploads(**{name: getattr(whole, name)[[j]] for name in names})) for j in (2, 0, 3, 1)]
    one, other = (server.step(state, stats, 0).models for stats in (merge_stats(parts), server.reduce(whole)))
    assert torch.equal(one, other)


def test_a_model_that_nobody_trained_stays() -> None:
    state = State(START.repeat(2, 1), torch.zeros(2, 0, dtype=torch.int64), {})
    for how in (None, descent(5)):
        server = fisher_mean(Rows(1, 2), how=how)
        after = server.step(state, server.reduce(send()), 0).models
        assert torch.equal(after[1], state.models[1]) and not torch.equal(after[0], state.models[0])


def test_the_descent_begins_at_the_mean_and_ends_at_the_optimum() -> None:
    best, average = step(fisher_mean(Rows(1, 1))), step(mean(Rows(1, 1)))
    torch.testing.assert_close(step(fisher_mean(Rows(1, 1), how=descent(3000))), best, rtol=0, atol=2e-2)
    first = step(fisher_mean(Rows(1, 1), how=descent(1)))
    assert 0 < (first - average).abs().max() <= 0.01 + 1e-6


def test_the_descent_stays_where_its_own_rows_say_it_is_best() -> None:
    """Looked at: the start, every ten steps, and the end; of equal scores the first one counts."""
    ways = [step(fisher_mean(Rows(1, 1), how=descent(steps))) for steps in (10, 20, 25)]
    ways.insert(0, step(mean(Rows(1, 1))))

    def stay(scores: list[float]) -> Tensor:
        left = iter(scores)
        found = step(fisher_mean(Rows(1, 1), how=descent(25, lambda _world, _model: next(left))))
        assert next(left, None) is None
        return found

    for place, scores in enumerate([[4.0, 3, 2, 4], [0.0, 3, 2, 3], [0.0, 0, 2, 1], [0.0, 1, 2, 3]]):
        assert torch.equal(stay(scores), ways[place])


def test_the_steps_of_adam_are_torchs() -> None:
    leaf = torch.tensor([3.0, -2.0], dtype=torch.float64, requires_grad=True)
    theirs = torch.optim.Adam([leaf], lr=0.05, eps=1e-6)
    weigh = torch.tensor([1.0, 30.0], dtype=torch.float64)
    found = descend(Descent(25, 10, adam(0.05)), leaf.detach().clone(), lambda w: weigh * w, 0)
    for _ in range(25):
        leaf.grad = weigh * leaf.detach()
        theirs.step()
    torch.testing.assert_close(found, leaf.detach())
