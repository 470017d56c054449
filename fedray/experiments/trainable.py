"""Makes a trainable of Ray Tune from a scenario, for users of Ray Tune. `fedray tune` works without Ray Tune."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedray.assembly.registry import UserObjects, record_objects
from fedray.assembly.study import build_study, describe_study
from fedray.core.errors import BadInput
from fedray.evaluation.evaluate import make_evaluator
from fedray.experiments.run import explain_run, open_runtime, require_one_cpu_actors
from fedray.own_code.user_code import import_modules
from fedray.runtime.environment import prepare_process, use_one_thread
from fedray.runtime.session import Snapshot, describe_lanes, run_session
from fedray.scenario.loader import dump_scenario
from fedray.scenario.nested import flatten
from fedray.scenario.schema import Scenario
from fedray.storage import directory

# ---------------------------------------------------------------------------------------------------------------------
# A trial is a run that is scored on held-out samples, and never on the test set. It reports every evaluated round, with
# the run directory as the checkpoint. So a scheduler may end or pause the trial, or continue a different trial from the
# checkpoint.

TOTALS = ("round", "up_bytes", "down_bytes", "sim_seconds")


ReadTrial = Callable[[Mapping[str, Any]], Scenario]  # makes the scenario of a trial from the keys of the trial


def make_trainable(read: ReadTrial, own: UserObjects, actors: int) -> Any:
    """Returns a function for `ray.tune.Tuner` that trains a scenario. `run_trial` describes the arguments.

    Raises:
        BadInput: Ray Tune cannot search over the scenario.
    """
    check_searchable(read({}), actors)
    from fedray.runtime.ray import tasks

    def train(config: Mapping[str, Any]) -> None:
        run_trial(read, own, actors, config, tasks)

    return tasks.reserve_bundles(train, actors) if actors else train


def check_searchable(scenario: Scenario, actors: int) -> None:
    """Raises `BadInput` for a scenario that cannot be a trial of Ray Tune.

    Such a scenario has no held-out scores, chooses the learning rate itself, or needs resources that a trial cannot
    have. If `actors` is 0, the trial trains in its own process.

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
        require_one_cpu_actors(scenario)


def run_trial(read: ReadTrial, own: UserObjects, actors: int, config: Mapping[str, Any], reports: Any) -> None:
    """Trains one trial, from its beginning or from a checkpoint, and reports every evaluated round.

    Args:
        read: The function that makes the scenario of a trial from the keys of the trial.
        own: The user's Python objects.
        actors: The number of client actors of each trial. With 0 a trial trains in its own process.
        config: The keys of the trial, nested or dotted.
        reports: The module `fedray.runtime.ray.tasks`, or, in a test, an object with the same functions `report` and
            `restore_trial`.
    """
    prepare_process()
    use_one_thread()
    import_modules(own.modules)
    scenario = read(flatten(config))
    check_searchable(scenario, actors)
    every = scenario.evaluate.every if scenario.evaluate.every_seconds is None else 1
    kept = replace(scenario.checkpoint, every=every, keep=1, best=None)
    scenario = replace(record_objects(scenario, own), runtime="inline", report=False, loggers=[], checkpoint=kept)
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

    with tempfile.TemporaryDirectory(prefix="fedray-trial-") as scratch:
        out = Path(scratch) / "run"
        if not reports.restore_trial(out, dump_scenario(scenario)):
            directory.make_run_directory(out, dump_scenario(scenario))
        with explain_run(scenario, out, own):
            study = build_study(scenario, own)
            with open_runtime(scenario, own, study, actors, name="trial") as (runtime, facts):
                digests = describe_study(scenario, own, study) | describe_lanes(study, facts)
                measure = partial(make_evaluator, test=False)
                run_session(study, runtime, out, watch, facts=facts, digests=digests, measure=measure, saved=saved)
