"""Computes the virtual seconds of jobs and rounds from the speed and availability of simulated devices.

A *tier* is a class of devices. A *figure* is a number that describes a device, such as the uplink or the seconds per
step. A *trace* is a file with the figures of clients.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.types import Clients, FloatArray, IntArray, Plan
from fedray.files.run_files import read_number_table, read_whole

# ---------------------------------------------------------------------------------------------------------------------
# Links (network connections of devices) whose bandwidth and latency change over time.


@dataclass(frozen=True)
class Links:
    """Speeds of links (network connections of devices) over time.

    An entry holds a client's speeds. It is valid from its start until the next entry of the same client starts. If a
    client's entries repeat, the last entry is also valid before the first entry starts. If the entries do not repeat,
    the first entry is valid from second 0 on.

    Attributes:
        client: Client of each entry, `[n]`, in ascending order.
        start: Virtual second from which each entry is valid, `[n]`. The entries of a client are in ascending order.
        period: Virtual seconds after which the entries of each client repeat, `[N]`. NaN means that they do not repeat.
        values: Speed of each entry, `[n]`, by name of the speed (such as `uplink`). NaN means the client's usual speed.

    Example:
        Client 0 has 100 bytes/s, and 10 bytes/s from second 60 on. This repeats every 180 seconds.

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
        """Returns a speed of each client's link at a virtual second, `[J]`.

        A client without entries gets NaN.

        Args:
            name: Name of the speed, such as `uplink`.
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
# Traces. A trace is a table (CSV or Parquet) with the column `client` and any of `seconds_per_step`,
# `seconds_per_sample`, `latency` (s), `uplink`, `downlink` (bytes/s), `available_from`, `available_to`, `period` and
# `link_from` (virtual s). Several rows of a client are several windows of availability or several links. All other
# figures come from the client's first row. Figures that a trace lacks come from the tier (docs/how-to/traces.md).

DAY = 86_400.0
TIMES = ("seconds_per_step", "seconds_per_sample")
LINK = ("uplink", "downlink", "latency")
COLUMNS = (*TIMES, *LINK)
Available = Callable[[IntArray, IntArray, FloatArray], FloatArray]  # (seeds, clients, now) -> seconds to wait, `[J]`


@dataclass(frozen=True)
class Devices:
    """The devices of all clients.

    Attributes:
        clients: All clients. Their tiers describe the devices.
        figures: Numbers that describe each client's device, `[N]`, by name (a field of `Tier`). NaN means that the
            number of the client's tier is used.
        available: A function of three arrays `[J]`: the world's seed, the client, and the current virtual second. It
            returns the virtual seconds until each client is available, `[J]`. 0 means available now. None means that
            every client is always available.
        links: Links that change over time. None means that no link changes.

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
        """Returns a number that describes each client's device, such as its uplink, `[J]`.

        Args:
            name: Name of the number, which is a field of `Tier`.
            client: Ids of the clients, `[J]`.
            now: Virtual second for each client, `[J]`. Only links that change over time need it. None means second 0.
        """
        values = np.array([float(getattr(one, name)) for one in self.clients.tiers])[self.clients.tier_of(client)]
        if name in self.figures:
            own = self.figures[name][client]
            values = np.where(np.isnan(own), values, own)
        if self.links is not None and name in LINK:
            own = self.links.find(name, client, np.zeros(len(client)) if now is None else now)
            values = np.where(np.isnan(own), values, own)
        return values

    def slowness(self, seeds: IntArray, client: IntArray) -> FloatArray:
        """Draws a log-normal factor by which each client's computing time is multiplied, `[J]`.

        The factor is 1 for a client whose seconds per step or per sample come from a trace or a profile.
        """
        spread = self.figure("spread", client)
        for measured in (self.figures[name][client] for name in TIMES if name in self.figures):
            spread = np.where(np.isnan(measured), spread, 0.0)
        if not spread.any():
            return np.ones(len(client))
        factor: FloatArray = np.exp(spread * rng.normal(rng.keys(seeds, "speed", client), 1)[:, 0])
        return factor.round(9)  # the last bits of exp and cos differ between processors


