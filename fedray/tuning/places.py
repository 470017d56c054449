"""Where a sweep may be written; without torch, so that the command line can say at once that a directory is taken."""

from __future__ import annotations

from pathlib import Path

from fedray.core.errors import BadInput
from fedray.files.bounded import has_file

COPY = "sweep.yaml"  # in the directory of the sweep
TRIALS, JOURNAL = "trials", "study.journal"


def has_sweep(folder: Path) -> bool:
    """Whether a directory holds a sweep; otherwise `--resume` begins a new one."""
    return has_file(folder, COPY)


def refuse_taken_sweep(folder: Path, *, resume: bool) -> None:
    """Refuses a directory that a sweep cannot be written to.

    Args:
        folder: the directory.
        resume: whether the sweep in it goes on.

    Raises:
        BadInput: it holds a sweep that is not to go on, or something else than a sweep.
    """
    if has_sweep(folder):
        if not resume:
            raise BadInput(f"--out {folder} holds a sweep: choose another directory, or add --resume to go on")
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"--out {folder} holds other files: choose another directory")


def has_trials(folder: Path) -> bool:
    """Whether a trial of the sweep in a directory has begun to train."""
    return (folder / TRIALS).is_dir() and any((folder / TRIALS).iterdir())
