"""Checkpoints: safetensors and JSON, written to a temporary name, fsynced, renamed. Nothing is a pickle."""

from __future__ import annotations

import json
import secrets
import shutil
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fedray.core.errors import Damaged, DamageWarning, FedrayError, Unwritable, warn_user
from fedray.core.types import State
from fedray.files import bounded
from fedray.files.plain import hash_tensors, sync_to_disk
from fedray.simulation.study import Progress, Study

# ---------------------------------------------------------------------------------------------------------------------
# A crash while writing leaves the previous checkpoint; a damaged one is named in a one-line error.


def save_checkpoint(
    folder: Path,
    progress: Progress,
    private: dict[str, torch.Tensor] | None = None,
    keep: int = 2,
    *,
    files: bounded.FileSums | None = None,
) -> Path:
    """Writes `round-NNNNNN/` under a folder and removes all others but the newest ones.

    Args:
        folder: holds the checkpoints of one run.
        progress: where the run stands.
        private: the clients' private vectors by name.
        keep: how many checkpoints stay, at least 1: this one, and the newest of the others.
        files: the list of the parts of the run's tables, which the checkpoint keeps with its own state.

    Returns:
        The folder of the checkpoint.

    Raises:
        FedrayError: it cannot be written; the checkpoint before is as it was.

    Example:
        >>> import tempfile
        >>> state = State(torch.ones(1, 3), torch.zeros(1, 0, dtype=torch.int64), {})
        >>> progress = Progress(7, state, *np.zeros((2, 1), np.int64), np.zeros(1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = save_checkpoint(Path(folder), progress)
        ...     loaded, private = load_checkpoint(Path(folder))
        >>> path.name, loaded.round, loaded.state.models.tolist()
        ('round-000007', 7, [[1.0, 1.0, 1.0]])
    """
    state = progress.state
    tensors = {"models": state.models, "counters": state.counters}
    tensors |= {f"extra/{name}": value for name, value in state.extra.items()}
    tensors |= {f"private/{name}": value for name, value in (private or {}).items()}
    tensors |= {f"flight/{name}": value for name, value in progress.flight().items()}
    totals: dict[str, Any] = {
        "round": progress.round,
        "up_bytes": progress.up_bytes.tolist(),
        "down_bytes": progress.down_bytes.tolist(),
        "sim_seconds": [float(s).hex() for s in progress.sim_seconds],
        "wall_seconds": progress.wall_seconds,
        "metrics": progress.metrics,
        "failed": progress.failed,
        bounded.FILES_KEY: dict(files or {}),
    }
    totals |= {name: kept for name in ("courses", "stopped") if (kept := getattr(progress, name))}
    path = folder / f"round-{progress.round:06d}"
    _replace_folder(path, {name: value.contiguous() for name, value in tensors.items()}, totals)
    others = [round for round in bounded.find_checkpoints(folder) if round != progress.round]
    for old in others[: max(0, len(others) + 1 - max(1, keep))]:
        shutil.rmtree(folder / f"round-{old:06d}", ignore_errors=True)
    return path


