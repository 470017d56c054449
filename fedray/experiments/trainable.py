"""A scenario as a trainable of Ray Tune, for those whose searches live there; `fedray tune` is the way without it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fedray.assembly.identity import describe_study
from fedray.assembly.registry import UserObjects, record_objects
from fedray.assembly.study import build_study
from fedray.core.errors import BadInput
from fedray.evaluation.evaluate import make_evaluator
from fedray.experiments.reopen import explain_run
from fedray.own_code.user_code import import_modules
from fedray.runtime.environment import prepare_process, use_one_thread
from fedray.runtime.inline import Inline
from fedray.runtime.session import Snapshot, describe_lanes, run_session, worker_facts
from fedray.scenario.loader import dump_scenario
from fedray.scenario.nested import flatten
from fedray.scenario.schema import Scenario
from fedray.simulation.study import Runtime, Study
from fedray.storage import directory

# ---------------------------------------------------------------------------------------------------------------------
# A trial that spans several client actors: its own process is the coordinator, in the seats that Ray has given to it.


def refuse_other_seats(scenario: Scenario) -> None:
    """Refuses tiers whose actors need more than the CPU that is reserved for each actor of a trial.

    Args:
        scenario: That of a trial.

    Raises:
        BadInput: Names the first such tier, and the keys to drop.

    Example:
        >>> from fedray.scenario.loader import read_scenario
        >>> refuse_other_seats(read_scenario({"clients": {"tiers": {"lab": {"num_gpus": 0.5}}}}))
        Traceback (most recent call last):
        fedray.core.errors.BadInput: clients.tiers.lab: the actors of a trial have a CPU each: drop num_gpus
    """
    for name, tier in scenario.clients.tiers.items():
        asked = {"num_cpus": (tier.num_cpus or 0) > 1, "num_gpus": tier.num_gpus > 0, "resources": bool(tier.resources)}
        if keys := [key for key, is_asked in asked.items() if is_asked]:
            raise BadInput(f"clients.tiers.{name}: the actors of a trial have a CPU each: drop {' and '.join(keys)}")


@contextmanager
def open_actors(
    scenario: Scenario, own: UserObjects, study: Study, actors: int, *, name: str
) -> Iterator[tuple[Runtime, dict[str, Any]]]:
    """Returns the runtime of a trial on its actors, which is closed at the end, and facts on it for the manifest.

    Args:
        scenario: That of the trial.
        own: The user's Python objects.
        study: What is trained.
        actors: How many actors it spans; as many bundles are the last ones of the placement group of this process.
        name: What Ray's tools call the trial.
    """
    from fedray.runtime.ray.cluster import find_group, plan_trial
    from fedray.runtime.ray.runtime import RayRuntime

    refuse_other_seats(scenario)
    seats = plan_trial(study.clients, actors, find_group())
    with closing(RayRuntime(scenario, own.shipped(study), study, name, seats=seats)) as runtime:
        yield runtime, {"runtime": "ray", **runtime.facts(), "actors": len(runtime.actors)}


# ---------------------------------------------------------------------------------------------------------------------
# A trial is a run whose scores are those of the held-out rows, never of the test set. It reports every evaluated
# round with its run directory as the checkpoint, so that a scheduler may end it, pause it, or let another trial go on
# from it.

TOTALS = ("round", "up_bytes", "down_bytes", "sim_seconds")
LARGE_ACTORS = 1000  # of one trial
Read = Callable[[Mapping[str, Any]], Scenario]  # the keys of a trial -> its scenario


class Reports(Protocol):
    """Where a trial reports to, and goes on from: `fedray.runtime.ray.tasks`, or a test's own."""

    def report(self, metrics: Mapping[str, float], folder: Path | None) -> None:
        """Takes the metrics of a round, and the run directory where it is whole."""

    def go_on(self, out: Path, scenario_text: str) -> bool:
        """Makes the run directory from the one that the trial goes on from; False where it begins."""


class Trial(NamedTuple):
    """What all trials share.

    Attributes:
        read: Makes the scenario of a trial from its keys.
        own: The user's Python objects.
        actors: Client actors that each trial spans; 0: it trains in its own process.
    """

    read: Read
    own: UserObjects
    actors: int


