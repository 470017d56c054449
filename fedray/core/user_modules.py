"""A user's own modules, which register names for scenario files: `fedray run --import MODULE`.

Example:
    >>> import_modules(["json"])
    >>> import_modules(["no_such_module"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    fedray.core.errors.BadInput: --import no_such_module: ModuleNotFoundError: ...
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path

from fedray.core.errors import BadInput


def import_modules(modules: Iterable[str]) -> None:
    """Imports modules in this process, those of the working directory too.

    Raises:
        BadInput: a module cannot be imported.
    """
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:
            why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise BadInput(f"--import {name}: {why}: give the name of an importable module") from error