def _replace_folder(final: Path, tensors: dict[str, torch.Tensor], totals: dict[str, Any]) -> None:
    """Writes the two files of a checkpoint into a temporary folder, syncs and renames it; the list gets its state."""
    part = final.with_name(f".{secrets.token_hex(12)}.part")
    try:
        final.parent.mkdir(exist_ok=True)
        part.mkdir()
        save_file(tensors, part / bounded.STATE_FILE)
        totals[bounded.FILES_KEY][bounded.STATE_FILE] = bounded.sum_file(part / bounded.STATE_FILE)
        (part / "progress.json").write_text(
            json.dumps({**totals, bounded.SEAL: bounded.seal_entries(totals, "progress.json")})
        )
        (part / bounded.STATE_FILE).chmod((part / "progress.json").stat().st_mode & 0o777)  # safetensors writes 0600
        for file in part.iterdir():
            sync_to_disk(file)
        sync_to_disk(part)
        if final.exists():
            shutil.rmtree(final)
        part.replace(final)
        sync_to_disk(final.parent)
    except FileNotFoundError:
        raise Unwritable(f"cannot write {final}: {final.parent} is gone: was it moved or deleted?") from None
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Unwritable(f"cannot write {final}: {reason}: free space; the run resumes from the one before") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def load_checkpoint(folder: Path, round: int | None = None) -> tuple[Progress, dict[str, torch.Tensor]]:
    """Returns the checkpoint of a round (the newest by default), and the private client state saved with it.

    Raises:
        Damaged: a file of it is missing or was changed.
        FedrayError: there is none, or a file cannot be read for another reason.
    """
    known = bounded.find_checkpoints(folder)
    if not known:
        raise FedrayError(f"{folder} holds no checkpoint: start the run again with `fedray run`")
    path = folder / f"round-{known[-1] if round is None else round:06d}"
    remedy = f"`fedray resume {folder.parent}` goes on from the checkpoint before it"
    totals = bounded.read_totals(path, remedy)
    tensors = _load_tensors(path / bounded.STATE_FILE, totals.get(bounded.FILES_KEY, {}), remedy)
    parts: dict[str, dict[str, torch.Tensor]] = {"extra": {}, "private": {}, "flight": {}}
    for name, value in tensors.items():
        kind, _, inner = name.partition("/")
        if inner:
            parts[kind][inner] = value
    try:
        state = State(tensors["models"], tensors["counters"], parts["extra"])
        progress = Progress(
            totals["round"],
            state,
            np.array(totals["up_bytes"], dtype=np.int64),
            np.array(totals["down_bytes"], dtype=np.int64),
            np.array([float.fromhex(s) for s in totals["sim_seconds"]]),
            totals["wall_seconds"],
            totals["metrics"],
            totals.get("failed", 0),
            totals.get("courses", {}),
            totals.get("stopped", ""),
            flight=lambda: parts["flight"],
        )
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise bounded.say_damaged(path / "progress.json", error, remedy) from None
    return progress, parts["private"]


def _load_tensors(file: Path, files: bounded.FileSums, remedy: str) -> dict[str, torch.Tensor]:
    """Returns the tensors of a checkpoint, compared with its list if it has one."""
    if bounded.STATE_FILE in files:
        bounded.check_file(file, files[bounded.STATE_FILE], remedy)
    try:
        with file.open("rb"):  # the loader cannot tell why a file may not be read
            return load_file(file)
    except OSError as error:
        raise bounded.tell_apart(file, error, remedy) from None
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        raise bounded.say_damaged(file, str(error) or type(error).__name__, remedy) from None


def hash_model(study: Study, state: State) -> str:
    """SHA-256 over all parameters and buffers: replicate, fold, model, name, shape and little-endian bytes of each.

    The text `REPLICATE/FOLD/MODEL/NAME/(SHAPE)` and then the bytes, one after another in this order: replicate, fold,
    model; trainable parameters, float buffers, counters, each in the order of the module.

    Args:
        study: what was trained.
        state: the models of all worlds.
    """
    tensors: dict[str, torch.Tensor] = {}
    layout = study.net.layout
    for m in range(len(state.models)):
        world, k = divmod(m, study.method.phase.models)
        replicate, fold = study.place(world)
        label = f"{replicate}/{fold}/{k}"
        for name, value in layout.views(state.models[m]).items():
            tensors[f"{label}/{name}/{tuple(value.shape)}"] = value
        for name, number in zip(layout.counters, state.counters[m], strict=True):
            tensors[f"{label}/{name}/()"] = number
    return hash_tensors(tensors)


def hash_state(model: str, state: State, private: dict[str, torch.Tensor]) -> str:
    """SHA-256 over the model hash, the server's own state and the clients' private vectors.

    Args:
        model: what `hash_model` returned.
        state: its `extra` is hashed.
        private: the clients' private vectors by name.
    """
    rest = {f"extra/{n}": state.extra[n] for n in sorted(state.extra)}
    rest |= {f"private/{n}": private[n] for n in sorted(private)}
    return hash_tensors({f"model_hash/{model}": torch.zeros(0), **rest})


# ---------------------------------------------------------------------------------------------------------------------
# Reads a checkpoint and checks that it fits its study: its models, the numbers of each, and the worlds.