def diurnal_availability(seeds: IntArray, client: IntArray, now: FloatArray) -> FloatArray:
    """Returns the seconds until each client is available, `[J]` (`Devices.available`): for 12 hours of every day.

    For each client, these hours begin at a different random time of day.
    """
    phase = rng.uniform(rng.keys(seeds, "phase", client), 1)[:, 0]
    at = (now / DAY + phase) % 1.0
    return np.where(at < 0.5, 0.0, (1.0 - at + 1e-9) * DAY)  # with 1e-9 rounding never ends the wait too early


def window_availability(
    client: IntArray, start: FloatArray, end: FloatArray, period: FloatArray | None = None
) -> Available:
    """Returns a rule (`Devices.available`) by which clients are available in their windows of time.

    Clients without a window are always available.

    Args:
        client: Client of each window, `[n]`.
        start: Virtual second at which each window begins, `[n]`.
        end: Virtual second at which each window ends, `[n]`. It may be infinite.
        period: Virtual seconds after which each window repeats, `[n]`. NaN means that a window does not repeat. None
            means that no window repeats.

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
        past = length - at + start[window]  # seconds until the window begins again
        seconds = np.where(at < end[window], np.maximum(start[window] - at, 0.0), past)
        seconds = np.where(repeats[window] & (seconds > 0), seconds + 1e-9 * length, seconds)  # despite rounding
        soonest = np.where(number > 0, np.inf, 0.0)
        np.minimum.at(soonest, row, seconds)
        return soonest

    return wait


def read_trace(clients: Clients, path: Path) -> Devices:
    """Reads the devices of all clients from a trace file.

    Args:
        clients: All clients.
        path: The trace, a CSV or Parquet file.

    Raises:
        BadInput: The file cannot be read, has no column `client`, names an unknown client, or has a value out of range.
    """
    more = (*COLUMNS, "available_from", "available_to", "period", "link_from")
    table = read_number_table("clients.trace", path, ("client",), more)
    client = read_whole("clients.trace", path, "client", table["client"], clients.number)
    for name, values in table.items():
        least = 0.0 if name in ("latency", "link_from") else np.nextafter(0.0, 1.0)
        figure = name in (*COLUMNS, "period", "link_from")
        if figure and not (np.isnan(values) | (np.isfinite(values) & (values >= least))).all():
            what = "negative" if least == 0.0 else "not above 0"
            raise BadInput(f"clients.trace = {path}: column {name} has values that are {what}: correct them")
    _, first, row = np.unique(client, return_index=True, return_inverse=True)
    if "period" in table:
        table["period"] = np.where(np.isnan(table["period"]), table["period"][first][row], table["period"])
    table["link_from"] = moment = np.array(table.get("link_from", np.full(len(client), np.nan)))
    told = [~np.isnan(table[name][first]) for name in LINK if name in table]
    if told:  # the first of several links is valid from the start, with or without a link_from
        several = np.isin(client[first], client[~np.isnan(moment)]) & np.any(told, axis=0)
        moment[first[several & np.isnan(moment[first])]] = 0.0
    changing = ~np.isnan(moment)
    figures = {}
    for name in (one for one in COLUMNS if one in table):
        rows = np.flatnonzero(~changing) if name in LINK else np.arange(len(client))
        known, first = np.unique(client[rows], return_index=True)
        figures[name] = np.full(clients.number, np.nan)
        figures[name][known] = table[name][rows][first]
    links = _make_links(clients, client, table, path) if changing.any() else None
    ends = [table[name] for name in ("available_from", "available_to") if name in table]
    if not ends:
        return Devices(clients, figures, links=links)
    # a row without both ends means that the client is always available, unless the row only describes a link
    windows = ~np.isnan(ends).all(axis=0) | ~changing
    available = _read_windows(client[windows], {name: values[windows] for name, values in table.items()}, path)
    return Devices(clients, figures, available, links)


def _read_windows(client: IntArray, table: dict[str, FloatArray], path: Path) -> Available:
    """Makes the rule of availability from the windows of time in a trace.

    A window without a start begins at second 0. A window without an end lasts to the end of its period, or for ever.
    """
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
    """Makes the links that change over time. They are in the rows of the trace that have a `link_from`."""
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
# Profiles (`clients.profile`): distributions of figures over devices, from published measurements.

TENFOLD = math.log(10.0) / (2 * 1.2815515655446004)  # sd of the logarithm if the 90th percentile is 10 times the 10th


class LogNormal(NamedTuple):
    """A log-normal distribution of a number over clients, `median * exp(sd z)` with a standard normal z.

    Attributes:
        median: Median of the number.
        sd: Standard deviation of the number's logarithm.
    """

    median: float
    sd: float


# Sources: FedScale (Lai et al. 2022) has 162 ms an inference in the entry of its device trace that its users quote. Its
# simulator multiplies by 3 for a training step. The links are those of mobile networks in the Speedtest Global Index of
# September 2020.
PROFILES: dict[str, dict[str, LogNormal]] = {
    "phones": {
        "seconds_per_sample": LogNormal(3 * 0.162, TENFOLD),
        "downlink": LogNormal(35.96e6 / 8, TENFOLD),  # 35.96 Mbit/s
        "uplink": LogNormal(11.22e6 / 8, TENFOLD),  # 11.22 Mbit/s
        "latency": LogNormal(0.040, TENFOLD / 2),  # 40 ms
    }
}


def make_profile(name: str, clients: Clients, seed: int) -> Devices:
    """Draws the numbers that describe each client's device from the distributions of a profile.

    The numbers of a client are independent of each other. They depend on the seed and on the client's id.
    `seconds_per_step` is 0, so the time of a step depends only on its number of samples.

    Args:
        name: Name of the profile.
        clients: All clients.
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


