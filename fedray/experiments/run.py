"""Runs scenarios in run directories, for the Python API and the command line."""

import json
import logging
import math
import os
import shutil
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import numpy as np

from fedray.advice import warn_of_failures, warn_of_losses, warn_of_study
from fedray.assembly import registry
from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study, describe_study
from fedray.core.errors import BadInput, Diverged, FedrayError
from fedray.evaluation.evaluate import make_evaluator
from fedray.files.plain import confirm_writable, write_atomically
from fedray.files.run_files import TRACEBACK_FILE, read_sealed, write_sealed
from fedray.models.net import count_forward_flops
from fedray.process import current_ending
from fedray.runtime import environment, session
from fedray.scenario.loader import dump_scenario, read_scenario, to_plain
from fedray.scenario.schema import Scenario, section_fields
from fedray.scenario.sections import TierKeys
from fedray.scenario.shipped import answers_clients_apart
from fedray.scenario.training import EvaluateKeys
from fedray.simulation.study import Progress, Runtime, Study, choose_study_engine
from fedray.storage import checkpoint, directory
from fedray.storage import summary as records
from fedray.training.block import count_client_steps, samples_seen

log = logging.getLogger("fedray")

# ---------------------------------------------------------------------------------------------------------------------
# The choice of the runtime with `runtime: auto`. Training runs in this process, unless there are a cluster, several
# GPUs, actors that the scenario sets, or enough work for Ray. Both runtimes give the same bits, so only time matters.
# Ray takes seconds to start, and some milliseconds per round.

# Operations per second of a core (measured 1.3e10 to 7.5e10), in compiled kernels (2e10 to 7e10 for `mlp-c`, 6e10 to
# 1.8e11 for `conv-c`), and of a GPU (2e12 to 1e13)
FLOPS = {"cpu": 4e10, "mlp-c": 6e10, "conv-c": 1e11, "cuda": 2e12}
JOB_SECONDS = 1e-5  # seconds of a core for a job, without its operations (measured 6 to 30 us)
ROUND_SECONDS = 1e-3  # seconds of a core for a round, without its jobs (measured 0.7 to 1.7 ms)
STEP_SECONDS = 2.5e-3  # seconds of a GPU for a step of a block, without its operations (measured 2.8 ms with them)
SHORT_ROUND = 0.03  # seconds; in shorter rounds Ray's own milliseconds cost too much
START_SECONDS = 20.0  # time that Ray takes to start on two cores, including processes that import torch
CUDA_SECONDS = 5.0  # a GPU must save so much time in a run, because its first use is slow


class RuntimeChoice(NamedTuple):
    """A runtime, and the reason for its choice.

    Attributes:
        name: `ray` or `inline`.
        why: The reason in words.
        gpus: Number of GPUs of this machine that train although no tier reserves them (`count_useful_gpus`).
    """

    name: str
    why: str
    gpus: int = 0


def choose_runtime(scenario: Scenario, study: Study, address: str | None, began: str | None = None) -> RuntimeChoice:
    """Returns the runtime of a scenario and the reason. `runtime: auto` takes the one that is expected to be faster.

    Args:
        scenario: The scenario.
        study: The study of this scenario.
        address: The address of a Ray cluster. None means that there is no cluster.
        began: The devices with which the run began. None means a new run.

    Example:
        >>> from fedray.assembly.study import build_study
        >>> from fedray.scenario.loader import read_scenario
        >>> scenario = read_scenario({"clients": {"number": 10}, "rounds": 2})
        >>> choose_runtime(scenario, build_study(scenario), address=None).name
        'inline'
    """
    gpus = count_useful_gpus(scenario, study, began) if address is None else 0
    if scenario.runtime != "auto":
        return RuntimeChoice(scenario.runtime, "the scenario says so", gpus)
    if address is not None:
        return RuntimeChoice("ray", "a cluster was given")
    if gpus == 1 or (gpus and scenario.client_timeout is not None):
        return RuntimeChoice("inline", "a GPU is here", gpus)
    if gpus:
        return RuntimeChoice("ray", f"{gpus} GPUs are here", gpus)
    keys, tiers = scenario.clients, study.clients.tiers
    if any(tier.num_gpus or tier.resources for tier in tiers):
        return RuntimeChoice("ray", "its tiers reserve resources")
    if (keys.actors, keys.per_actor) != ("auto", "auto"):
        return RuntimeChoice("ray", "its actors are given")
    cores, seconds = os.cpu_count() or 1, estimate_seconds(study)
    saved = seconds * study.rounds * (1 - 1 / cores)
    took = f"{1e3 * seconds:.2g} ms" if seconds < 0.1 else f"{seconds:,.1f} s"
    work = f"about {took} of one core a round"
    if seconds < SHORT_ROUND or saved < START_SECONDS or scenario.client_timeout is not None:
        return RuntimeChoice("inline", work)
    return RuntimeChoice("ray", f"{work}, on {cores} cores")


