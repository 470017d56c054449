"""What is wrong with a value, in one line: pydantic's errors in plain words.

Example:
    >>> error_line({"loc": ("rounds",), "type": "missing"}, lambda section: ())
    'rounds is missing: give it a value'
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedray.core.text import quote_value
from fedray.scenario.unknown_keys import explain_unknown_key


def error_line(
    error: Mapping[str, Any],
    fields: Callable[[str], tuple[str, ...]],
    sections: Mapping[str, tuple[str, ...]] | None = None,
) -> str:
    """One error of pydantic as a line.

    Args:
        error: as pydantic's `ValidationError.errors()` gives it.
        fields: gives the keys of a section; `*` in the section stands for any name or index.
        sections: the keys of those in which an unknown key is looked for.
    """
    place = [part for part in error["loc"] if part != "[key]"]
    path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in place).lstrip(".")
    value, kind = error.get("input"), error["type"]
    if kind == "unexpected_keyword_argument":
        section = ".".join(
            "*" if place[:i] in (["clients", "tiers"], ["table"]) else str(p) for i, p in enumerate(place[:-1])
        )
        key, above = str(place[-1]), path[: -len(str(place[-1])) - 1]
        return explain_unknown_key(above, key, fields(section), sections=sections)
    if kind == "value_error":
        if error["loc"][-1] == "[key]":
            return f"clients.tiers has the name {quote_value(value)}, which {error['ctx']['error']}"
        return f"{path} = {quote_value(value)} {error['ctx']['error']}"
    if kind == "missing":
        return f"{path} is missing: give it a value"
    if kind == "list_type":
        return f"{path} = {quote_value(value)} is not a list: write its entries as '- ...' lines below it"
    section = "clients.tiers.*" if place[:2] == ["clients", "tiers"] and len(place) == 3 else path
    remedy = f"write {_spell_section(section, value)}" if section in _EXAMPLES else "write its keys below it"
    return f"{path} = {quote_value(value)} is not a mapping: {remedy}"


def _spell_section(section: str, value: Any) -> str:
    """The keys that are meant where a section is one value.

    Example:
        >>> _spell_section("evaluate.target", 0.85), _spell_section("evaluate.target", "nll")
        ('{metric: accuracy, value: 0.85}', '{metric: nll, value: 0.9}')
    """
    keys = dict(_EXAMPLES[section])
    if isinstance(value, int | float) and not isinstance(value, bool):
        if section == "participation" and 0 < value < 1:
            keys = {"fraction": value}
        elif isinstance(keys[last := list(keys)[-1]], int | float):
            keys[last] = value
    elif (
        isinstance(value, str)
        and value.isidentifier()
        and (word := next(iter(keys))) in ("metric", "kind", "optimizer")
    ):
        keys[word] = value
    return f"{{{', '.join(f'{key}: {entry}' for key, entry in keys.items())}}}"


_REACHED = {"metric": "accuracy", "value": 0.9}
_EXAMPLES: Mapping[str, Mapping[str, Any]] = {  # what a number alone is meant for comes last
    "evaluate.stop_at": _REACHED,
    "evaluate.target": _REACHED,
    "stop": {"metric": "accuracy", "patience": 10},
    "evaluate": {"every": 10},
    "checkpoint": {"every": 10},
    "participation": {"per_round": 10},
    "clients": {"number": 50},
    "clients.tiers.*": {"number": 10},
    "predict.conformal": {"alpha": 0.1},
    "schedule": {"kind": "permutation"},
    "compress": {"kind": "topk"},
    "server": {"optimizer": "adam"},
    "graph": {"kind": "ring"},
    "local": {"lr": 0.1},
}
