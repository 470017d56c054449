"""Faults of the machine apart from failures of a training: a trial that met one is no failed trial.

Example:
    >>> refuse_fault(ValueError("the loss is NaN"), Path("trials/00003"))
    >>> refuse_fault(OSError(errno.ENOSPC, "No space left on device"), Path("trials/00003"))
    Traceback (most recent call last):
    fedray.core.errors.Unwritable: trials/00003 cannot be written (No space left on device): free space
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from fedray.core.errors import FedrayError, Unwritable

_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE, errno.EMFILE, errno.ENFILE)


def refuse_fault(error: Exception, folder: Path) -> None:
    """Raises `Unwritable` where an error, or what led to it, is the machine's: the same training may succeed later.

    Args:
        error: what ended a training.
        folder: its run directory.

    Raises:
        Unwritable: it is a full or broken disk, or a file or a storage that cannot be written.
    """
    if isinstance(error, Unwritable):
        raise error
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, shutil.Error) or (isinstance(cause, OSError) and cause.errno in _FAULTS):
            line = f"{folder} cannot be written ({cause.strerror or 'its files could not be copied'}): free space"
            raise Unwritable(str(error) if isinstance(error, FedrayError) else line) from error
        cause = cause.__cause__ or cause.__context__