def estimate_seconds(study: Study, device: str = "cpu") -> float:
    """Estimates the seconds that one core or a GPU needs to train a round.

    On a processor with AVX-512 the estimate was 0.5 to 2.3 times the measured time. If a study has several parts that
    train one after the other, the estimate is the mean over the rounds of all parts. For `cuda`, work that cannot be
    done on a GPU takes infinite time.

    Args:
        study: The study that is trained.
        device: `cpu` (one core) or `cuda`.
    """
    if study.parts:
        parts = [part for part in study.parts if part.ends > part.begins]  # bases with classifiers train in no round
        each = [estimate_seconds(part.study, device) * (part.ends - part.begins) for part in parts]
        return sum(each) / max(1, study.rounds)
    phase = study.method.phase
    plan = phase.schedule(0, None)
    size = study.shards.sizes(plan.world, plan.client)
    steps = count_client_steps(study.clients, plan.client, size, phase.local)
    samples = samples_seen(size, steps, phase.local)
    flops = 3.0 * count_forward_flops(study.net, study.example[None])  # the backward pass takes twice the forward one
    engine = choose_study_engine(study, device)
    arithmetic = float(np.sum(samples)) * flops / FLOPS.get(engine.name, FLOPS[device])
    if device == "cpu":
        return arithmetic + len(plan.client) * JOB_SECONDS + ROUND_SECONDS
    if phase.work is not None:
        return math.inf
    return arithmetic + max(float(steps.max(initial=0)), float(steps.sum()) / engine.width) * STEP_SECONDS


# ---------------------------------------------------------------------------------------------------------------------
# The GPUs of this machine. With `clients.device: auto` they train where they are expected to be faster. The device
# changes the last bits of the results. So a run keeps the device with which it began, which `identity.json` records.


def count_useful_gpus(scenario: Scenario, study: Study | None, began: str | None = None) -> int:
    """Returns how many GPUs of this machine train.

    The number is 0 if CPUs train, or if tiers of clients reserve their GPUs (`num_gpus`).

    Args:
        scenario: The scenario.
        study: The study of this scenario. It may be None for a resumed run.
        began: The devices with which the run began. None means a new run.
    """
    keys, given = scenario.clients, (scenario.clients.actors, scenario.clients.per_actor)
    if keys.device == "cpu" or scenario.lanes == "compiled" or any(tier.num_gpus for tier in keys.tiers.values()):
        return 0
    if scenario.runtime == "ray" and given != ("auto", "auto"):  # tiers then say what actors reserve
        return 0
    if began is not None or study is None:
        return environment.count_gpus() if began == "cuda" else 0
    if not (gpus := environment.count_gpus()):
        return 0
    cores = 1 if scenario.runtime == "inline" else os.cpu_count() or 1
    saved = estimate_seconds(study) / cores - estimate_seconds(study, "cuda")
    return gpus if saved * study.rounds > CUDA_SECONDS else 0