# ---------------------------------------------------------------------------------------------------------------------
# Virtual seconds of a round, and which uploads the server will use. Both depend only on plan, devices and seed.
#
# A job computes for `steps * (seconds_per_step + batch * seconds_per_sample) * slowness` seconds, where `batch` is the
# real number of samples of a batch. A step with further passes over its batch counts as several steps. Computation
# besides training also counts (`simulation.rounds.cost_jobs`). A job that trains a slice of the network needs only the
# slice's share of this time. Download and upload each take `latency + bytes / bandwidth` with the link at the start of
# the round; a transfer of 0 bytes takes no time. A client trains its models one after the other, or at the same time
# (`side_by_side` of its tier). In the second case the models share the client's link, so all uploads of the client
# finish together.
#
# The server uses the upload of a client that is available when the round starts, is not late, and does not drop out. A
# synchronous round lasts as long as the slowest of these clients needs. If a client drops out, a round without a
# deadline does not wait for this client. A round with a deadline then lasts until the deadline. All this is known
# before training, so the jobs of the other clients are never computed. The server does not use the upload of a job that
# fails in training.

OK, NO_DATA, LATE, DROPPED, UNAVAILABLE, PAST_DEADLINE, FAILED, STALE = range(8)
STATUS = ("ok", "no data", "late", "dropped", "unavailable", "past deadline", "failed", "stale")


@dataclass(frozen=True)
class CountingRule:
    """The rule by which the server chooses uploads to use in a round.

    Attributes:
        first: For each tier, the number of clients for which a round waits. Slower clients are `late`. None means that
            a round waits for all participants.
        dropout: Probability that a participant drops out and sends nothing, in [0, 1).
        deadline: Virtual seconds after which a round ends, even if uploads are missing. None means no deadline.
        partial: Share of the participants that stop after some of their steps, in [0, 1].
    """

    first: tuple[int, ...] | None = None
    dropout: float = 0.0
    deadline: float | None = None
    partial: float = 0.0


