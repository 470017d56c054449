"""Populations of devices with published figures: `clients.profile`.

Example:
    >>> from fedray.core.types import Tier
    >>> phones = make_profile("phones", Clients((Tier("client", 2001),)), seed=0)
    >>> float(np.median(phones.figure("downlink", np.arange(2001)))) / 1e6  # doctest: +ELLIPSIS
    4.4...
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedray.core import rng
from fedray.core.types import Clients
from fedray.simulation.devices import Devices

TENFOLD = math.log(10.0) / (2 * 1.2815515655446004)  # sd of a log-normal whose 90th percentile is ten times its 10th


class LogNormal(NamedTuple):
    """A figure of a population: `median * exp(sd z)` with z standard normal, for each client.

    Attributes:
        median: Of the figure.
        sd: Of its logarithm.
        source: Where the median is from.
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
    """Devices whose figures are drawn from a profile, each client at its address.

    A step has no cost beside its samples. The four figures of a client are independent.

    Args:
        name: Of the profile.
        clients: The population.
        seed: Of the run.
    """
    client = np.arange(clients.number)
    figures = {
        figure: (law.median * np.exp(law.sd * rng.normal(rng.keys(seed, f"profile {figure}", client), 1)[:, 0]))
        for figure, law in PROFILES[name].items()
    }
    rounded = {figure: values.astype(np.float32).astype(np.float64) for figure, values in figures.items()}
    return Devices(clients, {**rounded, "seconds_per_step": np.zeros(clients.number)})
