"""What each simulated device is like: its tier's figures, its own spread, a measured trace, and when it is there.

A trace is a table (CSV or Parquet) with the column `client` and any of `seconds_per_step` (s), `uplink`, `downlink`
(bytes/s), `available_from`, `available_to` (virtual s). Several rows of a client are several windows; figures are read
from its first row; what a trace leaves out comes from the tier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedray import rng
from fedray.core import BadInput, Clients, FloatArray, IntArray

DAY = 86_400.0
COLUMNS = ("seconds_per_step", "uplink", "downlink")
Available = Callable[[IntArray, IntArray, FloatArray], np.ndarray]  # type: ignore[type-arg]


@dataclass(frozen=True)
class Devices:
    """figures: per-client values `[N]` that win over the tier's (NaN: the tier's); available: None, always there."""

    clients: Clients
    figures: dict[str, FloatArray] = field(default_factory=dict)
    available: Available | None = None

    def figure(self, name: str, client: IntArray) -> FloatArray:
        """A figure of each client, `[J]`."""
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
        """Lognormal factor of each client's compute time, by address, `[J]`."""
        spread = self.figure("spread", client)
        if not spread.any():
            return np.ones(len(client))
        return np.exp(spread * rng.normal(rng.keys(seeds, "speed", client), 1)[:, 0])


def diurnal(share: float = 0.5, period: float = DAY) -> Available:
    """Each client is there for `share` of every period, from a phase drawn by address."""

    def available(seeds: IntArray, client: IntArray, now: FloatArray) -> np.ndarray:  # type: ignore[type-arg]
        phase = rng.uniform(rng.keys(seeds, "phase", client), 1)[:, 0]
        return (now / period + phase) % 1.0 < share

    return available


def traced(clients: Clients, path: Path) -> Devices:
    """Devices from a trace file.

    Raises:
        BadInput: the file is missing, has no `client` column, or names a client that does not exist.
    """
    table = _read(path)
    number = clients.number
    client = table["client"].astype(np.int64)
    if len(client) and not 0 <= client.min() <= client.max() < number:
        raise BadInput(f"clients.trace = {path}: it names client {client.max()}, but clients.number is {number}: raise it")
    first = np.unique(client, return_index=True)
    figures = {}
    for name in COLUMNS:
        if name in table:
            figures[name] = np.full(number, np.nan)
            figures[name][first[0]] = table[name][first[1]]
            if not (np.isnan(figures[name]) | (figures[name] > 0)).all():
                raise BadInput(f"clients.trace = {path}: column {name} has values that are not above 0: correct them")
    if "available_from" not in table and "available_to" not in table:
        return Devices(clients, figures)
    start = table.get("available_from", np.zeros(len(client)))
    end = table.get("available_to", np.full(len(client), np.inf))
    known = np.isin(np.arange(number), client)

    def available(seeds: IntArray, who: IntArray, now: FloatArray) -> np.ndarray:  # type: ignore[type-arg]
        inside = (client[None, :] == who[:, None]) & (start <= now[:, None]) & (now[:, None] < end)
        return inside.any(1) | ~known[who]

    return Devices(clients, figures, available)


def _read(path: Path) -> dict[str, FloatArray]:
    import pandas as pd

    try:
        frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
        table = {str(name): frame[name].to_numpy(dtype=np.float64) for name in frame}
    except (OSError, ValueError) as error:
        raise BadInput(f"clients.trace = {path}: it cannot be read ({str(error).splitlines()[0]}): correct it") from None
    unknown = set(table) - {"client", *COLUMNS, "available_from", "available_to"}
    if "client" not in table or unknown:
        what = f"has the unknown column {sorted(unknown)[0]}" if unknown else "has no column client"
        raise BadInput(f"clients.trace = {path}: it {what}: its columns are client, {', '.join(COLUMNS)}, available_from, available_to")
    return table