def cut_steps(share: float, plan: Plan, steps: IntArray, unit: IntArray, *, seeds: IntArray, t: int) -> IntArray:
    """Lets some participants of each world train for fewer epochs, and returns each job's number of steps, `[J]`.

    Such a participant trains all of its models for the same number of epochs. The number of epochs is drawn uniformly
    from 1 to the usual number.

    Source: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, *Federated Optimization in Heterogeneous Networks*, MLSys 2020,
    section 5.2.

    Args:
        share: Share of the participants that train for fewer epochs, above 0.
        plan: The jobs, `[J]`.
        steps: Number of steps of each job in all of its epochs, `[J]`.
        unit: Number of steps of each job in an epoch, `[J]`, at least 1.
        seeds: Seed of each world, `[R]`.
        t: The round, from 0.

    Example:
        Two of four clients make fewer than ten epochs. An epoch has two steps.

        >>> plan, ten, two = Plan(np.arange(4), np.zeros(4, int), np.zeros(4, int)), np.full(4, 20), np.full(4, 2)
        >>> cut_steps(0.4, plan, ten, two, seeds=np.zeros(1, int), t=0).tolist()
        [20, 2, 16, 20]
    """
    who = np.stack((plan.world, plan.client))
    (world, client), index = np.unique(who, axis=1, return_inverse=True)
    draw = rng.uniform(rng.keys(seeds[world], "partial", t, client), 2)  # [P, 2]: who trains less, how many epochs
    rank = np.empty(len(world), dtype=np.int64)
    rank[np.lexsort((draw[:, 0], world))] = np.arange(len(world)) - np.searchsorted(world, world)
    cut = rank < np.floor(share * np.bincount(world)[world] + 0.5)
    fewer = unit * (1 + (draw[index, 1] * (steps // unit)).astype(np.int64))
    return np.where(cut[index], np.minimum(fewer, steps), steps)


class RoundTiming(NamedTuple):
    """The virtual times of a round and its jobs, and the uploads that the server will use.

    Attributes:
        job: Virtual seconds that each job takes, `[J]`.
        status: Index into `STATUS` for each job, `[J]`. It says whether the upload will be used, or why not.
        round: Virtual seconds that the round takes in each world, `[R]`.
    """

    job: FloatArray
    status: IntArray
    round: FloatArray


class JobCosts(NamedTuple):
    """The work and the traffic of each job of a plan, in arrays `[J]`.

    Attributes:
        steps: Work as a number of steps. A step is one forward and one backward pass. A job without samples has 0.
        up: Bytes sent.
        down: Bytes received.
        samples: Number of samples that these steps read. None means that samples take no time.
        work: Factor by which the computing time of each job is multiplied. It is below 1 if a job trains only a part of
            the network, and 0 if the server does the job. None means the factor 1.

    Example:
        Two clients need 0.5 s for a step. The round waits only for the client that finishes first.

        >>> from fedray.core.types import Clients, Tier
        >>> devices = Devices(Clients((Tier("phone", 2, seconds_per_step=0.5, uplink=100.0, downlink=100.0),)))
        >>> plan = Plan(client=np.array([0, 1]), model=np.zeros(2, int), world=np.zeros(2, int))
        >>> costs = JobCosts(steps=np.array([4, 6]), up=np.array([100, 100]), down=np.array([100, 100]))
        >>> rule, zero = CountingRule(first=(1,)), np.zeros(1, int)
        >>> timing = time_round(devices, rule, plan, costs, seeds=zero, t=0, now=np.zeros(1))
        >>> timing.job.tolist(), [STATUS[s] for s in timing.status], timing.round.tolist()
        ([4.0, 5.0], ['ok', 'late'], [4.0])
    """

    steps: IntArray | FloatArray
    up: IntArray
    down: IntArray
    samples: IntArray | FloatArray | None = None
    work: FloatArray | None = None


def time_round(
    devices: Devices, rule: CountingRule, plan: Plan, costs: JobCosts, *, seeds: IntArray, t: int, now: FloatArray
) -> RoundTiming:
    """Returns how long a round and its jobs take, and which uploads the server will use.

    Args:
        devices: The devices of the clients.
        rule: The rule by which the server chooses uploads.
        plan: The jobs, `[J]`.
        costs: The costs of the jobs, `[J]`.
        seeds: Seed of each world, `[R]`.
        t: The round, from 0.
        now: Virtual seconds at the start of the round in each world, `[R]`.
    """
    clients = devices.clients
    compute, transfer = time_jobs(devices, seeds[plan.world], plan.client, costs, now[plan.world])
    member = plan.world * clients.number + plan.client
    if (np.diff(member) > 0).all():  # every client has one job, and jobs are ordered by client
        first = index = np.arange(len(member))
        job = busy = compute + transfer
    else:
        _, first, index = np.unique(member, return_index=True, return_inverse=True)
        parallel = devices.figure("side_by_side", plan.client[first]) > 0  # of each participant, `[P]`
        longest, transfers = np.zeros(len(first)), np.bincount(index, transfer).astype(np.float64)
        np.maximum.at(longest, index, compute)
        busy = transfers + np.where(parallel, longest, np.bincount(index, compute))
        job = compute + np.where(parallel[index], transfers[index], transfer)
    world, client = plan.world[first], plan.client[first]
    wait = np.zeros(len(first))
    if devices.available is not None:
        wait = devices.available(seeds[world], client, now[world])
    tier, empty = clients.tier_of(client), costs.steps[first] == 0  # of each participant, `[P]`, as wait and busy
    status = np.where(wait > 0, UNAVAILABLE, np.where(empty, NO_DATA, OK))
    if rule.dropout:
        dropped = rng.uniform(rng.keys(seeds[world], "dropout", t, client), 1)[:, 0] < rule.dropout
        status[(status == OK) & dropped] = DROPPED
    if rule.deadline is not None:
        status[(status == OK) & (busy > rule.deadline * (1 + 1e-9))] = PAST_DEADLINE
    if rule.first is not None:
        for w in np.unique(world):
            for k, number in enumerate(rule.first):
                ready = np.flatnonzero((world == w) & (tier == k) & (status == OK))
                status[ready[np.lexsort((client[ready], busy[ready]))][number:]] = LATE
    counted, seconds = status == OK, np.zeros(len(seeds))
    np.maximum.at(seconds, world[counted], busy[counted])
    if rule.deadline is not None:  # worlds with a missing client wait until the deadline
        missing = np.isin(status, (DROPPED, PAST_DEADLINE))
        if rule.first is not None:  # if enough clients of a tier have finished, the round does not wait for more
            group = world * len(rule.first) + tier
            enough = np.bincount(group, counted, len(seeds) * len(rule.first)) >= np.tile(rule.first, len(seeds))
            missing &= ~enough[group]
        seconds[world[missing]] = rule.deadline
    soonest = np.full(len(seeds), np.inf)
    np.minimum.at(soonest, world[~empty], wait[~empty])
    absent = (seconds == 0) & np.isfinite(soonest)  # no client with samples is available: the round ends when one is
    return RoundTiming(job, status[index], np.where(absent, soonest, seconds))


def time_jobs(
    devices: Devices, seed: IntArray, client: IntArray, costs: JobCosts, now: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Returns the virtual seconds of each job's computation, and of its download and upload together, `[J]` each.

    Args:
        devices: The devices of the clients.
        seed: Seed of each job's world, `[J]`.
        client: Client of each job, `[J]`.
        costs: The costs of the jobs, `[J]`.
        now: Virtual second at which each job starts, `[J]`.
    """
    compute = costs.steps * devices.figure("seconds_per_step", client)
    if costs.samples is not None:
        compute = compute + costs.samples * devices.figure("seconds_per_sample", client)
    compute = compute * devices.slowness(seed, client)
    if costs.work is not None:
        compute = compute * costs.work
    return compute, time_transfers(devices, client, costs.up, costs.down, now)


class ServerDevice(NamedTuple):
    """The speed of the server. By default the server's work takes no time.

    Attributes:
        seconds_per_step: Virtual seconds of an optimizer step of the server.
        seconds_per_sample: Virtual seconds that each sample adds to such a step.
    """

    seconds_per_step: float = 0.0
    seconds_per_sample: float = 0.0


def time_transfers(devices: Devices, client: IntArray, up: IntArray, down: IntArray, now: FloatArray) -> FloatArray:
    """Returns the virtual seconds of each job's download and upload together, `[J]`.

    A transfer of 0 bytes takes no time.

    Args:
        devices: The devices of the clients.
        client: Client of each job, `[J]`.
        up: Bytes that each job sends, `[J]`.
        down: Bytes that each job receives, `[J]`.
        now: Virtual second at which each job starts, `[J]`.
    """
    uplink, downlink, latency = (devices.figure(name, client, now) for name in LINK)
    transfers = np.sign(up) + np.sign(down)
    return np.asarray(transfers * latency + up / uplink + down / downlink)
