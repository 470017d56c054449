"""What is said of things that are no form of data: what they are, and what to give in their place.

Example:
    >>> explain_dict({"x": [[0.5]], "y": [1]})
    "data is a dict of x (a list of 1 (a list)), y (a list of 1 (an int)): give a pair, data=(d['x'], d['y'])"
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedray.data.forms.arrays import is_array
from fedray.own_code.user_code import name_type

FORMS = (
    "a pair (x, y) of arrays or tensors, two pairs (train, test), a pandas, polars or pyarrow table, a Hugging Face or "
    "torch Dataset, a pathlib.Path, {client: data}, or a fedray.data.Dataset"
)
INPUTS = ("x", "x_train", "train_x", "data", "images", "features", "inputs", "input")  # usual keys of a dict
LABELS = ("y", "y_train", "train_y", "target", "targets", "labels", "label")
MOST_NAMED = 4


def describe_thing(thing: Any) -> str:
    """What a thing is that no form is."""
    if isinstance(thing, tuple | list):
        inner = ", ".join(name_type(part) for part in thing[:MOST_NAMED])
        return f"{name_type(thing)} of {len(thing)} ({inner}{', ...' if len(thing) > MOST_NAMED else ''})"
    if is_array(thing):
        return f"{name_type(thing)} without labels"
    return name_type(thing)


def explain_dict(things: Mapping[Any, Any]) -> str:
    """The line about a dict whose values are no data by themselves: arrays, columns, numbers."""
    each = [f"{key} ({name_type(v) if is_array(v) else describe_thing(v)})" for key, v in things.items()]
    has = ", ".join(each[:MOST_NAMED] + ["..."] * (len(each) > MOST_NAMED))
    keys = {str(key).lower(): key for key in things}
    x, y = (next((keys[name] for name in names if name in keys), None) for names in (INPUTS, LABELS))
    if x is None or y is None:
        return f"data is a dict of {has}: give data=pandas.DataFrame(d) if these are columns, or {FORMS}"
    test = [keys.get(str(key).lower().replace("train", "test")) for key in (x, y)]
    if None in test or test == [x, y]:
        return f"data is a dict of {has}: give a pair, data=(d[{x!r}], d[{y!r}])"
    return f"data is a dict of {has}: give two pairs, data=((d[{x!r}], d[{y!r}]), (d[{test[0]!r}], d[{test[1]!r}]))"
