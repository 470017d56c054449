"""Rows 7 and 8: what Ray adds to a round, and what a second actor brings.

Example:
    >>> _note(Cost(cpu=0.0138, wall=0.0071), Cost(cpu=0.0084, wall=0.0041))
    'wall 7.10 against 4.10 ms, CPU of all processes 13.80 against 8.40 ms a round'
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

from fedray.bench import works
from fedray.bench.measure import Cost, measure_tree_cpu, take_turns
from fedray.bench.rows import BenchResult
from fedray.bench.works import BenchWork, simulate
from fedray.simulation.study import Runtime


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