def share_gpus(scenario: Scenario, gpus: int) -> Scenario:
    """Returns a scenario in which the actors of a Ray run share the GPUs of this machine.

    Every actor reserves a whole GPU, so that there are as many actors as GPUs. If there are more tiers than GPUs, each
    tier has one actor, and the actor reserves a part of a GPU.

    Args:
        scenario: The scenario, in which no tier reserves GPUs.
        gpus: Number of GPUs. 0 changes nothing.

    Example:
        >>> from fedray.scenario.loader import read_scenario
        >>> keys = share_gpus(read_scenario({"clients": {"tiers": {"a": {}, "b": {}, "c": {}}}}), gpus=2).clients
        >>> [tier.num_gpus for tier in keys.tiers.values()]
        [0.5, 0.5, 0.5]
    """
    if not gpus:
        return scenario
    tiers = scenario.clients.tiers or {"client": TierKeys()}
    share = 1 / math.ceil(len(tiers) / gpus)
    given = {name: replace(tier, num_gpus=share) for name, tier in tiers.items()}
    return replace(scenario, clients=replace(scenario.clients, tiers=given))


def choose_device(scenario: Scenario, study: Study, out: Path) -> str:
    """Returns the torch device on which this process trains, `cpu` or `cuda`.

    Raises:
        BadInput: A tier reserves a GPU, but torch finds no GPU.
    """
    reserved = max((tier.num_gpus for tier in study.clients.tiers), default=0.0)
    useful = 0 if reserved else count_useful_gpus(scenario, study, records.recall_device(out))
    if useful:
        log.info("training on the GPU of this machine (clients.device=cpu keeps it off)")
    return environment.device_of(reserved or useful, scenario.clients.device, tf32=scenario.clients.tf32)


# ---------------------------------------------------------------------------------------------------------------------
# The choice of each world's learning rate with `local.lr_grid`, without test samples. A world is one seed of one fold.
#
# Before the run, every world trains once with each candidate. All candidates train together, as additional worlds of
# one training. The share `data.hold_out` of every client's samples is withheld, or a fifth if the scenario withholds
# none. Each world takes the candidate with the lowest nll on the withheld samples. If known clients predict with their
# own models or weights, the score is the mean over clients of the nll (or RMSE) on the client's withheld samples.
# Afterwards the run trains on the samples that the scenario sets.

HELD_OUT_SHARE = 0.2  # share of each client's samples, if the scenario withholds none
SCORE = "hold_out_nll"
OWN_SCORES = ("hold_out_personal_rmse", "hold_out_personal_nll")  # scores of clients with their own models or weights
Scores = dict[tuple[int, int], list[float]]


def choose_learning_rates(scenario: Scenario, out: Path, own: UserObjects, watch: session.Watch) -> UserObjects:
    """Chooses the learning rate of each replicate and fold, and returns `own` with these rates.

    The scenario's key `local.lr_grid` has the candidates. If training diverges in any replicate and fold, the largest
    candidate is dropped, and the others train again. The rates are stored in `learning_rates.json` in the run
    directory, and are chosen only once. `watch` is called with a snapshot after each evaluated round.

    Raises:
        FedrayError: Training diverges with every candidate.
    """
    path, grid = out / "learning_rates.json", sorted(scenario.local.lr_grid)
    if not path.is_file():
        name, scores = _score_candidates(scenario, out / "candidates", own, grid, watch)
        chosen = []
        for (replicate, fold), each in sorted(scores.items()):
            ranked = [score if math.isfinite(score) else math.inf for score in each]
            best = grid[ranked.index(min(ranked))]  # the smallest of equally good rates
            chosen.append({"replicate": replicate, "fold": fold, "lr": best, name: each})
        write_sealed(path, {"candidates": grid, "worlds": chosen})
    worlds = read_sealed(path, "remove it, and `fedray resume` chooses again")["worlds"]
    return replace(own, rates=tuple(float(world["lr"]) for world in worlds))


