"""A trial that spans several client actors: its own process is the coordinator, in the seats that Ray has given to it.

Example:
    >>> from fedray.scenario.loader import read_scenario
    >>> refuse_other_seats(read_scenario({"clients": {"tiers": {"lab": {"num_gpus": 0.5}}}}))
    Traceback (most recent call last):
    fedray.core.errors.BadInput: clients.tiers.lab: the actors of a trial have a CPU each: drop num_gpus
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from fedray.assembly.user_objects import UserObjects
from fedray.core.errors import BadInput
from fedray.scenario.schema import Scenario
from fedray.simulation.interfaces import Runtime
from fedray.simulation.study import Study


def refuse_other_seats(scenario: Scenario) -> None:
    """Refuses tiers whose actors need more than the CPU that is reserved for each actor of a trial.

    Args:
        scenario: That of a trial.

    Raises:
        BadInput: Names the first such tier, and the keys to drop.
    """
    for name, tier in scenario.clients.tiers.items():
        asked = {"num_cpus": (tier.num_cpus or 0) > 1, "num_gpus": tier.num_gpus > 0, "resources": bool(tier.resources)}
        if keys := [key for key, is_asked in asked.items() if is_asked]:
            raise BadInput(f"clients.tiers.{name}: the actors of a trial have a CPU each: drop {' and '.join(keys)}")


@contextmanager
def open_actors(
    scenario: Scenario, own: UserObjects, study: Study, actors: int, *, name: str
) -> Iterator[tuple[Runtime, dict[str, Any]]]:
    """The runtime of a trial on its actors, which is closed at the end, and facts on it for the manifest.

    Args:
        scenario: That of the trial.
        own: The user's Python objects.
        study: What is trained.
        actors: How many actors it spans; as many bundles are the last ones of the placement group of this process.
        name: What Ray's tools call the trial.
    """
    from fedray.runtime.ray.runtime import RayRuntime
    from fedray.runtime.ray.trial_seats import find_group, plan_trial

    refuse_other_seats(scenario)
    seats = plan_trial(study.clients, actors, find_group())
    with closing(RayRuntime(scenario, own.shipped(study), study, name, seats=seats)) as runtime:
        yield runtime, {"runtime": "ray", **runtime.facts(), "actors": len(runtime.actors)}
