"""What a server makes of a round's networks: distillation, Fisher and mixtures."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal
from uploads import send, step, take

from fedray.components import one_shot
from fedray.components.distillation import (
    Distil,
    Fusion,
    ServerRows,
    Student,
    ask_model,
    average_teachers,
    combine_teachers,
    fuse_models,
    score_model,
)
from fedray.components.servers import Rows, mean
from fedray.core import rng
from fedray.core.method import Server, StudentEngine, Teaching, Train
from fedray.core.types import Net, Uploads
from fedray.models.nets import build_net

KEY = rng.keys(0, "test")


def small_net(norm: str | None = None) -> Net:
    return build_net("mlp", (3,), 4, "cross_entropy", hidden=[8], norm=norm)


def inputs(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(seed))


def rows_of(net: Net, x: torch.Tensor, labels_of: torch.Tensor | None = None) -> ServerRows:
    """The server's inputs, and labelled rows on which a given model is always right."""
    if labels_of is None:
        return ServerRows(x, x[:0], torch.empty(0, dtype=torch.int64))
    return ServerRows(x, x, ask_model(net, labels_of, x).argmax(-1))


def combine(net: Net, kind: str, x: torch.Tensor, teachers: torch.Tensor) -> torch.Tensor:
    """What uploads of one architecture say together."""
    return combine_teachers(kind, x, [Student(net, teachers[0], teachers)])


def fuse(net: Net, how: Fusion, start: torch.Tensor, teachers: torch.Tensor, *, rows: ServerRows) -> torch.Tensor:
    return fuse_models(how, [Student(net, start, teachers)], rows=rows, key=KEY)[0]


@pytest.mark.parametrize("kind", ["mean_logits", "confidence"])
def test_one_teacher_says_what_it_says_and_copies_change_nothing(kind: str) -> None:
    net, x = small_net(), inputs(20)
    teachers = torch.stack([net.init(k) for k in range(3)])
    alone = combine(net, kind, x, teachers[:1])
    torch.testing.assert_close(alone, ask_model(net, teachers[0], x).softmax(-1).float())
    both, twice = (combine(net, kind, x, t) for t in (teachers, torch.cat([teachers, teachers]).flip(0)))
    torch.testing.assert_close(both, twice)


def test_the_mean_is_of_logits_and_not_of_probabilities() -> None:
    net, x = small_net(), inputs(20)
    teachers = torch.stack([net.init(k) for k in range(3)])
    said = torch.stack([ask_model(net, row, x) for row in teachers])
    torch.testing.assert_close(combine(net, "mean_logits", x, teachers), said.mean(0).softmax(-1).float())


