"""What a user writes: strict YAML that becomes frozen dataclasses.

Public are `read_scenario`, `read_cells` and `to_plain`: a file, text or dict becomes a `Scenario`, its table the
scenarios of its cells, and a scenario plain values with every default filled in.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedray.scenario.loader import read_cells, read_scenario, to_plain

__all__ = ["read_cells", "read_scenario", "to_plain"]


def __getattr__(name: str) -> Any:
    """Loads the reader when it is first asked for."""
    if name in __all__:
        from fedray.scenario import loader

        return getattr(loader, name)
    raise AttributeError(f"module 'fedray.scenario' has no attribute {name!r}")
