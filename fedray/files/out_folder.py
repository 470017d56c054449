"""The directory into which a call from Python writes: the one that it names, or one in a temporary folder.

A temporary folder says which process made it, so that `fedray clean` knows which of them nobody uses any more.

Example:
    >>> with choose_out(None, "run") as out:
    ...     out.name, out.exists(), out.parent.exists(), is_in_use(out.parent)
    ('run', False, True, True)
    >>> out.parent.exists()  # nothing was written
    False
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from fedray.files.plain import expand_user_path

PREFIX = "fedray-out-"  # of the temporary folders
OWNER = "process.json"
PROCESSES = Path("/proc")


@contextmanager
def choose_out(out: str | Path | None, name: str) -> Iterator[Path]:
    """Gives the directory, which is made by whoever writes it.

    Args:
        out: What the user gave; None: a directory in a fresh temporary folder, which goes again where it stays empty.
        name: Of the directory in the temporary folder.

    Raises:
        BadInput: No directory can have this path.
    """
    if out is not None:
        yield expand_user_path("out", str(out))
        return
    folder = Path(mkdtemp(prefix=PREFIX))
    (folder / OWNER).write_text(json.dumps(_describe_process(os.getpid())))
    try:
        yield folder / name
    finally:
        if not (folder / name).exists():
            with suppress(OSError):  # it was removed meanwhile, or holds something else
                (folder / OWNER).unlink()
                folder.rmdir()


def find_temporary(places: Sequence[Path]) -> list[Path]:
    """The temporary folders of this user, those of processes that go on among them.

    Args:
        places: The directories in which they may be.
    """
    found = []
    for path in sorted(path for place in places for path in place.glob(f"{PREFIX}*")):
        with suppress(OSError):
            is_own = path.lstat().st_uid == os.getuid() and path.is_dir() and not path.is_symlink()
            found += [path] if is_own and (path / OWNER).is_file() else []
    return found


def is_in_use(folder: Path) -> bool:
    """Whether the process goes on that made a temporary folder; also where that cannot be known."""
    try:
        owner = json.loads((folder / OWNER).read_bytes()[:10_000])
        pid = int(owner["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return True
    now = _describe_process(pid)
    if owner.get("host") != now["host"]:
        return True
    if owner.get("boot") != now["boot"]:  # the machine was started again
        return False
    return bool(owner.get("names") != now["names"] or owner.get("began") == now["began"])  # elsewhere, or alive


def _describe_process(pid: int) -> dict[str, Any]:
    """What tells a process from others: its id, when it began (None: there is none), its machine and its container."""
    try:
        boot = (PROCESSES / "sys/kernel/random/boot_id").read_text().strip()
        names = str((PROCESSES / "self/ns/pid").readlink())
    except OSError:  # no Linux
        boot = names = ""
    return {"pid": pid, "began": _find_start(pid), "host": socket.gethostname(), "boot": boot, "names": names}


def _find_start(pid: int) -> str | None:
    """When a process began, in the system's own count; elsewhere than on Linux only whether there is one."""
    if PROCESSES.is_dir():
        with suppress(OSError, IndexError):
            return (PROCESSES / str(pid) / "stat").read_text().rpartition(")")[2].split()[19]
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass
    return ""