def test_a_teacher_that_says_the_same_of_all_classes_has_no_weight_by_confidence() -> None:
    net, x = small_net(), inputs(20)
    sure, flat = net.init(0), torch.zeros(net.layout.d)
    alone = combine(net, "confidence", x, sure[None])
    both = torch.stack([sure, flat])
    torch.testing.assert_close(combine(net, "confidence", x, both), alone, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(combine(net, "mean_logits", x, both), alone, atol=1e-3)


def test_the_best_student_on_the_rows_of_the_server_stays_and_nothing_worse_than_the_start() -> None:
    net, x = small_net(), inputs(60)
    start, teachers = net.init(0), net.init(1)[None]
    how = Fusion(steps=60, lr=0.05, batch_size=16, patience=20)
    assert torch.equal(fuse(net, how, start, teachers, rows=rows_of(net, x, start)), start)  # it is always right
    rows = rows_of(net, x, teachers[0])
    student = fuse(net, how, start, teachers, rows=rows)
    right = [float((ask_model(net, row, x).argmax(-1) == rows.y).double().mean()) for row in (start, student)]
    assert right[1] > right[0]


def test_it_stops_when_nothing_gets_better() -> None:
    net, x = small_net(), inputs(40)
    steps: list[float] = []
    start, teachers = net.init(0), net.init(1)[None]

    def begin(_net: Net, row: torch.Tensor, _teaching: Teaching) -> Train:
        return lambda _batches, rates: steps.extend(rates) or row  # type: ignore[func-returns-value]

    how, rows = Fusion(steps=500, patience=30, lr=0.5), rows_of(net, x, start)
    counting = StudentEngine(ask_model, begin)
    fuse_models(how, [Student(net, start, teachers)], rows=rows, key=KEY, engine_of=lambda _net: counting)
    assert len(steps) == 30
    assert steps == sorted(steps, reverse=True) and steps[0] == 0.5  # along a cosine
    steps.clear()
    whole = ServerRows(x, x[:0], torch.empty(0, dtype=torch.int64))
    fuse_models(how, [Student(net, start, teachers)], rows=whole, key=KEY, engine_of=lambda _net: counting)
    assert steps == pytest.approx([0.25 + 0.25 * math.cos(math.pi * s / 500) for s in range(500)])


def test_statistics_of_normalization_layers_stay_those_of_the_start() -> None:
    net, x = small_net("batch"), inputs(30)
    start, teachers = net.init(0), net.init(1)[None]
    student = fuse(net, Fusion(steps=5), start, teachers, rows=rows_of(net, x))
    p = net.layout.trainable
    assert p < net.layout.d
    assert torch.equal(student[p:], start[p:])
    assert not torch.equal(student[:p], start[:p])


D, N = 6, 4
GENERATOR = torch.Generator().manual_seed(0)
DELTA = torch.randn(N, D, generator=GENERATOR)
SURE = torch.rand(N, D, generator=GENERATOR)
SIZE = np.array([3, 40, 7, 10])
START = torch.randn(1, D, generator=GENERATOR)


def merge(server: Server, sure: Tensor = SURE) -> Tensor:
    """The model after a round of clients that are so sure of each number."""
    return step(server, send(DELTA, size=SIZE, beside=sure), START)[0]


def descent(steps: int, score: object = None) -> one_shot.Descent:
    return one_shot.Descent(steps, 10, one_shot.summing_adam(0.01), score)  # type: ignore[arg-type]


@pytest.mark.parametrize("damping", [0.0, 0.7])
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_it_is_the_optimum_of_the_sum_of_quadratic_losses(weighting: str, damping: float) -> None:
    """The damping is added to each client's curvature, once."""
    share = torch.from_numpy(SIZE if weighting == "examples" else np.ones(N)).double()[:, None]
    found = merge(one_shot.fisher_mean(Rows(1, 1), weighting, damping)).double()  # type: ignore[arg-type]
    slope = (share * (SURE + damping) * (found - START.double() - DELTA)).sum(0)
    assert slope.abs().max() < 1e-5
    assert (merge(mean(Rows(1, 1), weighting)) - found).abs().max() > 0.05  # type: ignore[arg-type]


@pytest.mark.parametrize("damping", [0.0, 0.3])
def test_where_all_clients_are_equally_sure_it_is_the_mean(damping: float) -> None:
    """Also where they are by many orders of magnitude surer of one number than of another one."""
    same = (10.0 ** torch.linspace(-8, 3, D)).expand(N, -1)
    found = merge(one_shot.fisher_mean(Rows(1, 1), "examples", damping), same)
    torch.testing.assert_close(found, merge(mean(Rows(1, 1), "examples")), rtol=0, atol=1e-6)


def test_numbers_of_which_nobody_knows_anything_are_those_of_the_mean() -> None:
    """To the bit without damping."""
    average, some = merge(mean(Rows(1, 1))), SURE.clone()
    some[:, :2], some[:, 2] = 0.0, 0.5 * one_shot.LEAST
    found = merge(one_shot.fisher_mean(Rows(1, 1)), some)
    assert torch.equal(found[:3], average[:3])
    assert not torch.isclose(found[3:], average[3:]).any()
    torch.testing.assert_close(merge(one_shot.fisher_mean(Rows(1, 1), damping=1e-6), some)[:2], average[:2])


def test_the_descent_begins_at_the_mean_and_ends_at_the_optimum() -> None:
    best, average = merge(one_shot.fisher_mean(Rows(1, 1))), merge(mean(Rows(1, 1)))
    torch.testing.assert_close(merge(one_shot.fisher_mean(Rows(1, 1), how=descent(3000))), best, rtol=0, atol=2e-2)
    first = merge(one_shot.fisher_mean(Rows(1, 1), how=descent(1)))
    assert 0 < (first - average).abs().max() <= 0.01 + 1e-6


def test_the_descent_stays_where_its_own_rows_say_it_is_best() -> None:
    """Looked at: the start, every ten steps, and the end; of equal scores the first one counts."""
    ways = [merge(one_shot.fisher_mean(Rows(1, 1), how=descent(steps))) for steps in (10, 20, 25)]
    ways.insert(0, merge(mean(Rows(1, 1))))

    def stay(scores: list[float]) -> Tensor:
        left = iter(scores)
        found = merge(one_shot.fisher_mean(Rows(1, 1), how=descent(25, lambda _world, _model: next(left))))
        assert next(left, None) is None
        return found

    for place, scores in enumerate([[4.0, 3, 2, 4], [0.0, 3, 2, 3], [0.0, 0, 2, 1], [0.0, 1, 2, 3]]):
        assert torch.equal(stay(scores), ways[place])


def test_the_steps_of_adam_are_torchs() -> None:
    leaf = torch.tensor([3.0, -2.0], dtype=torch.float64, requires_grad=True)
    theirs = torch.optim.Adam([leaf], lr=0.05, eps=1e-6)
    weigh = torch.tensor([1.0, 30.0], dtype=torch.float64)
    found = one_shot.descend(
        one_shot.Descent(25, 10, one_shot.adam(0.05)), leaf.detach().clone(), lambda w: weigh * w, 0
    )
    for _ in range(25):
        leaf.grad = weigh * leaf.detach()
        theirs.step()
    torch.testing.assert_close(found, leaf.detach())


P = 3


def draw(seed: int, clients: int = 4, modes: int = 3, prior: float = 0.2) -> one_shot.Mixtures:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(clients, modes, P, generator=generator, dtype=torch.float64)
    sure = 0.3 + 2.0 * torch.rand(clients, modes, P, generator=generator, dtype=torch.float64)
    there = torch.ones(clients, modes, dtype=torch.bool)
    there[0, 1:] = False  # a client that has sent one model
    return one_shot.Mixtures(mean, sure, there, prior)


def log_density(known: one_shot.Mixtures, w: Tensor) -> Tensor:
    """By torch's distributions, up to a constant."""
    total = 0.5 * (len(known.mean) - 1) * known.prior * w.square().sum()
    for middle, sure, there in zip(known.mean, known.sure, known.there, strict=True):
        each = [
            MultivariateNormal(mu, precision_matrix=p.diag()) for mu, p in zip(middle[there], sure[there], strict=True)
        ]
        total = total + torch.stack([one.log_prob(w).exp() for one in each]).mean().log()  # type: ignore[no-untyped-call]
    return total


def test_the_density_is_that_of_torchs_distributions() -> None:
    known = draw(0)
    one, other = torch.zeros(P, dtype=torch.float64), torch.tensor([0.4, -1.0, 2.0], dtype=torch.float64)
    apart = one_shot.weigh_modes(known, one)[1] - one_shot.weigh_modes(known, other)[1]
    torch.testing.assert_close(apart, log_density(known, one) - log_density(known, other))


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_is_that_of_autograd(seed: int) -> None:
    known = draw(seed)
    w = torch.randn(P, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()
    (wanted,) = torch.autograd.grad(-log_density(known, w), w)
    torch.testing.assert_close(one_shot.find_gradient(known, w.detach()), wanted)


@pytest.mark.parametrize("seed", range(4))
def test_on_the_way_to_a_mode_the_density_never_falls_and_there_the_gradient_is_zero(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, w = draw(seed), torch.full((P,), 0.3 * seed, dtype=torch.float64)
    heights = [float(log_density(known, w))]
    for steps in range(1, 8):
        monkeypatch.setattr("fedray.components.one_shot.MOST_CLIMBS", steps)
        heights.append(float(log_density(known, one_shot.climb(known, w))))
    assert all(b >= a - 1e-12 for a, b in itertools.pairwise(heights))
    assert heights[1] > heights[0] + 1e-3
    monkeypatch.setattr("fedray.components.one_shot.MOST_CLIMBS", 2000)
    assert one_shot.find_gradient(known, one_shot.climb(known, w)).abs().max() < 1e-6


def mixture_send(modes: int, size: tuple[int, ...] = (5, 20, 9)) -> Uploads:
    generator = torch.Generator().manual_seed(2)
    n, client = len(size), np.repeat(np.arange(len(size)), modes)
    delta = torch.randn(n * modes, P + 1, generator=generator)
    sure = torch.cat([torch.rand(n * modes, P, generator=generator), torch.zeros(n * modes, 1)], 1)
    return send(delta, client=client, model=np.tile(np.arange(modes), n), size=np.array(size)[client], beside=sure)


def mixture_step(server: Server, uploads: Uploads, modes: int) -> Tensor:
    return step(server, uploads, torch.arange(modes * (P + 1)).view(modes, -1) / 9.0)


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_of_one_mode_it_is_the_mean_by_precision_less_the_priors(weighting: str) -> None:
    """A precision is `n_k F_k / T + c`, or that of the mean of n_k for all; `(N - 1) c_0` is subtracted once."""
    uploads, laplace = mixture_send(1), one_shot.Laplace(temperature=4.0, precision=3.0, prior=2.0, trainable=P)
    size = torch.from_numpy(uploads.size).double()
    times = size if weighting == "examples" else size.mean().expand(3)
    assert uploads.beside is not None
    sure = times[:, None] * uploads.beside[:, :P].double() / 4.0 + 3.0
    before = torch.arange(P + 1).double() / 9.0
    wanted = (sure * (before + uploads.delta)[:, :P]).sum(0) / (sure.sum(0) - 2 * 2.0)
    found = mixture_step(one_shot.mixture_server(Rows(1, 1), weighting, laplace), uploads, 1)[0]  # type: ignore[arg-type]
    torch.testing.assert_close(found[:P].double(), wanted, rtol=0, atol=1e-6)
    mean = (times[:, None] * uploads.delta.double()).sum(0) / times.sum()
    assert float(found[P]) == pytest.approx(float(before[P] + mean[P]))


def test_modes_far_from_each_other_are_merged_each_by_itself() -> None:
    """Each is what it would be if it were alone: shares of the other modes are zero."""
    uploads = mixture_send(2)
    uploads.delta.mul_(0.01)
    uploads.delta[1::2] += 1000.0
    laplace = one_shot.Laplace(1.0, 0.5, 0.1, P)
    both = mixture_step(one_shot.mixture_server(Rows(1, 2), "examples", laplace), uploads, 2)
    for mode in (0, 1):
        alone = one_shot.mixture_server(Rows(1, 2), "examples", laplace)
        found = mixture_step(alone, take(uploads, slice(mode, None, 2)), 2)
        torch.testing.assert_close(both[mode], found[mode])


def test_the_descent_comes_to_the_mode_and_its_score_reads_whole_models() -> None:
    laplace, seen = one_shot.Laplace(0.1, 1.0, 0.5, P), []

    def score(world: int, model: Tensor) -> float:
        seen.append((world, len(model)))
        return float(len(seen))

    how = one_shot.Descent(3000, 1000, one_shot.adam(0.01), score)
    found = mixture_step(one_shot.mixture_server(Rows(1, 1), "examples", laplace, how), mixture_send(1), 1)
    mode = mixture_step(one_shot.mixture_server(Rows(1, 1), "examples", laplace), mixture_send(1), 1)
    torch.testing.assert_close(found, mode, rtol=0, atol=1e-3)
    assert seen == [(0, P + 1)] * 4


def test_the_optimizer_of_fedfishers_code_sums() -> None:
    step, g = one_shot.summing_adam(0.1), torch.tensor([[1.0, -2.0], [0.5, 0.0], [3.0, 1.0]], dtype=torch.float64)
    found, memory, t = g[0], [0.0, 0.0], 2
    for one in g:
        found, *memory = step(one, 0, *memory)
    m, v = (torch.stack([b ** (t - s) * g[s] ** k for s in range(3)]).sum(0) for b, k in ((0.9, 1), (0.99, 2)))
    torch.testing.assert_close(found, 0.1 * m / (v.sqrt() + 0.01))


def test_of_a_regression_teachers_say_the_mean_of_their_outputs() -> None:
    net, x = build_net("mlp", (3,), 2, "half_mse", hidden=[8]), inputs(9)
    teachers = torch.stack([net.init(k) for k in range(3)])
    said = torch.stack([ask_model(net, row, x) for row in teachers])
    for found in (combine(net, "mean_logits", x, teachers), average_teachers(net, Distil(), x, teachers)):
        torch.testing.assert_close(found, said.mean(0).float())
    assert score_model(net, teachers[0], x, said[0]) == 0 > score_model(net, teachers[1], x, said[0])
