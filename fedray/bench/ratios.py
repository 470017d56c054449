"""Rows of speed against the plain loop on one core, of the Ray runtime, and of a GPU; no evaluation.

Example:
    >>> _note(Cost(cpu=0.0138, wall=0.0071), Cost(cpu=0.0084, wall=0.0041))
    'wall 7.10 against 4.10 ms, CPU of all processes 13.80 against 8.40 ms a round'
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import nn

from fedray.assembly.registry import UserObjects
from fedray.bench import works
from fedray.bench.measure import Cost, Work, measure_peak, measure_tree_cpu, pin_to_one_core, take_turns
from fedray.bench.rows import BenchResult
from fedray.bench.works import BenchWork, simulate
from fedray.models.nets import resnet18
from fedray.runtime.environment import device_of
from fedray.runtime.inline import Inline
from fedray.scenario.loader import read_scenario
from fedray.simulation.study import Runtime, Study
from fedray.training.block import count_steps
from fedray.training.choice import choose_engine

# ---------------------------------------------------------------------------------------------------------------------
# Rows 1 to 5: CPU seconds of a steady round over those of the plain loop, one core, no evaluation.


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
    worlds = [works.make_federation(study, work.module, world, device) for world in range(study.worlds)]
    draws = [works.draw_at_random(world, study) for world in worlds]

    def laps(rounds: int) -> None:
        for t in range(rounds):
            for world, (choose, deal) in zip(worlds, draws, strict=True):
                works.plain_round(world, t, choose, deal)
        if device == "cuda":
            torch.cuda.synchronize()

    return laps


def count_flops(study: Study, work: BenchWork) -> float:
    """Floating-point operations of a round's products, forward and backward."""
    from torch.utils.flop_counter import FlopCounterMode  # loads triton, 60 MB that rows of memory would count

    phase, world = study.method.phase, works.make_federation(study, work.module)
    plan = phase.schedule(0, None)
    size = study.shards.sizes(plan.world, plan.client)
    x, y = world.clients[0]
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(world.loss(world.model(x[:1]), y[:1]))
    passes = count_steps(size, phase.local) * size / (-(-size // (phase.local.batch_size or 1)))  # samples seen
    return float(counter.get_total_flops() * passes.sum())


def measure_weight_difference(work: BenchWork, dtype: torch.dtype, device: str = "cpu") -> float:
    """|w_fedray - w_plain| / |update| after one round on the same batches, in the worst world; both on the device.

    Example:
        >>> work = works.small_clients(4, per_round=2)
        >>> measure_weight_difference(work, torch.float64) < 1e-7  # fedray and the plain loop train the same weights
        True
    """
    study = work.study(dtype=dtype)
    run, progress = simulate(study, Inline(study, device))
    first = progress.state.models.double()
    run(1)
    worst = 0.0
    for world in range(study.worlds):
        plain = works.make_federation(study, work.module, world, device)
        works.plain_round(plain, 0, *works.draw_as_simulated(study, world))
        row = works.flatten_model(study.net.layout, plain.model)
        update = (row - first[world]).norm()
        worst = max(worst, float((progress.state.models[world].double() - row).norm() / update))
    return worst


# ---------------------------------------------------------------------------------------------------------------------
# Rows 7 and 8: what Ray adds to a round, and what a second actor brings.


@contextmanager
def on_ray(work: BenchWork, actors: int) -> Iterator[Runtime]:
    """The Ray runtime of a work, with that many client actors of one CPU each."""
    from fedray.runtime.ray.runtime import RayRuntime

    scenario = replace(work.scenario, runtime="ray", clients=replace(work.scenario.clients, actors=actors))
    with closing(RayRuntime(scenario, work.own, work.study(), "bench")) as runtime:
        yield runtime


def measure_overhead(quick: bool) -> list[BenchResult]:
    """Wall time of a round on Ray with two actors, minus that of the inline runtime."""
    from fedray.runtime.ray.connection import open_ray

    work = works.small_clients(1000, 100)
    with open_ray(None, 2), on_ray(work, 2) as runtime:
        remote, inline_laps = simulate(work.study(), runtime)[0], simulate(work.study())[0]
        ray, inline = take_turns([(remote, 50), (inline_laps, 50)], 3 if quick else 15, measure_tree_cpu)
    note = _note(ray, inline)
    what = "Ray, two client actors: wall time of a round above inline's, on the first row"
    return [BenchResult(what, 1e3 * (ray.wall - inline.wall), "ms", 1.0, False, None, note)]


def measure_scaling(quick: bool) -> list[BenchResult]:
    """Wall time of a round with one actor over that with two."""
    from fedray.runtime.ray.connection import open_ray

    work = works.images(works.small_cnn, per_round=40)
    with open_ray(None, 3), on_ray(work, 1) as one, on_ray(work, 2) as two:
        laps = [(simulate(work.study(), runtime)[0], 5) for runtime in (one, two)]
        alone, both = take_turns(laps, 3 if quick else 9, measure_tree_cpu)
    what = "two client actors of one CPU against one, small CNN with 40 clients a round (wall)"
    return [BenchResult(what, alone.wall / both.wall, "x", 1.8, True, None, _note(alone, both))]


def _note(one: Cost, other: Cost) -> str:
    cpu, wall = (f"{1e3 * a:.2f} against {1e3 * b:.2f} ms" for a, b in zip(one, other, strict=True))
    return f"wall {wall}, CPU of all processes {cpu} a round"


# ---------------------------------------------------------------------------------------------------------------------
# Rows on a GPU: wall seconds of a steady round over those of the plain loop on the same GPU.
#
# Both have the networks and the clients' rows there. The plain loop trains one client after another, as one writes
# it.


class GpuWork(NamedTuple):
    """What a row trains.

    Attributes:
        what: in words.
        make: makes it.
    """

    what: str
    make: Callable[[], BenchWork]


def small_resnet() -> nn.Module:
    """ResNet-18 with BatchNorm, for images of 32 x 32: 11 million parameters."""
    return resnet18((3, 32, 32), 10)


def color_pictures() -> BenchWork:
    """20 clients of 160 images of 32 x 32 in three colors, 10 a round, batches of 16."""
    keys = works.fedavg_scenario(20, 10, batch_size=16)
    data = works.noise(20 * 160, (3, 32, 32))
    return BenchWork(read_scenario(keys), UserObjects(data=data, model=small_resnet), small_resnet)


WORKS = (
    GpuWork(
        "10,000 clients x 20 samples, 1,000 a round, MLP 64-64-10, batch 10",
        lambda: works.small_clients(10_000, 1000),
    ),
    GpuWork(
        "100 clients x 100 samples, all in a round, CNN 10-20-fc50, batch 10",
        lambda: works.images(works.small_cnn, per_round=100),
    ),
    GpuWork("the same with CNN 32-64-fc128", lambda: works.images(works.plain_wide_cnn, per_round=100)),
    GpuWork("20 clients x 160 samples, 10 a round, ResNet-18, batch 16", color_pictures),
)


def measure_gpu(quick: bool) -> list[BenchResult]:
    """What fedray costs over the plain loop on a GPU; nothing is measured where there is none."""
    return [measure_work(work, quick=quick) for work in WORKS] if torch.cuda.is_available() else []


def measure_work(work: GpuWork, *, quick: bool) -> BenchResult:
    """Measures fedray and the plain loop by turns, in laps of one round."""
    device = device_of(1.0)
    made = work.make()
    study = made.study()
    plain, runtime = make_plain_laps(study, made, device), Inline(study, device)
    fedray, _ = simulate(study, runtime)
    plain_cost, fedray_cost = take_turns([(plain, 1), (fedray, 1)], 1 if quick else 3)
    engine = runtime.worker.engine
    note = (
        f"plain {1e3 * plain_cost.wall:.1f}, fedray {1e3 * fedray_cost.wall:.1f} ms a round (engine {engine.name}, "
        f"W <= {engine.width}); {torch.cuda.get_device_name()}; weights differ by "
        f"{measure_weight_difference(made, torch.float32, device):.0e} of the update"
    )
    return BenchResult(work.what, fedray_cost.wall / plain_cost.wall, "", None, False, None, note)
