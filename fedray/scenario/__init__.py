"""Reads scenarios, which describe experiments in strict YAML, into frozen dataclasses.

Three functions are public. `read_scenario` makes a `Scenario` from a file, a text or a dict. `read_cells` returns the
scenario of each cell of a table. `to_plain` returns a scenario as plain values with all defaults.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedray.scenario.loader import read_cells, read_scenario, to_plain

__all__ = ["read_cells", "read_scenario", "to_plain"]


def __getattr__(name: str) -> Any:
    """Imports and returns a public function."""
    if name in __all__:
        from fedray.scenario import loader

        return getattr(loader, name)
    raise AttributeError(f"module 'fedray.scenario' has no attribute {name!r}")
