"""Names that a user's module registers, forgotten again, as in a new process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedray.assembly import own_training
from fedray.components import schedule, selection
from fedray.data import catalogue, own_partition
from fedray.methods import METHODS
from fedray.models import catalogue as networks
from fedray.scenario import methods, names


def _tables() -> list[dict[Any, Any]]:
    """Where names are kept."""
    return [*names._OWN.values(), names._DECLARED, names._ORIGINS, catalogue._SOURCES, networks._BUILDERS, METHODS,
            own_partition._FUNCTIONS, selection._OWN_RULES, schedule.KINDS,
            own_training._registered, methods.OWN_SPECS]  # fmt: skip


@contextmanager
def forgetting_names(*modules: str) -> Iterator[None]:
    """Forgets the names that the block registers, and the modules that it imports, after it."""
    before, path = [dict(table) for table in _tables()], list(sys.path)
    try:
        yield
    finally:
        for table, known in zip(_tables(), before, strict=True):
            table.clear()
            table.update(known)
        for name in modules:
            sys.modules.pop(name, None)
        sys.path[:] = path
