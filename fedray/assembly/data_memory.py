"""Estimates of what the rows of a data set need in memory: computed data, copies, rows that differ by client.

Example:
    >>> from fedray.data.catalogue import load_data
    >>> from fedray.scenario.loader import read_scenario
    >>> partition = {"name": "iid", "rotation": 4, "copies": True}
    >>> scenario = read_scenario({"data": {"partition": partition}})
    >>> [need.what for need in estimate_rows(scenario, load_data("digits"), worlds=2)]
    ['2 partitions of 5,752 rows', '4 copies of 1,797 rows']
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedray.core.types import EVALUATED_CLIENTS
from fedray.data.generated import POOL_NUMBERS
from fedray.data.types import Dataset
from fedray.scenario.schema import Scenario


class Need(NamedTuple):
    """Some memory that a run needs.

    Attributes:
        what: what it is for, in words.
        keys: the keys of the scenario that decide its size.
        bytes: its size.
    """

    what: str
    keys: str
    bytes: float


def estimate_generated_data(scenario: Scenario, number: int) -> list[Need]:
    """Data sets that are computed, not read: nothing for the others.

    Args:
        scenario: the scenario.
        number: clients N.
    """
    keys: Mapping[str, Any] = scenario.data.options
    if scenario.data.name in ("sine", "interval", "cubic"):
        rows = int(keys.get("clients", number)) * int(keys.get("samples", 16))
        return [Need(f"{rows:,} rows", "data.clients x data.samples", 64.0 * rows)]
    if scenario.data.name != "synthetic":
        return []
    features, classes, samples = keys["features"], keys["classes"], keys["samples"]
    pool, known = max(1024, min(65_536, POOL_NUMBERS // features)), min(number, EVALUATED_CLIENTS)
    tail = keys["spread"] * math.sqrt(2 * math.log(max(number, 2)))  # the largest of N normal numbers
    largest, row = samples * math.exp(min(tail, 600.0)), 12.0 * features + 64
    held = known * samples * scenario.data.hold_out
    return [
        Need(f"{keys['test']:,} test rows", "data.test x data.features", row * keys["test"]),
        Need(f"{classes:,} means and {pool:,} rows of noise", "data.features", 12.0 * (classes + pool) * features),
        Need(f"label counts of {known:,} clients", "data.classes x clients.number", 16.0 * known * classes),
        Need(f"a client of {largest:,.3g} rows", "data.samples, data.spread, data.features", row * largest),
        Need(f"{held:,.3g} withheld rows", "data.hold_out x data.samples x clients.number", row * held),
    ]


def estimate_rows(scenario: Scenario, data: Dataset, worlds: int, *, copied: bool = False) -> list[Need]:
    """The tables that say which client holds which rows, copies of all rows, and rows that are changed world by world.

    Args:
        scenario: its partition says how the rows of clients differ.
        data: the data set.
        worlds: worlds R, replicates x folds.
        copied: whether `data` has the copies of `data.partition.copies` already.
    """
    keys: Mapping[str, Any] = scenario.data.partition.options
    groups = max(keys.get("rotation") or 1, keys.get("permute_labels") or 1) if keys.get("copies") else 1
    more = 1 if copied else groups
    rows, tested = more * len(data.train.y), more * len(data.test.y)
    needs = [Need(f"{worlds:,} partitions of {rows:,} rows", "replicates x data", 48.0 * rows * worlds)]
    row = data.train.x.nbytes / max(1, len(data.train.x))  # bytes
    if groups > 1:
        both = rows + tested
        what = f"{groups} copies of {both // groups:,} rows"
        needs.append(Need(what, "data.partition.copies x data", (row + 8.0) * both))
    turned = (bool(keys.get("rotation")) and groups == 1) or bool(keys.get("feature_noise"))
    changed = row * turned + 8.0 * bool(keys.get("permute_labels"))
    if changed:
        needs.append(
            Need(f"{worlds:,} x {rows:,} rows of shifted clients", "replicates x data", changed * rows * worlds)
        )
    return needs
