"""Links of devices whose bandwidth and latency change over time.

Example:
    Client 0 has 100 bytes/s, and 10 from the second minute on; after three minutes it begins anew.

    >>> links = Links(np.array([0, 0]), np.array([0.0, 60.0]), np.array([180.0]), {"uplink": np.array([100.0, 10.0])})
    >>> links.find("uplink", np.array([0, 0, 0]), np.array([59.0, 60.0, 185.0])).tolist()
    [100.0, 10.0, 100.0]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedray.core.types import FloatArray, IntArray


@dataclass(frozen=True)
class Links:
    """Figures that hold from a moment on, until the next one of the same client.

    Before its first moment a client has its last figures if they repeat, and else its first ones.

    Attributes:
        client: The client of each entry, `[n]`, rising.
        start: Virtual second from which the entry holds, `[n]`, rising inside a client.
        period: Virtual seconds after which the entries of each client begin anew, `[N]`; NaN: they do not.
        values: Figures by name, `[n]` each; NaN leaves the client's usual one.
    """

    client: IntArray
    start: FloatArray
    period: FloatArray
    values: dict[str, FloatArray]

    def find(self, name: str, client: IntArray, now: FloatArray) -> FloatArray:
        """The figure of each client at a moment, `[J]`; NaN where it has none.

        Args:
            name: Of the figure.
            client: Clients, `[J]`.
            now: Virtual seconds, `[J]`.
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
