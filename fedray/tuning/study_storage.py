"""The storage of a study when something is wrong with it: damaged, locked by somebody else, or lost on the way.

Example:
    >>> with explain_storage("sqlite:///study.db"):
    ...     raise OSError(5, "Input/output error")
    Traceback (most recent call last):
    fedray.core.errors.Unwritable: the storage of the sweep (sqlite://...) cannot be used (Input/output error): ...
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna

from fedray.core.errors import BadInput, FedrayError, Unwritable
from fedray.core.text import show_line
from fedray.files.bounded import name_file
from fedray.files.sealed import read_or_explain

REMEDY = "bring it back, then --resume"
IS_FULL = (errno.ENOSPC, errno.EDQUOT)
_LIBRARIES = ("optuna", "sqlalchemy", "sqlite3", "redis", "psycopg2", "pymysql", "MySQLdb")


def name_storage(storage: str) -> str:
    """A storage for messages: a file's path, or the kind of a URL, which may hold a password."""
    kind, is_url, _ = storage.partition("://")
    return f"{kind}://..." if is_url else name_file(Path(storage))


@contextmanager
def explain_storage(storage: str) -> Iterator[None]:
    """Makes one line of what Optuna, its drivers and the file system raise about a storage.

    Args:
        storage: a journal file or a storage URL.

    Raises:
        Unwritable: the storage cannot be used.
    """
    try:
        yield
    except OSError as error:
        if error.filename not in (None, storage, f"{storage}.lock"):  # of something else
            raise
        raise _say_lost(storage, error) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise _say_lost(storage, error) from None
    except Exception as error:
        if not type(error).__module__.startswith(_LIBRARIES):
            raise
        raise _say_lost(storage, error) from None


def _say_lost(storage: str, error: BaseException) -> Unwritable:
    while error.__cause__ is not None:  # Optuna's own text is about its users' mistakes
        error = error.__cause__
    why = getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
    full = getattr(error, "errno", None) in IS_FULL or "disk is full" in why  # SQLite has no numbers
    remedy = "free space, then --resume" if full else REMEDY
    return Unwritable(f"the storage of the sweep ({name_storage(storage)}) cannot be used ({show_line(why)}): {remedy}")


def watch_storage(storage: str) -> Callable[[], None]:
    """A function that raises `Unwritable` once the file of a storage was deleted or replaced.

    Optuna goes on with a new, empty journal where the old one was deleted, and SQLite with a file without a name.

    Args:
        storage: a journal file or a storage URL.
    """
    path = _find_file(storage)
    began = None if path is None else _identify_file(path)

    def confirm() -> None:
        if path is not None and began is not None and _identify_file(path) != began:
            raise Unwritable(f"the storage of the sweep, {name_file(path)}, was deleted or replaced: {REMEDY}")

    return confirm


def _find_file(storage: str) -> Path | None:
    """The file of a journal or of SQLite."""
    if "://" not in storage:
        return Path(storage)
    kind, _, path = storage.partition(":///")
    return Path(path.partition("?")[0]) if kind.startswith("sqlite") and path else None


def _identify_file(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def mend_journal(journal: Path) -> None:
    """Cuts off a last line that was never finished, and a lock that a killed sweep left; for when nobody else writes.

    Raises:
        BadInput: a line before the last one is damaged.
        FedrayError: the journal cannot be read.
    """
    if not journal.exists():
        return
    data = read_or_explain(journal, REMEDY)
    if not data.endswith(b"\n"):
        with journal.open("r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)
    for number, line in enumerate(data.splitlines(keepends=True), 1):
        if line.endswith(b"\n") and not _is_entry(line):
            raise BadInput(f"{name_file(journal)}, line {number} is damaged: restore the file, or start a new sweep")
    journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)


def _is_entry(line: bytes) -> bool:
    """Whether a line of a journal is one that Optuna writes."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(entry, dict) and isinstance(entry.get("op_code"), int) and "worker_id" in entry


@contextmanager
def explain_entries(storage: str) -> Iterator[None]:
    """Makes one line of what Optuna raises where the entries of a storage contradict each other.

    Args:
        storage: a journal file or a storage URL.

    Raises:
        BadInput: they do.
    """
    try:
        yield
    except (FedrayError, OSError, optuna.exceptions.OptunaError):
        raise
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        why = show_line(f"{type(error).__name__}: {error}", 120)
        raise BadInput(
            f"the storage of the sweep ({name_storage(storage)}) is damaged ({why}): restore it, or start a new sweep"
        ) from None