def make_trainable(trial: Trial) -> Any:
    """Returns a function of Ray Tune that trains a scenario, for `ray.tune.Tuner`.

    Args:
        trial: What all trials share.

    Raises:
        BadInput: The scenario cannot be searched.
    """
    if not 0 <= trial.actors <= LARGE_ACTORS:
        raise BadInput(f"actors = {trial.actors}: give a number from 0 to {LARGE_ACTORS:,}")
    check_searchable(trial.read({}), trial.actors)
    try:
        from fedray.runtime.ray import tasks
    except ImportError as error:
        raise BadInput(f"fedray.trainable needs Ray Tune ({error}): pip install 'fedray[tune]'") from None

    def train(config: Mapping[str, Any]) -> None:
        run_trial(trial, config, tasks)

    return tasks.reserve_bundles(train, trial.actors) if trial.actors else train


def check_searchable(scenario: Scenario, actors: int) -> None:
    """Refuses what Ray Tune cannot choose by, or cannot give.

    Args:
        scenario: That of a trial.
        actors: Actors that it spans.

    Example:
        >>> from fedray.scenario.loader import read_scenario
        >>> check_searchable(read_scenario({"data": {"hold_out": 0.0}}), actors=0)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedray.core.errors.BadInput: data.hold_out = 0, but Ray Tune chooses by held-out scores: ...
    """
    if scenario.data.hold_out == 0:
        raise BadInput("data.hold_out = 0, but Ray Tune chooses by held-out scores: give a share, such as 0.2")
    if scenario.local.lr_grid:
        raise BadInput("local.lr_grid: Ray Tune chooses the rate: put local.lr into its param_space instead")
    if scenario.runtime == "ray" and not actors:
        raise BadInput("runtime = ray: a trial trains in its own process: leave runtime out, or give actors=N")
    if actors:
        refuse_other_seats(scenario)


def run_trial(trial: Trial, config: Mapping[str, Any], reports: Reports) -> None:
    """Trains one trial, from its beginning or from a checkpoint, and reports every evaluated round.

    Args:
        trial: What all trials share.
        config: Its keys, nested or with dots.
        reports: Where it reports to.
    """
    prepare_process()
    use_one_thread()
    import_modules(trial.own.modules)
    scenario = trial.read(flatten(config))
    check_searchable(scenario, trial.actors)
    every = scenario.evaluate.every if scenario.evaluate.every_seconds is None else 1
    kept = replace(scenario.checkpoint, every=every, keep=1, best=None)
    scenario = replace(record_objects(scenario, trial.own), runtime="inline", report=False, loggers=[], checkpoint=kept)
    with tempfile.TemporaryDirectory(prefix="fedray-trial-") as scratch:
        out = Path(scratch) / "run"
        if not reports.go_on(out, dump_scenario(scenario)):
            directory.make_run_directory(out, dump_scenario(scenario))
        with explain_run(scenario, out, trial.own):
            _run(trial, scenario, out, reports)


def _run(trial: Trial, scenario: Scenario, out: Path, reports: Reports) -> None:
    """Runs a trial in its directory."""
    pending: list[dict[str, float]] = []
    newest = -1

    def watch(snapshot: Snapshot) -> None:
        if not pending and snapshot["round"] == 0:  # nothing is trained yet
            return
        pending[:] = [{**snapshot["metrics"], **{name: snapshot[name] for name in TOTALS}}]

    def saved() -> None:
        nonlocal newest
        for metrics in pending:
            if metrics["round"] > newest:
                newest = int(metrics["round"])
                reports.report(metrics, out)
        pending.clear()

    study = build_study(scenario, trial.own)
    with _open_runtime(trial, scenario, study) as (runtime, facts):
        digests = describe_study(scenario, trial.own, study) | describe_lanes(study, facts)
        measure = partial(make_evaluator, test=False)
        run_session(study, runtime, out, watch, facts=facts, digests=digests, measure=measure, saved=saved)


@contextmanager
def _open_runtime(trial: Trial, scenario: Scenario, study: Study) -> Iterator[tuple[Runtime, dict[str, Any]]]:
    """Returns the runtime of a trial, which is closed at the end, and facts on it."""
    if trial.actors:
        with open_actors(scenario, trial.own, study, trial.actors, name="trial") as opened:
            yield opened
        return
    with closing(Inline(study)) as runtime:
        yield runtime, {"runtime": "inline", **worker_facts(runtime.worker)}
