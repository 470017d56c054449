"""What each simulated device is like: its tier's figures, its own spread, a measured trace, and when it is available.

A trace is a table (CSV or Parquet) with the column `client` and any of `seconds_per_step`, `seconds_per_sample` (s),
`uplink`, `downlink` (bytes/s), `available_from`, `available_to` (virtual s). Several rows of a client are several
windows; figures are read from its first row; what a trace leaves out comes from the tier (docs/traces.md).

Example:
    A measured uplink wins over the tier's, and NaN leaves the tier's in place.

    >>> from fedray.core.types import Tier
    >>> devices = Devices(Clients((Tier("phone", 2, uplink=1e6),)), {"uplink": np.array([5e5, np.nan])})
    >>> devices.figure("uplink", np.array([0, 1])).tolist()
    [500000.0, 1000000.0]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.types import Clients, FloatArray, IntArray
from fedray.files.number_tables import read_number_table

DAY = 86_400.0
TIMES = ("seconds_per_step", "seconds_per_sample")
COLUMNS = (*TIMES, "uplink", "downlink")
Available = Callable[[IntArray, IntArray, FloatArray], FloatArray]  # (seeds, clients, now) -> seconds to wait, `[J]`


@dataclass(frozen=True)
class Devices:
    """The devices of all clients.

    Attributes:
        clients: The population, whose tiers have figures of their own.
        figures: Values by name that win over the tier's, `[N]` each; NaN leaves the tier's in place.
        available: A function (seed of the world, client, virtual seconds now) -> virtual seconds until the client is
            available, `[J]` each; 0: it is. None: every client is always available.
    """

    clients: Clients
    figures: dict[str, FloatArray] = field(default_factory=dict)
    available: Available | None = None

    def figure(self, name: str, client: IntArray) -> FloatArray:
        """A figure of each client, `[J]`; the names are those of `Tier`."""
        tiers = self.clients.tiers
        if len(tiers) == 1:
            values = np.full(len(client), float(getattr(tiers[0], name)))
        else:
            values = np.array([float(getattr(one, name)) for one in tiers])[self.clients.tier_of(client)]
        if name in self.figures:
            own = self.figures[name][client]
            values = np.where(np.isnan(own), values, own)
        return values

    def slowness(self, seeds: IntArray, client: IntArray) -> FloatArray:
        """Lognormal factor of each client's compute time, by address, `[J]`; 1 where the time was measured."""
        spread = self.figure("spread", client)
        for measured in (self.figures[name][client] for name in TIMES if name in self.figures):
            spread = np.where(np.isnan(measured), spread, 0.0)
        if not spread.any():
            return np.ones(len(client))
        factor: FloatArray = np.exp(spread * rng.normal(rng.keys(seeds, "speed", client), 1)[:, 0])
        return factor.round(9)  # exp and cos have other last bits on other processors


def diurnal_availability(share: float = 0.5, period: float = DAY) -> Available:
    """Each client is available for a share of every period, from a phase that is drawn by address.

    Args:
        share: Share of the period, in (0, 1].
        period: Virtual seconds.
    """

    def wait(seeds: IntArray, client: IntArray, now: FloatArray) -> FloatArray:
        phase = rng.uniform(rng.keys(seeds, "phase", client), 1)[:, 0]
        at = (now / period + phase) % 1.0
        return np.where(at < share, 0.0, (1.0 - at + 1e-9) * period)  # 1e-9: past the turn in spite of rounding

    return wait


def window_availability(client: IntArray, start: FloatArray, end: FloatArray) -> Available:
    """Each client is available in its own windows; one without windows always is.

    Args:
        client: The client of each window, `[n]`.
        start: Virtual second at which the window begins, `[n]`.
        end: Virtual second at which it ends, `[n]`; may be infinite.

    Example:
        >>> wait = window_availability(np.array([0]), np.array([60.0]), np.array([90.0]))
        >>> wait(np.zeros(3, int), np.array([0, 0, 1]), np.array([0.0, 70.0, 0.0])).tolist()
        [60.0, 0.0, 0.0]
    """
    order = np.argsort(client, kind="stable")
    client, start, end = client[order], start[order], end[order]

    def wait(_seeds: IntArray, clients: IntArray, now: FloatArray) -> FloatArray:
        first = np.searchsorted(client, clients, side="left")
        number = np.searchsorted(client, clients, side="right") - first
        row = np.repeat(np.arange(len(clients)), number)
        window = np.arange(len(row)) + np.repeat(first - np.cumsum(number) + number, number)
        seconds = np.where(now[row] < end[window], np.maximum(start[window] - now[row], 0.0), np.inf)
        soonest = np.where(number > 0, np.inf, 0.0)
        np.minimum.at(soonest, row, seconds)
        return soonest

    return wait


def read_trace(clients: Clients, path: Path) -> Devices:
    """Reads the devices of a trace file.

    Args:
        clients: The population.
        path: A CSV or Parquet file.

    Raises:
        BadInput: The file cannot be read, has no `client` column, names a client that does not exist, or holds a figure
            that is not above 0 or a window that ends before it begins.
    """
    table = read_number_table("clients.trace", path, ("client",), (*COLUMNS, "available_from", "available_to"))
    client = _read_ids(table["client"], clients.number, path)
    figures = {}
    known, first = np.unique(client, return_index=True)
    for name in COLUMNS:
        if name in table:
            figures[name] = np.full(clients.number, np.nan)
            figures[name][known] = table[name][first]
            if not (np.isnan(table[name]) | (np.isfinite(table[name]) & (table[name] > 0))).all():
                raise BadInput(f"clients.trace = {path}: column {name} has values that are not above 0: correct them")
    if not {"available_from", "available_to"} & set(table):
        return Devices(clients, figures)
    start, end = np.zeros(len(client)), np.full(len(client), np.inf)  # an empty cell leaves the window open
    start = np.where(np.isnan(given := table.get("available_from", start)), start, given)
    end = np.where(np.isnan(given := table.get("available_to", end)), end, given)
    if not (start < end).all():
        wrong = int(client[np.argmin(start < end)])
        raise BadInput(f"clients.trace = {path}: a window of client {wrong} ends before it begins: correct it")
    return Devices(clients, figures, window_availability(client, start, end))


def _read_ids(column: FloatArray, number: int, path: Path) -> IntArray:
    """The column `client` as ids."""
    wrong = column[~((column >= 0) & (column < number) & (column == np.floor(column)))]  # NaN is wrong too
    if len(wrong):
        raise BadInput(
            f"clients.trace = {path}: it names client {wrong[0]:g}, but clients.number is {number}: ids are whole "
            f"numbers from 0 to {number - 1}; correct it, or raise clients.number"
        )
    return column.astype(np.int64)