def _score_candidates(
    scenario: Scenario, folder: Path, own: UserObjects, grid: list[float], watch: session.Watch
) -> tuple[str, Scores]:
    """Trains with each candidate for the learning rate.

    The largest rates are dropped until no training diverges. A dropped rate has no score.

    Returns:
        The name of the held-out score, and the scores of each pair (replicate, fold), in ascending order of the rates.
    """
    trial, own = make_candidate_scenario(scenario), replace(own, callbacks=())
    for number in range(len(grid), 0, -1):
        candidates = folder / f"smallest_{number}"
        if (candidates / "diverged").exists():
            continue
        if not (candidates / "scenario.yaml").is_file():
            shutil.rmtree(candidates, ignore_errors=True)
            directory.make_run_directory(candidates, dump_scenario(trial))
        checkpoint.warn_of_damage(candidates)
        try:
            run_inline(trial, candidates, replace(own, grid=tuple(grid[:number])), watch, make_held_out_evaluator)
        except Diverged:
            (candidates / "diverged").touch()
            continue
        scores: Scores = {}
        table = checkpoint.read_table(candidates, "rounds")
        name = next((name for name in OWN_SCORES if name in table.column_names), SCORE)
        for row in table.to_pylist():  # in the order of candidates
            if row["round"] == trial.rounds:
                scores.setdefault((row["replicate"] % scenario.replicates, row["fold"]), []).append(row[name])
        return name, scores
    raise FedrayError(f"local.lr_grid = {grid}: training diverges with each of them: give smaller ones")


def make_candidate_scenario(scenario: Scenario) -> Scenario:
    """Returns the scenario that trains with each candidate for the learning rate.

    Samples are withheld, and models are evaluated at the end.
    """
    data = replace(scenario.data, hold_out=scenario.data.hold_out or HELD_OUT_SHARE)
    apart, steps = answers_clients_apart(to_plain(scenario)), scenario.evaluate.personal_steps
    once = EvaluateKeys(every=max(1, scenario.rounds), personal=apart, personal_steps=steps)
    local, best = replace(scenario.local, lr_grid=[]), replace(scenario.checkpoint, best=None)
    own = {key: name for key, name in (scenario.own or {}).items() if key != "callbacks"}
    rest = replace(scenario, own=own or None, callbacks=None, stop=None, checkpoint=best, loggers=[], table=[])
    return replace(rest, runtime="inline", data=data, local=local, evaluate=once)


def make_held_out_evaluator(study: Study, runtime: Runtime) -> Callable[[Progress], list[dict[str, Any]]]:
    """Returns a function that computes the scores on withheld samples. The function does not use the test set.

    If clients of the run predict with their own models or weights, their scores are included.
    """
    return make_evaluator(replace(study, evaluation=replace(study.evaluation, personal=True)), runtime, test=False)


# ---------------------------------------------------------------------------------------------------------------------
# New runs and resumed runs.


def run_scenario(
    scenario: Scenario,
    out: Path,
    own: UserObjects,
    watch: session.Watch,
    *,
    address: str | None = None,
    wait_for: Mapping[str, float] | None = None,
    resume: bool = False,
    force: bool = False,
) -> dict[str, Any]:
    """Runs a scenario in a new directory, or resumes a run. Writes the report and returns the summary.

    Args:
        scenario: The scenario to run.
        out: The run directory. It must be empty or missing, unless the run is resumed.
        own: The user's Python objects.
        watch: A function that is called with a snapshot after each evaluated round.
        address: The address of an existing Ray cluster. None means that a run on Ray starts a cluster on this machine.
        wait_for: The resources that the cluster must have before the run begins, by Ray's names.
        resume: Whether the run continues from the newest checkpoint in `out`.
        force: Whether to replace an earlier run in `out`. The earlier run is removed at the first evaluated round of
            the new run. If the new run ends before, the earlier run is put back.

    Raises:
        BadInput: The scenario or the directory cannot be used. A directory that was made for the run is removed.
        FedrayError: The run failed. `fedray resume` continues from the newest checkpoint. If the user's code failed
            before the run began, the directory is removed, too.
    """
    address = environment.find_address(scenario.runtime, address)
    environment.refuse_unused_wait(wait_for, address)
    confirm_writable(out)
    environment.prepare_process()
    existed = out.exists()
    options = [f" --import {quote(name)}" for name in own.modules]
    options += [f" --address {quote(address)}"] if address else []
    longer = resume and records.read_keys(out).get("rounds") != scenario.rounds
    options += [f" --rounds {scenario.rounds}"] if longer else []  # the run directory does not say so yet
    advice = f"`fedray resume {quote(str(out))}{''.join(options)}` goes on from the newest checkpoint"
    replaces = force and (out / "scenario.yaml").is_file()  # the earlier run may be put back until a round is evaluated
    current_ending().advise(advice, needs=out / ("checkpoints" if replaces else "scenario.yaml"))
    if not resume:
        scenario = registry.record_objects(scenario, own)
    else:
        scenario = replace(scenario, lanes=records.choose_resumed_lanes(scenario.lanes, out))
    chosen, study = _choose_runtime(scenario, own, address, resume=out if resume else None)
    with directory.set_run_aside(out) if replaces else nullcontext(lambda: None) as forget:
        if not resume:
            directory.make_run_directory(out, dump_scenario(scenario))
        try:
            if scenario.local.lr_grid:
                log.info("choosing the learning rate")
                own, study = choose_learning_rates(scenario, out, own, lambda _: forget()), None
            with explain_run(scenario, out, own) as shield:
                watch = shield(warn_of_failures(watch) if scenario.on_client_error == "skip" else watch)
                watch = session.log_snapshots(watch, lambda _round, _metrics: forget()) if replaces else watch
                if chosen.name == "inline":
                    summary = run_inline(scenario, out, own, watch, study=study)
                else:
                    log.info("starting Ray" if address is None else f"connecting to Ray at {address}")
                    from fedray.runtime.ray.coordinator import run_on_ray

                    shared = share_gpus(scenario, chosen.gpus)
                    with records.open_loggers(scenario.loggers, out) as send:  # here are the settings of the tools
                        watch = session.log_snapshots(watch, send)
                        summary = run_on_ray(shared, own, out.absolute(), watch, address, wait_for=wait_for)
                    session.warn_if_dependent(json.loads((out / "manifest.json").read_text()))
        except FedrayError as error:
            early = error.__cause__ is not None and not directory.has_begun(out)
            if not resume and (early or isinstance(error, BadInput)):
                directory.discard_run_directory(out, not existed)
            raise
    warn_of_losses(summary)
    if scenario.report:
        _draw_report(out)
    return summary


