"""`failure.json`: the error that ended an unfinished run, kept in its directory until the run goes on.

Example:
    >>> import tempfile
    >>> out = Path(tempfile.mkdtemp())
    >>> (out / "scenario.yaml").write_text("rounds: 5")
    9
    >>> record_failure(out, FedrayError("round 3: client 7 diverged: lower local.lr"))
    >>> read_failure(out)
    FedrayError('round 3: client 7 diverged: lower local.lr')
    >>> forget_failure(out)
    >>> print(str(read_failure(out)).replace(str(out), "RUN"))
    RUN is not finished: it stopped before its first checkpoint; `fedray resume RUN` goes on
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from shlex import quote

from fedray.core.errors import FedrayError
from fedray.core.text import show_line
from fedray.files.bounded import is_present
from fedray.files.checksums import find_checkpoints
from fedray.files.locks import is_locked
from fedray.files.plain import write_json
from fedray.files.run_files import FAILURE_FILE, SUMMARY_FILE
from fedray.files.sealed import read_sealed


def record_failure(out: Path, error: Exception) -> None:
    """Keeps what ended a run; a full disk must not hide the error itself.

    Args:
        out: the run directory.
        error: what was raised.
    """
    if not is_present(out / "scenario.yaml"):  # the run was moved or deleted: nothing is written at its old place
        return
    text = str(error) if isinstance(error, FedrayError) else f"{type(error).__name__}: {error}"
    with suppress(FedrayError, OSError):
        write_json(out / FAILURE_FILE, {"error": show_line(text, 2000)})


def forget_failure(out: Path) -> None:
    """Removes what an earlier session kept: the run goes on."""
    with suppress(OSError):
        (out / FAILURE_FILE).unlink(missing_ok=True)


def read_failure(out: Path) -> FedrayError | None:
    """What ended a run; None where it is finished, or another process still writes it.

    Args:
        out: the run directory.

    Raises:
        Damaged: the file that says so cannot be read.
    """
    if is_present(out / FAILURE_FILE):
        found = read_sealed(out / FAILURE_FILE, f"`fedray resume {out}`")
        return FedrayError(str(found.get("error", "unknown")))
    if is_present(out / SUMMARY_FILE) or is_locked(out / ".lock"):
        return None
    rounds = find_checkpoints(out / "checkpoints")
    where = f"after the checkpoint of round {rounds[-1]}" if rounds else "before its first checkpoint"
    return FedrayError(f"{out} is not finished: it stopped {where}; `fedray resume {quote(str(out))}` goes on")
