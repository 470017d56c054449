"""The scenarios that users write: strict YAML that becomes frozen dataclasses.

Public are three functions. `read_scenario` makes a `Scenario` from a file, a text or a dict. `read_cells` returns the
scenarios of the cells of a table. `to_plain` returns a scenario as plain values with all defaults.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedray.scenario.loader import read_cells, read_scenario, to_plain

__all__ = ["read_cells", "read_scenario", "to_plain"]


def __getattr__(name: str) -> Any:
    """Imports the module of a public function when it is first used."""
    if name in __all__:
        from fedray.scenario import loader

        return getattr(loader, name)
    raise AttributeError(f"module 'fedray.scenario' has no attribute {name!r}")