def _choose_runtime(
    scenario: Scenario, own: UserObjects, address: str | None, *, resume: Path | None
) -> tuple[RuntimeChoice, Study | None]:
    """Returns the runtime of a run. Also returns the study, or None if no study was built or the run trains on Ray.

    Bad input for a new run is found here, before the run directory is made. `resume` is the directory of a resumed run.
    """
    if address is not None and scenario.runtime != "inline":
        return RuntimeChoice("ray", "a cluster was given"), None
    began = None if resume is None else records.recall_device(resume)
    if resume is not None and scenario.runtime != "auto":
        return RuntimeChoice(scenario.runtime, "the scenario says so", count_useful_gpus(scenario, None, began)), None
    log.info("reading the data")
    study = build_study(scenario, own)
    if resume is None:
        warn_of_study(scenario, study)
    chosen = choose_runtime(scenario, study, address, began)
    if scenario.runtime == "auto":
        log.info("training %s (%s)", "on Ray" if chosen.name == "ray" else "in this process", chosen.why)
    return chosen, None if chosen.name == "ray" else study


def _draw_report(out: Path) -> None:
    """Writes the page `report.html` of a complete run."""
    log.info("drawing the report")
    current_ending().advise(f"the run is complete, and `fedray report {quote(str(out))}` draws its page")
    from fedray.report.page import write_report  # matplotlib is slow to import

    try:
        write_report([out], out / "report.html")
    except FedrayError as error:
        raise FedrayError(f"the run is complete, but not its report: {error}") from None


def resume_run(
    out: Path,
    own: UserObjects,
    watch: session.Watch,
    *,
    address: str | None,
    wait_for: Mapping[str, float] | None,
    rounds: int | None,
    report: bool = True,
) -> dict[str, Any]:
    """Continues a run from the newest checkpoint, with the scenario, data and code with which it began.

    Args:
        out: The run directory.
        own: The user's Python objects.
        watch: A function that is called with a snapshot after each evaluated round.
        address: The address of an existing Ray cluster. None means that a run on Ray starts a cluster on this machine.
        wait_for: The resources that the cluster must have before the run continues, by Ray's names.
        rounds: A larger total number of rounds. None keeps the number. Learning rates of `local.lr_grid` are not chosen
            again.
        report: Whether to write `report.html`. With `report: false` in the scenario it is never written.

    Raises:
        BadInput: `out` is no run directory, or the run began with a different scenario, different data or code.
        FedrayError: The run failed.
    """
    scenario = read_run_scenario(out, own)
    with directory.lock_run_directory(out):
        checkpoint.warn_of_damage(out)
        if rounds is not None:
            records.check_longer(out, scenario, rounds)
            scenario = replace(scenario, rounds=rounds)
    if rounds is None:
        records.check_scenario_file(out)
    scenario = replace(scenario, report=scenario.report and report)
    return run_scenario(scenario, out, own, watch, address=address, wait_for=wait_for, resume=True)


