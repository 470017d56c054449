"""Whether runs have the same data: what breaks their pairs, and what makes their scores incomparable.

The digests of `identity.json` decide, where runs have them; else the names of the data do.

Example:
    >>> runs = [ReadRun(name, {"data": {"name": "digits", "hold_out": out}}, "", {}, {}, {}, None, None, {})
    ...         for name, out in (("a", 0.0), ("b", 0.2))]
    >>> list_data_notes(runs)
    ["The runs differ in data.hold_out (a 0.0, b 0.2): their pairs share seeds, but not the clients' rows."]
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fedray.core.text import show_line
from fedray.report.read import ReadRun
from fedray.scenario.identity import UNSET
from fedray.scenario.nested import flatten

TRAINING = ("training inputs", "training labels", "generated clients")  # digests, as `fedray.data.digest` names them
TEST = ("test inputs", "test labels", "classes")
ROWS = "the clients' rows"
PAIRING_KEYS = ("data.hold_out", "data.partition", "clients.number", "method.server_data", "method.validation")
MOST_KEYS = 8
MOST_TEXT = 200  # letters of the values of a key


def list_data_notes(runs: Sequence[ReadRun]) -> list[str]:
    """What must be known of the data of runs before they are compared; nothing where they have the same.

    Args:
        runs: at least two; each is compared with the first.
    """
    first, names = runs[0], [_name_data(run) for run in runs]
    known = [_read_digests(run) for run in runs]
    if any(name != names[0] and not _are_same(now, known[0]) for name, now in zip(names, known, strict=True)):
        each = ", ".join(f"{run.name} {name}" for run, name in zip(runs, names, strict=True))
        return [f"The runs differ in their data: {each}. Their scores cannot be compared."]
    found = []
    for run, now in zip(runs[1:], known[1:], strict=True):
        other = [part for part in (*TRAINING, *TEST) if now and known[0] and now.get(part) != known[0].get(part)]
        if other:
            what = "Their scores cannot be compared" if set(other) & set(TEST) else "They do not train on the same rows"
            names_of = f"{first.name} and {run.name}: {', '.join(other)}"
            found.append(f"The runs differ in their data, though both are called {names[0]} ({names_of}). {what}.")
    return found + _list_key_notes(runs)


def _list_key_notes(runs: Sequence[ReadRun]) -> list[str]:
    """A note on the keys that give the clients of two runs other rows; none where these are known to be the same."""
    first = _read_digests(runs[0]).get(ROWS)
    if first is not None and all(_read_digests(run).get(ROWS) == first for run in runs):
        return []
    flat = [_list_pairing_keys(run) for run in runs]
    each = {key: [one.get(key, UNSET) for one in flat] for one in flat for key in one}
    other = {key: values for key, values in each.items() if len(set(values)) > 1}
    shared = {key: values for key, values in other.items() if UNSET not in values}  # the rest follows from a name
    said = []
    for key, values in list((shared or other).items())[:MOST_KEYS]:
        text = ", ".join(f"{run.name} {value}" for run, value in zip(runs, values, strict=True))
        said.append(f"{key} ({text if len(text) <= MOST_TEXT else text[:MOST_TEXT] + ' ...'})")
    if not said:
        return []
    return [f"The runs differ in {', '.join(said)}: their pairs share seeds, but not the clients' rows."]


def _list_pairing_keys(run: ReadRun) -> dict[str, str]:
    """The keys that decide who trains on which rows, with their values; of a user's own rule a part of its digest."""
    found = {
        key: value if isinstance(value, str) else json.dumps(value, default=str)
        for key, value in flatten(run.scenario).items()
        if key in PAIRING_KEYS or key.startswith("data.partition.")
    }
    own = run.identity.get("partition")
    if isinstance(own, Mapping) and own.get("code"):
        found["the code of data.partition"] = str(own["code"])[:8]
    return {show_line(key, 60): show_line(value, 60) for key, value in found.items()}


def _name_data(run: ReadRun) -> str:
    """What a scenario calls its data."""
    data: Any = run.scenario.get("data", "unknown")
    if isinstance(data, Mapping):
        data = data.get("object") or data.get("name", "unknown")
    return show_line(data, 60)


def _read_digests(run: ReadRun) -> Mapping[str, Any]:
    """The digests of a run's data, by what they are of; empty where there are none."""
    found = run.identity.get("data")
    return found if isinstance(found, Mapping) else {}


def _are_same(now: Mapping[str, Any], first: Mapping[str, Any]) -> bool:
    """Whether two runs are known to have the same data."""
    return bool(now and first) and all(now.get(part) == first.get(part) for part in (*TRAINING, *TEST))
