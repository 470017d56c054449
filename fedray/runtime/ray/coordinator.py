"""The coordinator actor, which runs the engine where the run directory is, and the driver, which makes it (again).

Actors die with the one that made them, so the driver makes the coordinator, and makes it again from its checkpoint if
it dies; a driver that dies takes all with it, and `fedray resume` goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from fedray.assembly.study import build_study
from fedray.assembly.user_objects import UserObjects
from fedray.core.errors import FedrayError
from fedray.core.user_modules import import_modules
from fedray.runtime import environment
from fedray.runtime.ray.cluster import (
    PATIENCE,
    connect_to_ray,
    explain_error,
    has_resources,
    raise_if_refused,
    this_node,
    worker_environment,
)
from fedray.runtime.ray.runtime import RayRuntime
from fedray.runtime.session import Snapshot, log_snapshots, run_session
from fedray.scenario.schema import Scenario
from fedray.storage.loggers import build_loggers

RESTARTS = 20  # of the coordinator


class Coordinator:
    """Runs the engine on the machine that holds the run directory; answers `progress` while it does."""

    def __init__(self, scenario: Scenario, own: UserObjects, out: str) -> None:
        environment.use_one_thread()
        self.scenario, self.own, self.out = scenario, own, Path(out)
        self.unseen: deque[Snapshot] = deque()

    def run(self) -> dict[str, Any]:
        """The whole run; its summary."""
        import_modules(self.own.modules)
        study = build_study(self.scenario, self.own)
        runtime = RayRuntime(self.scenario, self.own, study)
        known = {"runtime": "ray", **runtime.facts(), "actors": len(runtime.actors)}
        try:
            watch = log_snapshots(self._watch, build_loggers(self.scenario.loggers, self.out))
            return run_session(study, runtime, self.out, watch, facts=known)
        finally:
            runtime.close()

    def _watch(self, shown: Snapshot) -> None:
        self.unseen.append(shown)

    def progress(self) -> list[Snapshot]:
        """The snapshots since the last call."""
        return [self.unseen.popleft() for _ in range(len(self.unseen))]


def run_on_ray(
    scenario: Scenario, own: UserObjects, out: Path, watch: Callable[[Snapshot], None], address: str | None
) -> dict[str, Any]:
    """Runs a scenario on Ray and returns its summary; the coordinator is made again if it dies."""
    actors = scenario.clients.actors
    started = connect_to_ray(address, 0 if actors == "auto" else int(actors))
    try:
        return _drive(scenario, own, out, watch)
    except RayTaskError as error:
        raise explain_error(error, "the coordinator") from error
    finally:
        if started:
            ray.shutdown()


def _drive(scenario: Scenario, own: UserObjects, out: Path, watch: Callable[[Snapshot], None]) -> dict[str, Any]:
    kind: Any = ray.remote(Coordinator).options(
        num_cpus=0, max_concurrency=2, max_restarts=0, runtime_env=worker_environment(), scheduling_strategy=this_node()
    )
    for _ in range(RESTARTS):
        coordinator = kind.remote(scenario, own, str(out))
        ref = coordinator.run.remote()
        try:
            while True:
                done, _ = ray.wait([ref], timeout=0.25)
                for shown in ray.get(coordinator.progress.remote(), timeout=PATIENCE):
                    watch(shown)
                if done:
                    summary: dict[str, Any] = ray.get(ref, timeout=PATIENCE)
                    return summary
        except GetTimeoutError:
            raise FedrayError(
                f"waited {PATIENCE:g} s for the coordinator; {has_resources()}: `fedray resume {out}`"
            ) from None
        except RayActorError as error:
            raise_if_refused(error, "the coordinator")
        finally:  # whatever ended the wait: a coordinator that nobody watches would go on
            with suppress(Exception):  # Ray itself is gone
                ray.kill(coordinator)
    raise FedrayError(f"the coordinator died {RESTARTS} times: see the logs of Ray, then `fedray resume {out}`")
