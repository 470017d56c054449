"""What `resume` does about a damaged run directory: what cannot be trusted is set aside and made again.

Nothing is deleted. A file that is missing, truncated or changed takes with it every later file that would follow from
it: all of them go to `set-aside/1` (or 2, 3 ...) of the run directory, and the run goes on from the newest checkpoint
that is whole and whose tables are whole, or from its first round. A file that cannot be read for another reason, such
as its permissions, ends the resumption in one line.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     out = Path(folder)
    ...     (out / "checkpoints" / "round-000002").mkdir(parents=True)
    ...     print(mend_run_directory(out)[0].replace(folder, "RUN"))  # doctest: +ELLIPSIS
    RUN/checkpoints/round-000002/progress.json is missing: ... is in RUN/set-aside/1, and the run goes on from ...
"""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

from fedray.core.errors import Damaged, DamageWarning, Unwritable, warn_user
from fedray.files.bounded import read_parquet_files
from fedray.files.checksums import TABLES, Vouched, check_vouched_parts, find_checkpoints, find_strangers, list_parts
from fedray.files.plain import name_kind
from fedray.files.sealed import read_sealed
from fedray.storage.checkpoint import load_checkpoint, read_checkpoint_parts

SET_ASIDE = "set-aside"
CHECKPOINTS, SUMMARY, RATES = "checkpoints", "summary.json", "learning_rates.json"
FILES = (SUMMARY, RATES, "manifest.json", "pictures.npz", "drift.parquet", "report.html", "failure.json")
FOLDERS = (CHECKPOINTS, *TABLES)


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
    """
    found = _find_misplaced(out)
    trusted, reasons = _find_trusted(out)
    aside = [path for _, path in found]
    if reasons:  # what was made after a damaged file is made again too
        rounds = find_checkpoints(out / CHECKPOINTS)
        aside += [out / CHECKPOINTS / f"round-{round:06d}" for round in rounds if round > trusted.round]
        aside += [path for table in TABLES for round, path in list_parts(out, table).items() if round > trusted.round]
    strange = [path for table in TABLES for path in find_strangers(out, table, trusted)]
    found += [(f"{path} is not a part that the run wrote", path) for path in strange]
    found += _find_changed(out / RATES)
    reasons = [reason for reason, _ in found] + reasons
    if not reasons:
        return []
    place = _move_aside(out, list(dict.fromkeys([*aside, *(path for _, path in found)])))
    start = f"the checkpoint of round {trusted.round}" if trusted.round >= 0 else "the first round"
    return [f"{reason}: what cannot be trusted is in {place}, and the run goes on from {start}" for reason in reasons]


def _find_misplaced(out: Path) -> list[tuple[str, Path]]:
    """Directories or devices where the run keeps files, and files where it keeps directories, and why."""
    found = []
    for name in (*FILES, *FOLDERS):
        path, wanted = out / name, "a directory" if name in FOLDERS else "a plain file"
        if os.path.lexists(path) and not (path.is_dir() if name in FOLDERS else path.is_file()):
            found.append((f"{path} is {name_kind(path.lstat().st_mode)} and not {wanted}", path))
    return found


def _find_trusted(out: Path) -> tuple[Vouched, list[str]]:
    """The newest checkpoint that is whole and whose tables are whole, of round -1 if none is, and why no newer one."""
    rounds, reasons = find_checkpoints(out / CHECKPOINTS), []
    for round in reversed(rounds):
        try:
            load_checkpoint(out / CHECKPOINTS, round)
            vouched = Vouched(round, read_checkpoint_parts(out / CHECKPOINTS, round))
            for table in TABLES:
                check_vouched_parts(out, table, vouched)
                if vouched.parts is None:
                    _check_unsummed_parts(out, table, round)
        except Damaged as error:
            reasons.append(error.reason)
        else:
            return vouched, reasons
    if not rounds and (out / SUMMARY).is_file() and any(list_parts(out, table) for table in TABLES):
        reasons.append(f"{out / CHECKPOINTS} holds no checkpoint, though the run was finished")
    return Vouched(-1, None), list(dict.fromkeys(reasons))


def _check_unsummed_parts(out: Path, table: str, last: int) -> None:
    """Raises `Damaged` where a part that was written before there were checksums is no table, or there is none."""
    parts = [path for round, path in list_parts(out, table).items() if round <= last]
    if last and not parts and table != "client_scores.parquet":  # which only some runs have
        raise Damaged(f"{out / table} holds nothing up to round {last}", "")
    read_parquet_files(parts, remedy="")


def _find_changed(path: Path) -> list[tuple[str, Path]]:
    """A sealed file that is there and is damaged, and why."""
    try:
        if path.is_file():
            read_sealed(path)
    except Damaged as error:
        return [(error.reason, path)]
    return []


def _move_aside(out: Path, paths: list[Path]) -> Path:
    """Moves files and folders of a run directory into a new folder of it, under the names they have."""
    place = next(out / SET_ASIDE / str(n) for n in count(1) if not os.path.lexists(out / SET_ASIDE / str(n)))
    try:
        for path in paths:
            if os.path.lexists(path):
                target = place / path.relative_to(out)
                target.parent.mkdir(parents=True, exist_ok=True)
                path.rename(target)
    except OSError as error:
        raise Unwritable(f"cannot move {path} to {place} ({error.strerror}): make {out} writable first") from None
    return place
