"""Checks where a sweep may be written; without torch, so that the command line refuses a taken directory at once."""

from __future__ import annotations

from pathlib import Path

from fedray.core.errors import BadInput
from fedray.files.bounded import has_file

COPY = "sweep.yaml"  # name of a file in the directory of the sweep
TRIALS, JOURNAL = "trials", "study.journal"


def has_sweep(folder: Path) -> bool:
    """Returns whether a directory holds a sweep; if not, `--resume` begins a new sweep."""
    return has_file(folder, COPY)


def refuse_taken_sweep(folder: Path, *, resume: bool) -> None:
    """Refuses a directory that a sweep cannot be written to.

    Args:
        folder: the directory of the sweep.
        resume: whether to go on with the sweep in `folder`.

    Raises:
        BadInput: the directory holds a sweep that is not to go on, or something other than a sweep.
    """
    if has_sweep(folder):
        if not resume:
            raise BadInput(f"--out {folder} holds a sweep: choose another directory, or add --resume to go on")
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"--out {folder} holds other files: choose another directory")


def has_trials(folder: Path) -> bool:
    """Returns whether a trial of the sweep in a directory has begun to train."""
    return (folder / TRIALS).is_dir() and any((folder / TRIALS).iterdir())
