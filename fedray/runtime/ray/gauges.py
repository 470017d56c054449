"""Figures of a run for Prometheus, which Ray's agents offer where there are any (`ray[default]`).

Elsewhere they go nowhere. Setting them takes some 10 us of processor time in an evaluated round.

The names that Prometheus sees are `ray_fedray_round`, `ray_fedray_jobs_per_second`, `ray_fedray_up_bytes`,
`ray_fedray_down_bytes` and `ray_fedray_recoveries`, each with the tag `run`.

Example:
    >>> rate = Rate()
    >>> rate.next(100.0, seconds=10.0), rate.next(160.0, seconds=12.0)
    (10.0, 30.0)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ray.util.metrics import Gauge

from fedray.runtime.ray.naming import spell_plainly
from fedray.runtime.session import Snapshot, Watch
from fedray.storage.loggers import look_on, tell_user

GAUGES = {
    "round": "Rounds that are done",
    "jobs_per_second": "Jobs of clients that were trained in a second, since the round evaluated before",
    "up_bytes": "Bytes that clients have sent, simulated",
    "down_bytes": "Bytes that clients have received, simulated",
    "recoveries": "Deaths of actors from which the run has recovered",
}


class RunCounts(NamedTuple):
    """What a runtime has counted.

    Attributes:
        jobs: Jobs that were trained.
        recoveries: Deaths of actors.
    """

    jobs: int
    recoveries: int


class Rate:
    """How fast a count grows between two looks."""

    def __init__(self) -> None:
        self._count = self._seconds = 0.0

    def next(self, count: float, seconds: float) -> float:
        """Its growth in a second since the last look; `seconds` have passed since the beginning."""
        grown, passed = count - self._count, seconds - self._seconds
        self._count, self._seconds = count, seconds
        return grown / passed if passed > 0 else 0.0


def set_gauges(
    watch: Watch, run: str, counts: Callable[[], RunCounts], tell: Callable[[str], object] = tell_user
) -> Watch:
    """A watcher that also sets the gauges of a run, after each evaluated round; gauges that fail end no run.

    Args:
        watch: The other one.
        run: Name of the run.
        counts: What the runtime has counted so far.
        tell: Says a line about gauges that fail.
    """
    gauges: dict[str, Gauge] = {}
    rate, tags = Rate(), {"run": spell_plainly(run)}

    def set_all(snapshot: Snapshot) -> None:
        for name, text in GAUGES.items() if not gauges else ():
            gauges[name] = Gauge(f"fedray_{name}", text, tag_keys=("run",))
        jobs, recoveries = counts()
        values = {name: snapshot[name] for name in ("round", "up_bytes", "down_bytes")}
        values |= {"jobs_per_second": rate.next(jobs, snapshot["wall_seconds"]), "recoveries": recoveries}
        for name, value in values.items():
            gauges[name].set(float(value), tags=tags)

    look = look_on("gauges of Ray", set_all, tell)

    def show(snapshot: Snapshot) -> None:
        look(snapshot)
        watch(snapshot)

    return show
