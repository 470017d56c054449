"""What a file keeps for a method that takes the place of its own: keys that the first method had set.

Example:
    >>> shefl = {"method": {"name": "shefl"}, "compress": {"kind": "topk", "ratio": 0.1}}
    >>> now = {"method": {"name": "fedavg"}, "compress": {"kind": "topk", "ratio": 0.1}}
    >>> usual = {"method": {"name": "fedavg"}, "compress": {"kind": "dense", "ratio": 0.1}}
    >>> list_kept_keys(shefl, {"method": {"name": "fedavg"}}, now, usual)
    {'compress.kind': 'topk'}
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedray.core.text import quote_value
from fedray.scenario.methods import method_spec_of
from fedray.scenario.nested import DEFAULT_NAMES, flatten, is_renamed

_MAKE = ("clients.tiers.", "participation.", "schedule.", "local.", "compress.", "server.", "predict.", "graph.")
_MOST_NAMED = 12
_TIERS = "clients.tiers"


def renames_method(file: Mapping[str, Any], changes: Mapping[str, Any]) -> bool:
    """Whether what is set on top of a file gives it another method."""
    return is_renamed(_section(file), _section(changes), ("method",))


def list_kept_keys(
    file: Mapping[str, Any],
    changes: Mapping[str, Any],
    now: Mapping[str, Any],
    usual: Mapping[str, Any],
    *,
    whole: bool = False,
) -> dict[str, Any]:
    """The keys of a file that stay where another method takes the place of its own, and are not this one's defaults.

    Of a file that a person wrote they are those that its method sets by itself; others may be meant for every method.

    Args:
        file: its keys.
        changes: what is set on top, with the other method.
        now: the resolved scenario.
        usual: what the other method resolves to without the file.
        whole: whether nobody has chosen the keys of the file: a resolved scenario, or what a sweep has found.
    """
    old = method_spec_of(_section(file).get("name", DEFAULT_NAMES["method",]))
    first, set_now, value, default = (flatten(tree) for tree in (old.defaults, changes, now, usual))
    found: dict[str, Any] = {}
    for key in flatten(file):
        mine = key in first or (whole and (key == "rounds" or key.startswith(_MAKE)))
        stays = key in value and key not in set_now and value[key] != default.get(key)
        if mine and stays and not key.startswith("method."):
            found[_TIERS if key.startswith(_TIERS) else key] = value[key]
    return found


def tell_kept_keys(method: str, kept: Mapping[str, Any]) -> str:
    """What a file keeps, in one line.

    Example:
        >>> tell_kept_keys("fedavg", {"compress.ratio": 0.2, "clients.tiers": {}})
        'method.name = fedavg keeps compress.ratio = 0.2, clients.tiers from the file: KEY=null gives its own default'
    """
    each = [key if key == _TIERS else f"{key} = {quote_value(value, 40)}" for key, value in kept.items()]
    more = f" and {len(each) - _MOST_NAMED} more" if len(each) > _MOST_NAMED else ""
    keys = ", ".join(each[:_MOST_NAMED])
    return f"method.name = {method} keeps {keys}{more} from the file: KEY=null gives its own default"


def is_of_sweep(source: object) -> bool:
    """Whether a file is a scenario that a sweep has written: `best.yaml`, or one of its Pareto front.

    Args:
        source: the path.
    """
    path = Path(source) if isinstance(source, str | Path) else None
    if path is None or path.suffix != ".yaml":
        return False
    folder = path.parent if path.name == "best.yaml" else path.parent.parent
    return (path.name == "best.yaml" or path.parent.name == "pareto") and (folder / "sweep.yaml").is_file()


def _section(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    found = tree.get("method")
    return found if isinstance(found, Mapping) else {}
