"""Writes files atomically, checks paths that users give, hashes tensors, and locks files."""

import errno
import fcntl
import hashlib
import json
import logging
import math
import os
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import IO, TYPE_CHECKING, Any

from fedray.core.errors import BadInput, FedrayError, Unwritable

if TYPE_CHECKING:
    from torch import Tensor


@contextmanager
def explain_unwritable(path: Path) -> Iterator[None]:
    """Turns errors of the operating system inside a `with` block into `Unwritable`.

    The `with` block writes `path`, a file or folder of a run.
    """
    try:
        yield
    except FileNotFoundError:
        raise Unwritable(f"cannot write {path}: {path.parent} is gone: was it moved or deleted?") from None
    except OSError as error:
        raise Unwritable(f"cannot write {path}: {error.strerror}: free space or choose another directory") from None


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file of a run. Readers see the complete old file or the complete new file.

    The directory must exist, because a run directory that was moved must not appear again at its old path.

    Raises:
        Unwritable: The file cannot be written.
    """
    with explain_unwritable(path), open_replacement(path) as file:
        file.write(data)


@contextmanager
def open_replacement(path: Path) -> Iterator[IO[bytes]]:
    """Opens a new file that replaces `path` when the `with` block ends without an error. The directory must exist.

    The file has a temporary name until it is complete and on the disk. So after a crash the old file is still there,
    and several processes may write the same path at the same time.

    Raises:
        OSError: The file cannot be written, or a directory or device has this path. In both cases `path` is unchanged.
    """
    part = path.with_name(f".{secrets.token_hex(12)}.part")
    try:
        if path.exists() and not path.is_file():
            raise OSError(errno.EEXIST, "it is no file", str(path))
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def make_parent(path: Path) -> None:
    """Makes the directory of a file that the user names, and all directories above it.

    Raises:
        Unwritable: The directory cannot be made.
    """
    with explain_unwritable(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)


def write_user_file(path: Path, data: bytes) -> None:
    """Writes a file that the user names, as `write_atomically` does. Makes the directory of the file if needed.

    Raises:
        Unwritable: The directory or the file cannot be made.
    """
    make_parent(path)
    write_atomically(path, data)


def make_folder(path: Path) -> None:
    """Makes a folder in a run directory. The run directory itself must exist.

    Raises:
        Unwritable: The folder cannot be made.
    """
    with explain_unwritable(path):
        path.mkdir(exist_ok=True)


def sync_to_disk(path: Path) -> None:
    """Waits until a file, or the list of names in a folder, is on the disk (fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def expand_user_path(key: str, text: str) -> Path:
    """Returns the path that a user wrote, and expands `~`.

    Raises:
        BadInput: No file can have this path.
    """
    try:
        path = Path(text).expanduser()
        path.exists()
        str(path.absolute()).encode()  # JSON, YAML and safetensors need UTF-8
    except (OSError, RuntimeError, ValueError) as error:  # the name is too long, or names the home of an unknown user
        why = getattr(error, "strerror", None) or error
        raise BadInput(f"{key} = {text[:100]}: no such path ({why}): correct it") from None
    return path


def confirm_writable(folder: Path) -> None:
    """Checks that a directory can be written. Writes and removes an empty file in it.

    If the directory does not exist, the nearest directory above it is tested.

    Raises:
        BadInput: The directory cannot be written.
    """
    place = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    try:
        probe = place / f".{secrets.token_hex(12)}.part"
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise BadInput(f"{folder} cannot be written ({error.strerror}): choose another directory") from None


def write_json(path: Path, value: Any) -> None:
    """Writes JSON atomically. NaN and infinity become null.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_json(Path(folder) / "scores.json", {"loss": float("nan")})
        ...     print((Path(folder) / "scores.json").read_text().strip())
        {
          "loss": null
        }
    """
    text = json.dumps(replace_infinite(value), indent=2)
    write_atomically(path, (text + "\n").encode())


def replace_infinite(value: Any) -> Any:
    """Returns a JSON value in which None replaces NaN and infinity."""
    if isinstance(value, dict):
        return {k: replace_infinite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [replace_infinite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def hash_tensors(tensors: "dict[str, Tensor]") -> str:
    """Returns the SHA-256 of the names and the little-endian bytes of tensors, in the order of the dict."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        array = tensor.detach().cpu().numpy()
        digest.update(name.encode())
        digest.update(array.astype(array.dtype.newbyteorder("<"), order="C", copy=False).tobytes())
    return digest.hexdigest()


# ---------------------------------------------------------------------------------------------------------------------
# A lock of a file. The lock ends when the process that holds it ends, even if this process is killed.

log = logging.getLogger("fedray")
LOCK_SECONDS = 30.0  # longest wait for the process that holds the lock


@contextmanager
def hold_lock(path: Path, taken: BadInput | FedrayError, *, wait: bool = True) -> Iterator[int]:
    """Holds the lock of a file during a `with` block. Makes the file if it is missing.

    Args:
        path: The file.
        taken: The error to raise if a different process holds the lock.
        wait: Whether to wait up to 30 seconds (`LOCK_SECONDS`) for that process. Otherwise `taken` is raised at once.

    Yields:
        The descriptor of the file. A child process that inherits the descriptor keeps the lock, too.

    Raises:
        Unwritable: The file cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, hold_lock(Path(folder) / ".lock", BadInput("it is taken")):
        ...     (Path(folder) / ".lock").is_file()
        True
    """
    with explain_unwritable(path):
        file = path.open("ab")
    with file:
        deadline, told = time.monotonic() + LOCK_SECONDS, False
        while not _try_lock(file.fileno()):
            if not wait or time.monotonic() > deadline:
                raise taken
            if not told:
                told = True
                log.info("waiting for the process that writes %s", path.parent)
            time.sleep(0.05)
        yield file.fileno()


def is_locked(path: Path) -> bool:
    """Returns whether a process holds the lock of a file now. The result is False if the file does not exist.

    Example:
        >>> is_locked(Path("no such file"))
        False
    """
    try:
        with path.open("rb") as file:
            return not _try_lock(file.fileno())
    except OSError:
        return False


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # the file system has no locks, so the process goes on without a lock
        return True
    return True


# ---------------------------------------------------------------------------------------------------------------------
# The directory into which a call from Python writes. If the call names no directory, a new temporary folder is used.
#
# A file in each temporary folder names the process that made the folder. So `fedray clean` knows which folders are no
# longer in use.

PREFIX = "fedray-out-"  # beginning of the names of temporary folders
OWNER = "process.json"  # the file that names the process


@contextmanager
def choose_out(out: str | Path | None, name: str) -> Iterator[Path]:
    """Yields the path of the output directory, which does not have to exist yet.

    If `out` is None, the path is `name` in a new temporary folder. If nothing was written, this folder is removed at
    the end of the `with` block.

    Raises:
        BadInput: No directory can have this path.

    Example:
        >>> with choose_out(None, "run") as out:
        ...     out.name, out.exists(), out.parent.exists(), is_in_use(out.parent)
        ('run', False, True, True)
        >>> out.parent.exists()  # nothing was written
        False
    """
    if out is not None:
        yield expand_user_path("out", str(out))
        return
    folder = Path(mkdtemp(prefix=PREFIX))
    (folder / OWNER).write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
    try:
        yield folder / name
    finally:
        if not (folder / name).exists():
            with suppress(OSError):  # the folder was removed meanwhile, or holds other files
                (folder / OWNER).unlink()
                folder.rmdir()


def find_temporary(places: Sequence[Path], prefix: str = PREFIX, mark: str = OWNER) -> list[Path]:
    """Returns the temporary folders of this user in the directories `places`. Some may still be in use.

    The name of such a folder begins with `prefix`, and the folder holds a file with the name `mark`.
    """
    found = []
    for path in sorted(path for place in places for path in place.glob(f"{prefix}*")):
        with suppress(OSError):
            is_own = path.lstat().st_uid == os.getuid() and not path.is_symlink()
            found += [path] if is_own and (path / mark).is_file() else []
    return found


def is_in_use(folder: Path) -> bool:
    """Returns whether the process that made a temporary folder is still running. If this is not known, returns True."""
    try:
        owner = json.loads((folder / OWNER).read_bytes())
        if owner["host"] == socket.gethostname():
            os.kill(owner["pid"], 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError, KeyError, TypeError):
        return True
    return True
