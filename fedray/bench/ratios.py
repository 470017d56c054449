"""Rows 1 to 5: CPU seconds of a steady round over those of the plain loop, one core, no evaluation.

Example:
    >>> work = works.small_clients(4, per_round=2)
    >>> measure_weight_difference(work, torch.float64) < 1e-7  # fedray and the plain loop train the same weights
    True
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from fedray.bench import bare, works
from fedray.bench.measure import Work, measure_peak, pin_to_one_core, take_turns
from fedray.bench.rows import BenchResult
from fedray.bench.works import BenchWork, simulate
from fedray.runtime.inline import Inline
from fedray.simulation.study import Study
from fedray.training.block import count_steps
from fedray.training.choice import choose_engine


class Laps(NamedTuple):
    """How a work is measured.

    Attributes:
        plain: rounds in a lap of the plain loop.
        fedray: rounds in a lap of fedray.
        repeats: laps of each.
    """

    plain: int
    fedray: int
    repeats: int


def measure_thousand(quick: bool) -> list[BenchResult]:
    """What fedray costs over the plain loop, with 1,000 small clients."""
    work = works.small_clients(1000, 100)
    what = "1,000 clients x 20 samples, 100 a round, MLP 64-64-10, batch 10"
    return [measure_ratio(what, 0.03, work, Laps(4, 40, 3 if quick else 9))]


def measure_ten_thousand(quick: bool) -> list[BenchResult]:
    """What fedray costs over the plain loop, with 10,000 small clients."""
    work = works.small_clients(10_000, 1000)
    return [measure_ratio("10,000 clients, 1,000 a round, same", 0.024, work, Laps(1, 5, 3 if quick else 9))]


def measure_cnn(quick: bool) -> list[BenchResult]:
    """What fedray costs over the plain loop, with a small convolutional network."""
    what = "100 clients x 100 samples, 10 a round, CNN 10-20-fc50, batch 10"
    return [measure_ratio(what, 0.2, works.images(works.small_cnn), Laps(2, 4, 3 if quick else 9))]


def measure_wide_cnn(quick: bool) -> list[BenchResult]:
    """What fedray costs over the plain loop, with a wide convolutional network."""
    what = "same with CNN 32-64-fc128 (1.2M parameters)"
    return [measure_ratio(what, 0.55, works.images(works.plain_wide_cnn), Laps(1, 1, 2 if quick else 7))]


def measure_fedag(quick: bool) -> list[BenchResult]:
    """What fedray costs over the plain loop, with the local training of FedAG."""
    epochs = 4 if quick else 40
    what = f"FedAG's local training, Boston, 20 folds x 10 clients x {epochs} epochs, batch 1, MLP 13-50-1"
    return [measure_ratio(what, 0.003, works.boston(epochs), Laps(1, 1, 1 if quick else 2), works.boston(1))]


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD, pull 0.1 (FedProx)": {},
    "SGD, momentum 0.9": {"momentum": 0.9},
    "SGD, momentum 0.9, weight decay": {"momentum": 0.9, "weight_decay": 1e-3},
    "Adam": {"optimizer": "adam", "lr": 0.01},
    "Adam, weight decay": {"optimizer": "adam", "lr": 0.01, "weight_decay": 1e-3},
}


def measure_optimizers(quick: bool) -> list[BenchResult]:
    """What fedray costs over the plain loop, with each optimizer."""
    laps = Laps(2, 20, 2 if quick else 7)
    results = []
    for name, local in OPTIMIZERS.items():
        method = {"name": "fedprox", "mu": 0.1} if "pull" in name else {"name": "fedavg"}
        work = works.small_clients(1000, 100, method=method, **local)
        results.append(measure_ratio(f"the first row with {name}", None, work, laps))
    return results


def measure_ratio(
    what: str, target: float | None, work: BenchWork, laps: Laps, brief: BenchWork | None = None
) -> BenchResult:
    """Measures fedray and the plain loop in turns.

    Args:
        what: the work in words.
        target: the most that the ratio should be; None where none was set.
        work: what both train.
        laps: how it is measured.
        brief: what weights are compared on; None means the work itself.
    """
    pin_to_one_core()
    study = work.study()
    plain, (fedray, _) = make_plain_laps(study, work), simulate(study)
    peak = measure_peak()
    plain_cost, fedray_cost = take_turns([(plain, laps.plain), (fedray, laps.fedray)], laps.repeats)
    engine = choose_engine(study.net, example=study.example, lanes=study.lanes)
    share = count_flops(study, work) / fedray_cost.cpu / peak
    single, double = (measure_weight_difference(brief or work, dtype) for dtype in (torch.float32, torch.float64))
    note = (
        f"plain {1e3 * plain_cost.cpu:.2f}, fedray {1e3 * fedray_cost.cpu:.2f} ms CPU a round (engine {engine.name}, "
        f"W <= {engine.width}); {share:.0%} of the core's {peak / 1e9:.0f} Gflop/s; weights differ by "
        f"{single:.0e} of the update in float32, {double:.0e} in float64"
    )
    ratio, wall = fedray_cost.cpu / plain_cost.cpu, fedray_cost.wall / plain_cost.wall
    return BenchResult(what, ratio, "", target, False, wall, note)


def make_plain_laps(study: Study, work: BenchWork, device: str = "cpu") -> Work:
    """Rounds of the plain loop, in every world of the study, on a device."""
    worlds = [bare.make_federation(study, work.module, world, device) for world in range(study.worlds)]
    draws = [bare.draw_at_random(world, study) for world in worlds]

    def laps(rounds: int) -> None:
        for t in range(rounds):
            for world, (choose, deal) in zip(worlds, draws, strict=True):
                bare.plain_round(world, t, choose, deal)
        if device == "cuda":
            torch.cuda.synchronize()

    return laps


def count_flops(study: Study, work: BenchWork) -> float:
    """Floating-point operations of a round's products, forward and backward."""
    from torch.utils.flop_counter import FlopCounterMode  # loads triton, 60 MB that rows of memory would count

    phase, world = study.method.phase, bare.make_federation(study, work.module)
    plan = phase.schedule(0, None)
    size = study.shards.sizes(plan.world, plan.client)
    x, y = world.clients[0]
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(world.loss(world.model(x[:1]), y[:1]))
    passes = count_steps(size, phase.local) * size / (-(-size // (phase.local.batch_size or 1)))  # samples seen
    return float(counter.get_total_flops() * passes.sum())


def measure_weight_difference(work: BenchWork, dtype: torch.dtype, device: str = "cpu") -> float:
    """|w_fedray - w_plain| / |update| after one round on the same batches, in the worst world; both on the device."""
    study = work.study(dtype=dtype)
    run, progress = simulate(study, Inline(study, device))
    first = progress.state.models.double()
    run(1)
    worst = 0.0
    for world in range(study.worlds):
        plain = bare.make_federation(study, work.module, world, device)
        bare.plain_round(plain, 0, *bare.draw_as_simulated(study, world))
        row = bare.flatten_model(study.net.layout, plain.model)
        update = (row - first[world]).norm()
        worst = max(worst, float((progress.state.models[world].double() - row).norm() / update))
    return worst