def run_inline(
    scenario: Scenario,
    out: Path,
    own: UserObjects,
    watch: session.Watch,
    measure: session.MakeEvaluator = make_evaluator,
    *,
    study: Study | None = None,
    actors: int = 0,
) -> dict[str, Any]:
    """Runs a scenario in this process and returns the summary. The run directory must exist.

    Args:
        scenario: The scenario to run.
        out: The run directory. The run continues from its newest checkpoint, if there is one.
        own: The user's Python objects.
        watch: A function that is called with a snapshot after each evaluated round.
        measure: A function that takes the study and the runtime, and returns the function that scores the models.
        study: The study of the scenario, which no other code may use. None means that this function builds it.
        actors: The number of client actors that train for this process, on CPUs that a trial has reserved. With 0 this
            process trains.
    """
    environment.use_one_thread()
    if study is None:
        scenario = replace(scenario, lanes=records.choose_resumed_lanes(scenario.lanes, out))
        log.info("reading the data")
        study = build_study(scenario, own)
    device = "cpu" if actors else choose_device(scenario, study, out)
    runtimes = open_runtime(scenario, own, study, actors, name=f"trial {out.name}", device=device)
    with runtimes as (runtime, facts), records.open_loggers(scenario.loggers, out) as send:
        session.warn_if_dependent(facts)
        watch = session.log_snapshots(watch, send) if scenario.loggers else watch
        digests = describe_study(scenario, own, study) | session.describe_lanes(study, facts)
        return session.run_session(study, runtime, out, watch, facts=facts, digests=digests, measure=measure)


# ---------------------------------------------------------------------------------------------------------------------
# Trials with client actors. The trial's process coordinates the actors, within the resources that Ray gives to it.


def require_one_cpu_actors(scenario: Scenario) -> None:
    """Checks that the actors of every tier need only one CPU each, because a trial reserves one CPU per actor.

    Raises:
        BadInput: The actors of a tier need more than one CPU, a GPU or a custom resource.

    Example:
        >>> from fedray.scenario.loader import read_scenario
        >>> require_one_cpu_actors(read_scenario({"clients": {"tiers": {"lab": {"num_gpus": 0.5}}}}))
        Traceback (most recent call last):
        fedray.core.errors.BadInput: clients.tiers.lab: the actors of a trial have a CPU each: drop num_gpus
    """
    for name, tier in scenario.clients.tiers.items():
        asked = {"num_cpus": (tier.num_cpus or 0) > 1, "num_gpus": tier.num_gpus > 0, "resources": bool(tier.resources)}
        if keys := [key for key, is_asked in asked.items() if is_asked]:
            raise BadInput(f"clients.tiers.{name}: the actors of a trial have a CPU each: drop {' and '.join(keys)}")


@contextmanager
def open_runtime(
    scenario: Scenario, own: UserObjects, study: Study, actors: int, *, name: str, device: str = "cpu"
) -> Iterator[tuple[Runtime, dict[str, Any]]]:
    """Yields the runtime of a trial, and facts for the manifest. At the end of the `with` block the runtime is closed.

    Args:
        scenario: The scenario of the trial.
        own: The user's Python objects.
        study: The study that is trained.
        actors: The number of actors of the trial, for which Ray has reserved resources. With 0 this process trains.
        name: The name of the trial in Ray's tools.
        device: The device on which this process trains.
    """
    if not actors:
        with closing(session.Inline(study, device)) as inline:
            yield inline, {"runtime": "inline", **session.worker_facts(inline.worker)}
        return
    from fedray.runtime.ray.cluster import plan_trial
    from fedray.runtime.ray.coordinator import RayRuntime

    require_one_cpu_actors(scenario)
    seats = plan_trial(study.clients, actors)
    with closing(RayRuntime(scenario, own.shipped(study), study, name, seats=seats)) as runtime:
        yield runtime, {"runtime": "ray", **runtime.facts(), "actors": len(runtime.actors)}


