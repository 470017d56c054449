"""Rows on a GPU: wall seconds of a steady round over those of the plain loop on the same GPU.

Both have the networks and the clients' rows there. The plain loop trains one client after another, as one writes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from fedray.assembly.registry import UserObjects
from fedray.bench import works
from fedray.bench.measure import take_turns
from fedray.bench.ratios import make_plain_laps, measure_weight_difference
from fedray.bench.rows import BenchResult
from fedray.bench.works import BenchWork, simulate
from fedray.models.nets import resnet18
from fedray.runtime.environment import device_of
from fedray.runtime.inline import Inline
from fedray.scenario.loader import read_scenario


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
