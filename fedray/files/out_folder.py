"""The directory into which a call from Python writes: the one that it names, or one in a temporary folder.

Example:
    >>> with choose_out(None, "run") as out:
    ...     out.name, out.exists(), out.parent.exists()
    ('run', False, True)
    >>> out.parent.exists()  # nothing was written
    False
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

from fedray.files.plain import expand_user_path


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
    folder = Path(mkdtemp(prefix="fedray-"))
    try:
        yield folder / name
    finally:
        with suppress(OSError):  # it holds a run
            folder.rmdir()
