"""Rows 1 to 5: CPU seconds of a steady round over those of the plain loop, one core, no evaluation."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedray.bench import bare, works
from fedray.bench.measure import Laps, peak, pin_to_one_core, take_turns
from fedray.bench.table import BenchResult
from fedray.bench.works import BenchWork, simulation
from fedray.simulation.study import Study
from fedray.training.block import count_steps
from fedray.training.choice import choose_engine


def measure_thousand(quick: bool) -> list[BenchResult]:
    work = works.small_clients(1000, 100)
    what = "1,000 clients x 20 samples, 100 a round, MLP 64-64-10, batch 10"
    return [ratio(what, 0.09, work, (4, 40), 3 if quick else 9)]


def measure_ten_thousand(quick: bool) -> list[BenchResult]:
    work = works.small_clients(10_000, 1000)
    return [ratio("10,000 clients, 1,000 a round, same", 0.08, work, (1, 5), 3 if quick else 9)]


def measure_cnn(quick: bool) -> list[BenchResult]:
    what = "100 clients x 100 samples, 10 a round, CNN 10-20-fc50, batch 10"
    return [ratio(what, 0.45, works.images(works.small_cnn), (2, 4), 3 if quick else 9)]


def measure_wide_cnn(quick: bool) -> list[BenchResult]:
    what = "same with CNN 32-64-fc128 (1.2M parameters)"
    return [ratio(what, 0.85, works.images(works.plain_wide_cnn), (1, 1), 2 if quick else 7)]


def measure_fedag(quick: bool) -> list[BenchResult]:
    epochs = 4 if quick else 40
    what = f"FedAG's local training, Boston, 20 folds x 10 clients x {epochs} epochs, batch 1, MLP 13-50-1"
    return [ratio(what, 0.01, works.boston(epochs), (1, 1), 1 if quick else 2, works.boston(1))]


def ratio(
    what: str, target: float, work: BenchWork, rounds: tuple[int, int], repeats: int, brief: BenchWork | None = None
) -> BenchResult:
    """fedray against the plain loop, in turns.

    Args:
        rounds: a lap of the plain loop, a lap of fedray. brief: what to compare weights on, if not the work itself.
    """
    pin_to_one_core()
    study = work.study()
    plain, (fedray, _) = plain_laps(study, work), simulation(study)
    top = peak()
    theirs, ours = take_turns([(plain, rounds[0]), (fedray, rounds[1])], repeats)
    engine = choose_engine(study.net)
    needed = flops(study, work)
    single, double = (weight_difference(brief or work, dtype) for dtype in (torch.float32, torch.float64))
    note = (
        f"plain {1e3 * theirs.cpu:.2f}, fedray {1e3 * ours.cpu:.2f} ms CPU a round (engine {engine.name}, "
        f"W <= {engine.width}); {needed / ours.cpu / top:.0%} of the core's {top / 1e9:.0f} Gflop/s; weights differ by "
        f"{single:.0e} of the update in float32, {double:.0e} in float64"
    )
    return BenchResult(what, ours.cpu / theirs.cpu, "", target, False, ours.wall / theirs.wall, note)


def plain_laps(study: Study, work: BenchWork) -> Laps:
    """Rounds of the plain loop, in every world of the study."""
    worlds = [bare.federation(study, work.module, world) for world in range(study.worlds)]
    ways = [bare.draw_at_random(world, study) for world in worlds]

    def laps(rounds: int) -> None:
        for t in range(rounds):
            for world, (select, deal) in zip(worlds, ways, strict=True):
                bare.plain_round(world, t, select, deal)

    return laps


def flops(study: Study, work: BenchWork) -> float:
    """Floating-point operations of a round's products, forward and backward."""
    phase, world = study.method.phase, bare.federation(study, work.module)
    plan = phase.schedule(0, None)
    size = study.shards.sizes(plan.world, plan.client)
    x, y = world.clients[0]
    with FlopCounterMode(display=False) as counter:
        world.loss(world.model(x[:1]), y[:1]).backward()
    passes = count_steps(size, phase.local) * size / (-(-size // (phase.local.batch_size or 1)))  # samples seen
    return float(counter.get_total_flops() * passes.sum())


def weight_difference(work: BenchWork, dtype: torch.dtype) -> float:
    """|w_fedray - w_plain| / |update| after one round on the same batches, in the worst world."""
    study = work.study(dtype=dtype)
    run, progress = simulation(study)
    first = progress.state.models.double()
    run(1)
    worst = 0.0
    for world in range(study.worlds):
        plain = bare.federation(study, work.module, world)
        bare.plain_round(plain, 0, *bare.draw_as_simulated(study, world))
        row = bare.parameters(plain.model)
        moved = (row - first[world]).norm()
        worst = max(worst, float((progress.state.models[world].double() - row).norm() / moved))
    return worst
