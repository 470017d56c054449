"""A trial of Ray Tune, seen from inside: what it reports, where it goes on from, and the actors that it may span.

Example:
    >>> from fedray.core.types import Tier
    >>> plan_trial(Clients((Tier("phones", 8), Tier("servers", 2))), actors=2).places
    [2, 2, 1]
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
from ray import tune

from fedray.core.types import Clients
from fedray.runtime.placement import plan_actors
from fedray.runtime.ray.seats import Reservation
from fedray.runtime.seats import Node


def report(metrics: Mapping[str, float], folder: Path | None) -> None:
    """Tells Tune the metrics of a round; a scheduler may end the trial here.

    Args:
        metrics: By name.
        folder: The run directory, which Tune copies as the trial's checkpoint; None: without one.
    """
    untyped: Any = tune
    untyped.report(dict(metrics), checkpoint=None if folder is None else untyped.Checkpoint.from_directory(str(folder)))


def go_on(out: Path) -> bool:
    """Copies the checkpoint from which Tune wants this trial to go on; False where it begins.

    Args:
        out: The run directory, which does not exist yet.
    """
    untyped: Any = tune
    checkpoint = untyped.get_checkpoint()
    if checkpoint is None:
        return False
    with checkpoint.as_directory() as folder:
        shutil.copytree(folder, out, ignore=shutil.ignore_patterns(".lock"))
    return True


def reserve_bundles(function: Callable[..., Any], actors: int) -> Any:
    """A trainable that reserves a CPU for itself, and one for each of its actors."""
    untyped: Any = tune
    return untyped.with_resources(function, untyped.PlacementGroupFactory([{"CPU": 1.0}] * (1 + actors)))


def plan_trial(clients: Clients, actors: int, group: Any = None) -> Reservation:
    """The seats of a trial's actors in the bundles that Tune has reserved for it; the first one is the trial's own.

    Args:
        clients: The tiers.
        actors: How many bundles of one CPU there are for them.
        group: The trial's placement group.
    """
    specs = plan_actors(clients, [Node(str(b), {"CPU": 1.0}) for b in range(actors)], "auto", actors)
    return Reservation([one._replace(node="") for one in specs], group, [1 + int(one.node) for one in specs], own=False)


def find_group() -> Any:
    """The placement group in which this trial runs."""
    untyped: Any = ray.util
    return untyped.get_current_placement_group()
