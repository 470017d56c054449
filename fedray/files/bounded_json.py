"""Reads JSON that somebody else may have written: finite numbers, bounded depth and size.

Example:
    >>> parse_json(b'{"rounds": 3}')
    {'rounds': 3}
    >>> parse_json(b'{"loss": NaN}')
    Traceback (most recent call last):
    ValueError: NaN is not JSON
"""

from __future__ import annotations

import json
import math
from typing import Any

MOST_JSON_DEPTH, MOST_JSON_VALUES = 50, 10**7
MOST_JSON_TEXT = 1 << 20  # characters of one text


def parse_json(content: bytes) -> Any:
    """The value of a JSON text.

    Args:
        content: UTF-8.

    Raises:
        ValueError: it is no JSON, or is beyond what any file of a run holds.
    """
    try:
        value = json.loads(content.decode(), parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError(f"it is nested more than {MOST_JSON_DEPTH} deep") from None
    _check_values(value)
    return value


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _check_values(value: Any) -> None:
    """Refuses a tree of plain values that is too deep or too large, or holds a number that is not finite."""
    level, values = [value], 0
    for _ in range(MOST_JSON_DEPTH):
        if not level:
            return
        values += len(level)
        below: list[Any] = []
        for one in level:
            if isinstance(one, float) and not math.isfinite(one):
                raise ValueError("a number in it is too large")
            if isinstance(one, int) and abs(one) >= 2**64:
                raise ValueError("a whole number in it is too large")
            if isinstance(one, str) and len(one) > MOST_JSON_TEXT:
                raise ValueError("a text in it is too long")
            below += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        level = below
        if values + len(level) > MOST_JSON_VALUES:
            raise ValueError(f"it holds more than {MOST_JSON_VALUES} values")
    raise ValueError(f"it is nested more than {MOST_JSON_DEPTH} deep")
