"""Reads a checkpoint and checks that it fits its study: its models, the numbers of each, and the worlds."""

from __future__ import annotations

from pathlib import Path

import torch

from fedray.core.errors import FedrayError
from fedray.files.bounded import name_file
from fedray.simulation.interfaces import Progress
from fedray.simulation.study import Study
from fedray.storage.checkpoint import load_checkpoint


def load_study_checkpoint(
    out: Path, study: Study, folder: str = "checkpoints"
) -> tuple[Progress, dict[str, torch.Tensor]]:
    """The newest checkpoint of a run directory, and the private client state saved with it.

    Args:
        out: the run directory.
        study: what was trained.
        folder: of the run directory, `checkpoints` or `best`.

    Raises:
        Damaged: a file of the checkpoint is missing or was changed.
        FedrayError: there is none, or it is that of another study.
    """
    progress, private = load_checkpoint(out / folder)
    models, worlds = study.worlds * study.method.phase.models, len(progress.sim_seconds)
    wanted = {"models": (models, study.net.layout.d), "counters": (models, len(study.net.layout.counters))}
    for name, shape in wanted.items():
        found = tuple(getattr(progress.state, name).shape)
        if found != shape:
            what = "numbers" if name == "models" else "counters"
            raise FedrayError(
                f"{name_file(out / 'scenario.yaml')} wants {shape[0]} models of {shape[1]:,} {what}, but the "
                f"checkpoint of round {progress.round} holds {found[0]} of {found[1]:,}: "
                "restore the scenario the run began with"
            )
    if worlds != study.worlds:
        raise FedrayError(
            f"{name_file(out / 'scenario.yaml')} wants {study.worlds} replicates and folds, but progress.json of the "
            f"checkpoint of round {progress.round} has {worlds}: restore the scenario the run began with"
        )
    return progress, private
