"""Names that a user's module registers, forgotten again, as in a new process."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedray.data import store as catalogue
from fedray.models import nets as networks
from fedray.scenario import names


@contextmanager
def forgetting_names(*modules: str) -> Iterator[None]:
    """Forgets the names that the block registers, and the modules that it imports, after it."""
    tables: list[dict[Any, Any]] = [names._OWN, catalogue.SOURCES, networks.BUILDERS, names.OWN_SPECS]
    before, path = [dict(table) for table in tables], list(sys.path)
    try:
        yield
    finally:
        for table, known in zip(tables, before, strict=True):
            table.clear()
            table.update(known)
        for name in modules:
            sys.modules.pop(name, None)
        sys.path[:] = path