# ---------------------------------------------------------------------------------------------------------------------
# Opening a run directory again, with an error if scenario or study have changed since the run began.


def read_run_scenario(out: Path, own: UserObjects) -> Scenario:
    """Returns the scenario of a run directory, and checks that the right Python objects are passed.

    `own` has the user's Python objects with which the run was started.

    Raises:
        BadInput: `out` is no run directory, an object is missing, or an object was not part of the run.
    """
    directory.require_run_directory(out)
    records.refuse_missing_names(out)
    scenario = read_scenario(records.read_keys(out), explicit=False)
    registry.check_objects(scenario, own, refuses=bool(records.read_identity(out)))
    return scenario


def read_data_options(out: Path) -> dict[str, Any]:
    """Returns the options that were passed with the data object of a run, or an empty dictionary.

    `out` is the run directory.
    """
    data = records.read_keys(out).get("data")
    if not isinstance(data, dict) or data.get("object") is None:
        return {}
    return {key: value for key, value in data.items() if key not in section_fields("data")}


def reopen_study(out: Path, own: UserObjects, *, predicts: bool = False, **sections: Any) -> Study:
    """Builds the study of a run directory again from its scenario.

    Args:
        out: The run directory.
        own: The user's Python objects with which the run was started.
        predicts: Whether the study is only for predictions, which do not depend on files of devices and graphs.
        sections: Sections (`predict`, `evaluate`) that replace those of the run's scenario. They change no training.

    Raises:
        BadInput: The scenario, the data, the network or the method has changed since the run began.
    """
    scenario = replace(read_run_scenario(out, own), **sections)
    records.check_scenario_file(out)
    study = build_study(scenario, own)
    if records.read_identity(out):
        records.check_identity(out, describe_study(scenario, own, study), predicts=predicts)
    return study


# ---------------------------------------------------------------------------------------------------------------------
# Errors in a user's code during a run. The message has file and line number, and `error.txt` has the traceback.


@contextmanager
def explain_run(scenario: Scenario, out: Path, own: UserObjects) -> Iterator[Callable[[session.Watch], session.Watch]]:
    """Turns an exception of the user's objects in the `with` block into an error of one line.

    If the run has begun, the traceback is saved in `error.txt`. Any error that ends the run, except `BadInput`, is
    saved in the run directory, and `Run.error` returns it.

    Yields:
        A function that wraps the user's function `watch`, so that exceptions of `watch` stay unchanged.

    Example:
        >>> import tempfile
        >>> from fedray.scenario.loader import read_scenario
        >>> with explain_run(read_scenario({}), Path(tempfile.mkdtemp()), UserObjects(method=dict)) as shield:
        ...     raise ValueError("no such model")
        Traceback (most recent call last):
        fedray.core.errors.FedrayError: method builtins.dict: ValueError: no such model
    """
    from_watch: list[Exception] = []

    try:
        yield partial(session.note_errors, noted=from_watch)
    except BadInput:
        raise
    except Exception as error:
        known = any(error is one for one in from_watch)  # exceptions of `watch` pass unchanged
        told = None if known else registry.explain_own_objects(error, scenario, own)
        if not isinstance(told, BadInput):
            directory.forget_failure(out)
        if type(told) is FedrayError and told.__cause__ is not None and directory.has_begun(out):
            with suppress(FedrayError, OSError):  # a full disk must not hide the error
                text = "".join(traceback.format_exception(told.__cause__))
                write_atomically(out / TRACEBACK_FILE, text.encode(errors="replace"))
                told.args = (f"{told} (traceback: {out / TRACEBACK_FILE})",)
        if not isinstance(told, BadInput):
            directory.record_failure(out, told or error)
        if told is None or told is error:
            raise
        raise told from told.__cause__
