"""Loads the building blocks of methods when they are first used, so that a method's file does not import torch.

For example, `kit.federated` is `fedray.methods.base.federated`. The stub `kit.pyi` says from which module each name
comes.

Example:
    >>> from fedray.methods import kit
    >>> kit.permutation.__module__
    'fedray.components.schedule'
"""

import ast
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


@cache
def list_rows() -> Mapping[str, tuple[str, str]]:
    """Reads the imports of the stub `kit.pyi`. Returns the module and the original name of each imported name.

    The original name is empty if a whole module is imported.
    """
    rows = {}
    for row in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body:
        match row:
            case ast.ImportFrom(module=str(module), names=[one]) if "." in module.removeprefix("fedray."):
                rows[one.name] = (module, one.name)
            case ast.ImportFrom(module=str(module), names=[one]):
                rows[one.name] = (f"{module}.{one.name}", "")
            case ast.Import(names=[one]):
                rows[one.name] = (one.name, "")
    return rows


def list_public() -> list[str]:
    """Returns the names of the building blocks that `fedray.methods` has for a user's own methods."""
    return [name for name, (_, inside) in list_rows().items() if inside]


def __getattr__(name: str) -> Any:
    """Loads the object `name` when it is first used."""
    if name not in list_rows():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, inside = list_rows()[name]
    thing = getattr(import_module(module), inside) if inside else import_module(module)
    globals()[name] = thing
    return thing
