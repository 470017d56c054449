"""From a scenario to a finished run directory, on either runtime; what the Python API and the CLI share."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from fedray.assembly.identity import describe_study
from fedray.assembly.study import build_study
from fedray.assembly.study_notes import warn_of_study
from fedray.assembly.user_objects import UserObjects, record_objects
from fedray.core.errors import BadInput, FedrayError
from fedray.evaluation.evaluate import make_evaluator
from fedray.experiments.learning_rates import choose_learning_rates
from fedray.experiments.reopen import read_run_scenario
from fedray.experiments.run_warnings import warn_of_failures, warn_of_losses
from fedray.experiments.runtime_choice import choose_runtime
from fedray.experiments.spread import open_actors
from fedray.experiments.user_errors import explain_run
from fedray.files.plain import confirm_writable
from fedray.process.ending import current_ending
from fedray.runtime.addresses import find_address
from fedray.runtime.awaited import refuse_unused_wait
from fedray.runtime.environment import device_of, prepare_process, use_one_thread
from fedray.runtime.inline import Inline
from fedray.runtime.session import Measure, Watch, log_snapshots, run_session
from fedray.runtime.worker_info import describe_lanes, warn_if_dependent, worker_facts
from fedray.scenario.loader import dump_scenario
from fedray.scenario.schema import Scenario
from fedray.simulation.interfaces import Runtime
from fedray.simulation.study import Study
from fedray.storage import directory
from fedray.storage.identity import check_scenario_file, extend_rounds, keep_lanes
from fedray.storage.loggers import build_loggers
from fedray.storage.mending import warn_of_damage
from fedray.storage.places import remove_run

log = logging.getLogger("fedray")


def run_scenario(
    scenario: Scenario,
    out: Path,
    own: UserObjects,
    watch: Watch,
    *,
    address: str | None = None,
    wait_for: Mapping[str, float] | None = None,
    resume: bool = False,
    force: bool = False,
) -> dict[str, Any]:
    """Runs a scenario into a fresh directory, or goes on with a directory, writes the report and returns the summary.

    Args:
        scenario: what to run.
        out: the run directory; it must be empty or missing, unless the run is resumed.
        own: the user's Python objects.
        watch: called with a snapshot after each evaluated round.
        address: of an existing Ray cluster; None starts one on this machine where the scenario runs on Ray.
        wait_for: what the cluster must have before the run begins, by Ray's names.
        resume: whether to go on from the newest checkpoint of `out`.
        force: whether a run that `out` holds is replaced, once the new one is known to be possible.

    Raises:
        BadInput: the scenario or the directory cannot be used; a directory that was made for it is removed.
        FedrayError: the run failed; `fedray resume` continues from its newest checkpoint.
    """
    address = find_address(scenario.runtime, address)
    refuse_unused_wait(wait_for, address)
    confirm_writable("--out", out)
    prepare_process()
    existed = out.exists()
    current_ending().advise(describe_resume(out, own.modules, address), needs=out / "scenario.yaml")
    if not resume:
        scenario = record_objects(scenario, own)
    runtime, study = _choose_runtime(scenario, own, address, resume=resume)
    if not resume:
        if force and (out / "scenario.yaml").is_file():
            remove_run(out)
        directory.make_run_directory(out, dump_scenario(scenario))
    try:
        if scenario.local.lr_grid:
            log.info("choosing the learning rate")
            own, study = choose_learning_rates(scenario, out, own, run_inline), None
        on_ray = partial(_run_on_ray, address=address, wait_for=wait_for)
        run = partial(run_inline, study=study) if runtime == "inline" else on_ray
        with explain_run(scenario, out, own) as shield:
            summary = run(scenario, out, own, shield(warn_of_failures(watch)))
    except BadInput:
        if not resume:
            directory.discard_run_directory(out, not existed)
        raise
    warn_of_losses(summary)
    if scenario.report:
        _draw_report(out)
    return summary


def _choose_runtime(
    scenario: Scenario, own: UserObjects, address: str | None, *, resume: bool
) -> tuple[str, Study | None]:
    """The runtime of a run, and its study for a new run in this process.

    Bad input is found here, before a new run's directory is made.
    """
    elsewhere = address is not None and scenario.runtime != "inline"
    if elsewhere or (resume and scenario.runtime != "auto"):
        return "ray" if elsewhere else scenario.runtime, None
    log.info("reading the data")
    study = build_study(scenario, own)
    if not resume:
        warn_of_study(scenario, study)
    chosen = choose_runtime(scenario, study, address)
    if scenario.runtime == "auto":
        log.info("training %s (%s)", "on Ray" if chosen.name == "ray" else "in this process", chosen.why)
    return chosen.name, None if resume or chosen.name == "ray" else study


def _draw_report(out: Path) -> None:
    """Draws the page of a run that is complete."""
    log.info("drawing the report")
    current_ending().advise(f"the run is complete, and `fedray report {quote(str(out))}` draws its page")
    from fedray.report.write import write_report  # matplotlib is slow to import

    try:
        write_report([out], out / "report.html")
    except FedrayError as error:
        raise FedrayError(f"the run is complete, but not its report: {error}") from None


def resume_run(
    out: Path,
    own: UserObjects,
    watch: Watch,
    *,
    address: str | None,
    wait_for: Mapping[str, float] | None,
    rounds: int | None,
    report: bool = True,
) -> dict[str, Any]:
    """Continues a run from its newest checkpoint, with the scenario, the data and the code that it began with.

    Args:
        out: the run directory.
        own: the user's Python objects.
        watch: called with a snapshot after each evaluated round.
        address: of an existing Ray cluster; None starts one on this machine where the scenario runs on Ray.
        wait_for: what the cluster must have before the run goes on, by Ray's names.
        rounds: how many there will be in all, where the run is made longer; learning rates chosen by `local.lr_grid`
            stay.
        report: whether the page is drawn, where the scenario wants one.

    Raises:
        BadInput: this is no run directory, or the run began with something else.
        FedrayError: the run failed.
    """
    scenario = read_run_scenario(out, own)
    with directory.lock_run_directory(out):
        warn_of_damage(out)
        if rounds is not None:
            extend_rounds(out, rounds)
            scenario = replace(scenario, rounds=rounds)
    check_scenario_file(out)
    scenario = replace(scenario, report=scenario.report and report)
    return run_scenario(scenario, out, own, watch, address=address, wait_for=wait_for, resume=True)


def run_inline(
    scenario: Scenario,
    out: Path,
    own: UserObjects,
    watch: Watch,
    measure: Measure = make_evaluator,
    *,
    study: Study | None = None,
    actors: int = 0,
) -> dict[str, Any]:
    """Runs a scenario in this process, in a run directory that exists, and returns the summary.

    Args:
        scenario: what to run.
        out: the run directory; the run goes on from its newest checkpoint, if there is one.
        own: the user's Python objects.
        watch: called with a snapshot after each evaluated round.
        measure: makes the function that scores the models.
        study: of the scenario, where it is built already; nothing else may use it.
        actors: client actors that train for this process, which is a trial that has their seats; 0: it trains itself.
    """
    use_one_thread()
    if study is None:
        scenario = replace(scenario, lanes=keep_lanes(scenario.lanes, out))
        log.info("reading the data")
        study = build_study(scenario, own)
    if actors:
        opened = open_actors(scenario, own, study, actors, name=f"trial {out.name}")
    else:
        opened = _open_inline(scenario, study)
    with opened as (runtime, facts):
        warn_if_dependent(facts)
        watch = log_snapshots(watch, build_loggers(scenario.loggers, out))
        digests = describe_study(scenario, own, study) | describe_lanes(study, facts)
        return run_session(study, runtime, out, watch, facts=facts, digests=digests, measure=measure)


@contextmanager
def _open_inline(scenario: Scenario, study: Study) -> Iterator[tuple[Runtime, dict[str, Any]]]:
    """The runtime of this process alone, which is closed at the end, and facts on it."""
    gpus = max((tier.num_gpus for tier in study.clients.tiers), default=0.0)
    device = device_of(gpus, scenario.clients.device, tf32=scenario.clients.tf32)
    with closing(Inline(study, device)) as runtime:
        yield runtime, {"runtime": "inline", **worker_facts(runtime.worker)}


def _run_on_ray(
    scenario: Scenario,
    out: Path,
    own: UserObjects,
    watch: Watch,
    *,
    address: str | None,
    wait_for: Mapping[str, float] | None,
) -> dict[str, Any]:
    """Runs a scenario on a Ray cluster and returns the summary."""
    log.info("starting Ray" if address is None else f"connecting to Ray at {address}")
    from fedray.runtime.ray.coordinator import run_on_ray

    summary = run_on_ray(scenario, own, out.absolute(), watch, address, wait_for=wait_for)
    warn_if_dependent(json.loads((out / "manifest.json").read_text()))
    return summary


def describe_resume(out: Path, modules: Sequence[str], address: str | None) -> str:
    """How a run goes on that was ended.

    Example:
        >>> describe_resume(Path("runs/my run"), ("mine",), None)
        "`fedray resume 'runs/my run' --import mine` goes on from the newest checkpoint"
    """
    options = [f" --import {quote(name)}" for name in modules] + ([f" --address {quote(address)}"] if address else [])
    return f"`fedray resume {quote(str(out))}{''.join(options)}` goes on from the newest checkpoint"
