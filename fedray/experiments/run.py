"""From a scenario to a finished run directory, on either runtime; what the Python API and the CLI share."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedray.assembly.study import build_study
from fedray.assembly.user_objects import UserObjects
from fedray.core.errors import BadInput, FedrayError
from fedray.evaluation.evaluate import make_evaluator
from fedray.experiments.learning_rates import choose_learning_rates
from fedray.runtime.environment import device_of, one_thread, prepare_process
from fedray.runtime.inline import Inline
from fedray.runtime.session import Measure, Snapshot, run_session
from fedray.runtime.worker_info import warn_if_dependent, worker_facts
from fedray.scenario.loader import dump_scenario, read_scenario
from fedray.scenario.schema import Scenario
from fedray.storage import directory
from fedray.storage.loggers import build_loggers

Watch = Callable[[Snapshot], None]


def start_run(
    scenario: Scenario, out: Path, own: UserObjects, watch: Watch, address: str | None = None
) -> dict[str, Any]:
    """Runs a scenario into a fresh directory and returns the summary.

    Raises:
        BadInput: the scenario or the directory cannot be used.
        FedrayError: the run failed; `fedray resume` continues from its newest checkpoint.
    """
    prepare_process()
    if scenario.runtime == "inline" or address is None:
        build_study(scenario, own)  # bad input is found before a directory is made
    fresh = not out.exists()
    directory.make_run_directory(out, dump_scenario(scenario))
    try:
        return finish_run(scenario, out, own, watch, address)
    except BadInput:
        directory.discard_run_directory(out, fresh)
        raise


def resume_run(out: Path, own: UserObjects, watch: Watch, address: str | None = None) -> dict[str, Any]:
    """Continues a run from its newest checkpoint."""
    prepare_process()
    path = out / "scenario.yaml"
    if not path.is_file():
        raise BadInput(f"{out} is no run directory (it has no scenario.yaml): give the --out of a run")
    return finish_run(read_scenario(path), out, own, watch, address)


def finish_run(scenario: Scenario, out: Path, own: UserObjects, watch: Watch, address: str | None) -> dict[str, Any]:
    """Runs from wherever the directory stands, then writes the report."""
    if scenario.local.lr_grid:
        own = choose_learning_rates(scenario, out, own, run_inline)
    watch = warn_of_failures(watch)
    if scenario.runtime == "ray":
        from fedray.runtime.ray.coordinator import run_on_ray

        summary = run_on_ray(scenario, own, out.absolute(), watch, address)
        warn_if_dependent(json.loads((out / "manifest.json").read_text()))
    else:
        summary = run_inline(scenario, out, own, watch)
    from fedray.report.write import write_report

    try:
        write_report([out], out / "report.html")
    except BadInput as error:
        raise FedrayError(f"the run is complete, but not its report: {error}") from None
    return summary


def warn_of_failures(watch: Watch) -> Watch:
    """A watcher that also warns, once, when a client was left out."""
    told: list[int] = []

    def look(shown: Snapshot) -> None:
        if shown["failed"] and not told:
            told.append(shown["round"])
            warnings.warn(
                f"by round {shown['round']} {shown['failed']} jobs failed and were left out (on_client_error: "
                "skip): see status and error in clients.parquet",
                stacklevel=2,
            )
        watch(shown)

    return look


def run_inline(
    scenario: Scenario, out: Path, own: UserObjects, watch: Watch, measure: Measure = make_evaluator
) -> dict[str, Any]:
    """Runs in this process."""
    one_thread()
    study = build_study(scenario, own)
    gpus = max((tier.num_gpus for tier in study.clients.tiers), default=0.0)
    runtime = Inline(study, device_of(gpus))
    known = {"runtime": "inline", **worker_facts(runtime.host)}
    warn_if_dependent(known)
    return run_session(study, runtime, out, watch, known, build_loggers(scenario.loggers, out), measure)
