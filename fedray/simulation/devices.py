"""Simulated devices: figures of their tiers, random spread, measured traces, and when devices are available."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.types import Clients, FloatArray, IntArray
from fedray.files.tables import read_number_table

# ---------------------------------------------------------------------------------------------------------------------
# Links of devices whose bandwidth and latency change over time.


@dataclass(frozen=True)
class Links:
    """Figures of links; each entry holds from its start until the next entry of the same client starts.

    Before its first entry a client has the figures of its last entry if its entries repeat, else those of the first.

    Attributes:
        client: Client of each entry, `[n]`, ascending.
        start: Virtual second from which each entry holds, `[n]`, ascending within a client.
        period: Virtual seconds after which the entries of each client repeat, `[N]`; NaN: they do not repeat.
        values: Figures by name, `[n]` each; NaN: the client keeps its usual figure.

    Example:
        Client 0 has 100 bytes/s, and 10 bytes/s from the second minute on. This repeats every three minutes.

        >>> speeds = {"uplink": np.array([100.0, 10.0])}
        >>> links = Links(np.array([0, 0]), np.array([0.0, 60.0]), np.array([180.0]), speeds)
        >>> links.find("uplink", np.array([0, 0, 0]), np.array([59.0, 60.0, 185.0])).tolist()
        [100.0, 10.0, 100.0]
    """

    client: IntArray
    start: FloatArray
    period: FloatArray
    values: dict[str, FloatArray]

    def find(self, name: str, client: IntArray, now: FloatArray) -> FloatArray:
        """Returns the figure of each client at a given time, `[J]`; NaN for a client without the figure.

        Args:
            name: Name of the figure.
            client: Ids of the clients, `[J]`.
            now: Virtual second for each client, `[J]`.
        """
        if name not in self.values or not len(self.client):
            return np.full(len(client), np.nan)
        period = self.period[client]
        at = np.where(np.isnan(period), now, np.mod(now, np.where(np.isnan(period), 1.0, period)))
        grid = np.unique(self.start)
        code = self.client * (len(grid) + 1) + np.searchsorted(grid, self.start) + 1
        wanted = client * (len(grid) + 1) + np.searchsorted(grid, at, side="right")
        place = np.searchsorted(code, wanted, side="right") - 1
        first = np.searchsorted(self.client, client, side="left")
        last = np.searchsorted(self.client, client, side="right") - 1
        before = place < first
        place = np.where(before, np.where(np.isnan(period), first, last), place)
        known = last >= first
        return np.where(known, self.values[name][np.where(known, place, 0)], np.nan)


# ---------------------------------------------------------------------------------------------------------------------
# A trace is a table (CSV or Parquet) with the column `client` and any of `seconds_per_step`, `seconds_per_sample`,
# `latency` (s), `uplink`, `downlink` (bytes/s), `available_from`, `available_to`, `period` and `link_from` (virtual
# s). Several rows of a client are several windows or several links. Other figures come from the client's first row.
# Figures that a trace leaves out come from the tier (docs/how-to/traces.md).

DAY = 86_400.0
TIMES = ("seconds_per_step", "seconds_per_sample")
LINK = ("uplink", "downlink", "latency")
COLUMNS = (*TIMES, *LINK)
Available = Callable[[IntArray, IntArray, FloatArray], FloatArray]  # (seeds, clients, now) -> seconds to wait, `[J]`


@dataclass(frozen=True)
class Devices:
    """The devices of all clients.

    Attributes:
        clients: The population, with the figures of its tiers.
        figures: Figures of clients by name, `[N]` each. They replace those of the tiers, except where they are NaN.
        links: Links that change over time; None: no link changes.
        available: A function (seed of the world, client, virtual seconds now) -> virtual seconds until the client is
            available, `[J]` each; 0: the client is available now. None: every client is always available.

    Example:
        A measured uplink replaces the uplink of the tier. NaN keeps the uplink of the tier.

        >>> from fedray.core.types import Tier
        >>> devices = Devices(Clients((Tier("phone", 2, uplink=1e6),)), {"uplink": np.array([5e5, np.nan])})
        >>> devices.figure("uplink", np.array([0, 1])).tolist()
        [500000.0, 1000000.0]
    """

    clients: Clients
    figures: dict[str, FloatArray] = field(default_factory=dict)
    available: Available | None = None
    links: Links | None = None

    def figure(self, name: str, client: IntArray, now: FloatArray | None = None) -> FloatArray:
        """Returns a figure of each client, `[J]`.

        Args:
            name: Name of the figure: a field of `Tier`.
            client: Ids of the clients, `[J]`.
            now: Virtual second for each client, `[J]`, for links that change over time; None: 0.
        """
        tiers = self.clients.tiers
        if len(tiers) == 1:
            values = np.full(len(client), float(getattr(tiers[0], name)))
        else:
            values = np.array([float(getattr(one, name)) for one in tiers])[self.clients.tier_of(client)]
        if name in self.figures:
            own = self.figures[name][client]
            values = np.where(np.isnan(own), values, own)
        if self.links is not None and name in LINK:
            own = self.links.find(name, client, np.zeros(len(client)) if now is None else now)
            values = np.where(np.isnan(own), values, own)
        return values

    def slowness(self, seeds: IntArray, client: IntArray) -> FloatArray:
        """Draws a log-normal factor of each client's compute time, `[J]`; 1 if the client's time was measured."""
        spread = self.figure("spread", client)
        for measured in (self.figures[name][client] for name in TIMES if name in self.figures):
            spread = np.where(np.isnan(measured), spread, 0.0)
        if not spread.any():
            return np.ones(len(client))
        factor: FloatArray = np.exp(spread * rng.normal(rng.keys(seeds, "speed", client), 1)[:, 0])
        return factor.round(9)  # the last bits of exp and cos differ between processors


def diurnal_availability() -> Available:
    """Returns the rule by which each client is available for half of every day, from a random time of the day on."""

    def wait(seeds: IntArray, client: IntArray, now: FloatArray) -> FloatArray:
        phase = rng.uniform(rng.keys(seeds, "phase", client), 1)[:, 0]
        at = (now / DAY + phase) % 1.0
        return np.where(at < 0.5, 0.0, (1.0 - at + 1e-9) * DAY)  # 1e-9: rounding must not end before the turn

    return wait


def window_availability(
    client: IntArray, start: FloatArray, end: FloatArray, period: FloatArray | None = None
) -> Available:
    """Returns the rule by which each client is available in its windows; a client without windows always is.

    Args:
        client: Client of each window, `[n]`.
        start: Virtual second at which each window begins, `[n]`.
        end: Virtual second at which each window ends, `[n]`; may be infinite.
        period: Virtual seconds after which each window repeats, `[n]`; NaN: it does not repeat. None: no window does.

    Example:
        >>> wait = window_availability(np.array([0]), np.array([60.0]), np.array([90.0]))
        >>> wait(np.zeros(3, int), np.array([0, 0, 1]), np.array([0.0, 70.0, 0.0])).tolist()
        [60.0, 0.0, 0.0]
    """
    order = np.argsort(client, kind="stable")
    client, start, end = client[order], start[order], end[order]
    again = np.full(len(client), np.nan) if period is None else period[order]
    repeats = ~np.isnan(again)

    def wait(_seeds: IntArray, clients: IntArray, now: FloatArray) -> FloatArray:
        first = np.searchsorted(client, clients, side="left")
        number = np.searchsorted(client, clients, side="right") - first
        row = np.repeat(np.arange(len(clients)), number)
        window = np.arange(len(row)) + np.repeat(first - np.cumsum(number) + number, number)
        length = np.where(repeats[window], again[window], np.inf)
        at = np.where(repeats[window], np.mod(now[row], np.where(repeats[window], again[window], 1.0)), now[row])
        past = length - at + start[window]  # until the window comes again; infinite where it does not
        seconds = np.where(at < end[window], np.maximum(start[window] - at, 0.0), past)
        seconds = np.where(repeats[window] & (seconds > 0), seconds + 1e-9 * length, seconds)  # past it, once rounded
        soonest = np.where(number > 0, np.inf, 0.0)
        np.minimum.at(soonest, row, seconds)
        return soonest

    return wait


def read_trace(clients: Clients, path: Path) -> Devices:
    """Reads the devices of a population from a trace file.

    Args:
        clients: The population.
        path: Path of the trace, a CSV or Parquet file.

    Raises:
        BadInput: The file cannot be read, has no `client` column, names a client that does not exist, or holds a figure
            that is not above 0, a window that ends before it begins or after its period, or a link that begins after
            its period.
    """
    more = (*COLUMNS, "available_from", "available_to", "period", "link_from")
    table = read_number_table("clients.trace", path, ("client",), more)
    column, number = table["client"], clients.number
    wrong = column[~((column >= 0) & (column < number) & (column == np.floor(column)))]  # NaN is wrong too
    if len(wrong):
        raise BadInput(
            f"clients.trace = {path}: it names client {wrong[0]:g}, but clients.number is {number}: ids are whole "
            f"numbers from 0 to {number - 1}; correct it, or raise clients.number"
        )
    for name, values in table.items():
        least = 0.0 if name in ("latency", "link_from") else np.nextafter(0.0, 1.0)
        figure = name in (*COLUMNS, "period", "link_from")
        if figure and not (np.isnan(values) | (np.isfinite(values) & (values >= least))).all():
            what = "negative" if least == 0.0 else "not above 0"
            raise BadInput(f"clients.trace = {path}: column {name} has values that are {what}: correct them")
    client = column.astype(np.int64)
    nothing = np.full(len(client), np.nan)
    moment = table.get("link_from", nothing)
    changing = ~np.isnan(moment)
    figures, usual = {}, ~changing if "link_from" in table else np.ones(len(client), dtype=bool)
    for name in COLUMNS:
        if name in table:
            rows = usual if name in LINK else np.ones(len(client), dtype=bool)
            known, first = np.unique(client[rows], return_index=True)
            figures[name] = np.full(clients.number, np.nan)
            figures[name][known] = table[name][rows][first]
    links = _make_links(clients, client, table, path) if changing.any() else None
    windows = np.zeros(len(client), dtype=bool)
    for name in ("available_from", "available_to"):
        windows |= ~np.isnan(table[name]) if name in table else windows
    if not {"available_from", "available_to"} & set(table):
        return Devices(clients, figures, links=links)
    windows |= ~changing  # a row without both means always available, unless it only has a link
    available = _read_windows(client[windows], {name: values[windows] for name, values in table.items()}, path)
    return Devices(clients, figures, available, links)


def _read_windows(client: IntArray, table: dict[str, FloatArray], path: Path) -> Available:
    """Reads the windows of a trace; an empty cell means a window without beginning, end or period."""
    nothing = np.full(len(client), np.nan)
    start, end, period = (table.get(name, nothing) for name in ("available_from", "available_to", "period"))
    start = np.where(np.isnan(start), 0.0, start)
    end = np.where(np.isnan(end), np.where(np.isnan(period), np.inf, period), end)
    wrong = ~((start < end) & (end <= np.where(np.isnan(period), np.inf, period)))
    if wrong.any():
        raise BadInput(
            f"clients.trace = {path}: a window of client {client[wrong.argmax()]} ends before it begins, or after its "
            "period: correct it, or cut it in two"
        )
    return window_availability(client, start, end, period)


def _make_links(clients: Clients, client: IntArray, table: dict[str, FloatArray], path: Path) -> Links:
    """Makes the links that change over time, from the rows with `link_from`."""
    period = table.get("period", np.full(len(client), np.nan))
    rows = np.flatnonzero(~np.isnan(table["link_from"]))
    rows = rows[np.lexsort((table["link_from"][rows], client[rows]))]
    each = np.full(clients.number, np.nan)
    known, first = np.unique(client, return_index=True)
    each[known] = period[first]
    late = table["link_from"][rows] >= np.where(np.isnan(each[client[rows]]), np.inf, each[client[rows]])
    if late.any():
        raise BadInput(
            f"clients.trace = {path}: a link of client {client[rows][late.argmax()]} begins after its period: "
            "lower link_from or raise period"
        )
    values = {name: table[name][rows] for name in LINK if name in table}
    return Links(client[rows], table["link_from"][rows], each, values)


# ---------------------------------------------------------------------------------------------------------------------
# Populations of devices with published figures: `clients.profile`.

TENFOLD = math.log(10.0) / (2 * 1.2815515655446004)  # sd of a log-normal with a 90th percentile ten times its 10th


class LogNormal(NamedTuple):
    """A figure of a population: `median * exp(sd z)` with z standard normal, for each client.

    Attributes:
        median: Median of the figure.
        sd: Standard deviation of the figure's logarithm.
        source: Source of the median.
    """

    median: float
    sd: float
    source: str


PROFILES: dict[str, dict[str, LogNormal]] = {
    "phones": {
        "seconds_per_sample": LogNormal(
            3 * 0.162,
            TENFOLD,
            "FedScale (Lai et al. 2022): 162 ms an inference in the entry of its device trace that its users quote, "
            "times 3 for a training step, as its simulator has it",
        ),
        "downlink": LogNormal(35.96e6 / 8, TENFOLD, "Speedtest Global Index, September 2020: mobile, 35.96 Mbit/s"),
        "uplink": LogNormal(11.22e6 / 8, TENFOLD, "Speedtest Global Index, September 2020: mobile, 11.22 Mbit/s"),
        "latency": LogNormal(0.040, TENFOLD / 2, "Speedtest Global Index, September 2020: mobile, 40 ms"),
    }
}


def make_profile(name: str, clients: Clients, seed: int) -> Devices:
    """Draws the figures of devices from a profile, for each client by its id.

    A step takes only the time of its samples. The four figures of a client are independent.

    Args:
        name: Name of the profile.
        clients: The population.
        seed: Seed of the run.

    Example:
        >>> from fedray.core.types import Tier
        >>> phones = make_profile("phones", Clients((Tier("client", 2001),)), seed=0)
        >>> float(np.median(phones.figure("downlink", np.arange(2001)))) / 1e6  # doctest: +ELLIPSIS
        4.4...
    """
    client = np.arange(clients.number)
    figures = {
        figure: (law.median * np.exp(law.sd * rng.normal(rng.keys(seed, f"profile {figure}", client), 1)[:, 0]))
        for figure, law in PROFILES[name].items()
    }
    rounded = {figure: values.astype(np.float32).astype(np.float64) for figure, values in figures.items()}
    return Devices(clients, {**rounded, "seconds_per_step": np.zeros(clients.number)})