def load_study_checkpoint(
    out: Path, study: Study, folder: str = "checkpoints"
) -> tuple[Progress, dict[str, torch.Tensor]]:
    """Returns the newest checkpoint of a run directory, and the private client state saved with it.

    Args:
        out: the run directory.
        study: what was trained.
        folder: of the run directory, `checkpoints` or `best`.

    Raises:
        Damaged: a file of the checkpoint is missing or was changed.
        FedrayError: there is none, or it is that of another study.
    """
    progress, private = load_checkpoint(out / folder)
    models, layout = study.worlds * study.method.phase.models, study.net.layout
    wanted = (models, layout.d), (models, len(layout.counters)), study.worlds
    state = progress.state
    found = tuple(state.models.shape), tuple(state.counters.shape), len(progress.sim_seconds)
    if found != wanted:
        raise FedrayError(
            f"{out / 'scenario.yaml'} wants models, counters and worlds of {wanted}, but the checkpoint of round "
            f"{progress.round} holds {found}: restore the scenario the run began with"
        )
    return progress, private


# ---------------------------------------------------------------------------------------------------------------------
# What `resume` does about a damaged run directory: what cannot be trusted is set aside and made again.
#
# Nothing is deleted. A file that is missing, truncated or changed takes with it every later file that would follow
# from it: all of them go to `set-aside/1` (or 2, 3 ...) of the run directory, and the run goes on from the newest
# checkpoint that is whole and whose tables are whole, or from its first round. A file that cannot be read for another
# reason, such as its permissions, ends the resumption in one line.

SET_ASIDE = "set-aside"
CHECKPOINTS, RATES = "checkpoints", "learning_rates.json"


def warn_of_damage(out: Path) -> None:
    """Sets aside what cannot be trusted, and names it in a `DamageWarning` each."""
    for line in mend_run_directory(out):
        warn_user(line, DamageWarning)


def mend_run_directory(out: Path) -> list[str]:
    """Sets aside what cannot be trusted; for when the directory is locked and is about to be resumed.

    Args:
        out: the run directory.

    Returns:
        What was set aside and why, a line each; empty where all is well.

    Raises:
        FedrayError: a file cannot be read, though it may be whole.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     out = Path(folder)
        ...     (out / "checkpoints" / "round-000002").mkdir(parents=True)
        ...     print(mend_run_directory(out)[0].replace(folder, "RUN"))  # doctest: +ELLIPSIS
        RUN/checkpoints/round-000002/progress.json is missing: ... is in RUN/set-aside/1, and the run goes on from ...
    """
    trusted, reasons = -1, list[str]()
    rounds = bounded.find_checkpoints(out / CHECKPOINTS)
    for round in reversed(rounds):
        try:
            load_checkpoint(out / CHECKPOINTS, round)
            bounded.check_files(
                out, bounded.read_totals(out / CHECKPOINTS / f"round-{round:06d}", "").get(bounded.FILES_KEY, {})
            )
        except Damaged as error:
            reasons.append(error.reason)
        else:
            trusted = round
            break
    aside: list[Path] = []
    if reasons:  # what was made after a damaged file is made again too
        aside += [out / CHECKPOINTS / f"round-{round:06d}" for round in rounds if round > trusted]
        aside += [
            path
            for table in bounded.TABLES
            for round, path in bounded.list_parts(out, table).items()
            if round > trusted
        ]
    try:
        if (out / RATES).is_file():
            bounded.read_sealed(out / RATES)
    except Damaged as error:
        reasons.insert(0, error.reason)
        aside.append(out / RATES)
    if not reasons:
        return []
    place = _move_aside(out, aside)
    start = f"the checkpoint of round {trusted}" if trusted >= 0 else "the first round"
    each = dict.fromkeys(reasons)
    return [f"{reason}: what cannot be trusted is in {place}, and the run goes on from {start}" for reason in each]


def _move_aside(out: Path, paths: list[Path]) -> Path:
    """Moves files and folders of a run directory into a new folder of it, under the names they have."""
    place = next(out / SET_ASIDE / str(n) for n in count(1) if not (out / SET_ASIDE / str(n)).exists())
    try:
        for path in paths:
            target = place / path.relative_to(out)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
    except OSError as error:
        raise Unwritable(f"cannot move {path} to {place} ({error.strerror}): make {out} writable first") from None
    return place
