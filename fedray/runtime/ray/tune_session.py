"""A trial of Ray Tune, seen from inside: what it reports, where it goes on from, and what it reserves.

Only this module needs Ray Tune and what that needs, which fedray's own dependencies do not bring.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from fedray.storage import directory


def report(metrics: Mapping[str, float], folder: Path | None) -> None:
    """Tells Tune the metrics of a round; a scheduler may end the trial here.

    Args:
        metrics: By name.
        folder: The run directory, which Tune copies as the trial's checkpoint; None: without one.
    """
    untyped: Any = import_module("ray.tune")
    untyped.report(dict(metrics), checkpoint=None if folder is None else untyped.Checkpoint.from_directory(str(folder)))


def go_on(out: Path, scenario_text: str) -> bool:
    """Makes a run directory of the checkpoint from which Tune wants this trial to go on; False where it begins.

    Args:
        out: The run directory, which does not exist yet.
        scenario_text: The keys of this trial; those of the checkpoint may be another trial's.
    """
    untyped: Any = import_module("ray.tune")
    checkpoint = untyped.get_checkpoint()
    if checkpoint is None:
        return False
    with checkpoint.as_directory() as folder:
        directory.adopt_run(Path(folder), out, scenario_text)
    return True


def reserve_bundles(function: Callable[..., Any], actors: int) -> Any:
    """Returns a trainable that reserves a CPU for itself, and one for each of its actors."""
    untyped: Any = import_module("ray.tune")
    return untyped.with_resources(function, untyped.PlacementGroupFactory([{"CPU": 1.0}] * (1 + actors)))
