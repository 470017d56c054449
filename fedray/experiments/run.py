"""From a scenario to a finished run directory, on either runtime; what the Python API and the CLI share."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedray.assembly.study import build
from fedray.assembly.user_objects import Own
from fedray.core.errors import BadInput, FedrayError
from fedray.evaluation.evaluate import evaluator
from fedray.experiments.learning_rates import chosen
from fedray.runtime.environment import device_of, one_thread, prepare
from fedray.runtime.inline import Inline
from fedray.runtime.session import Measure, Snapshot, coordinate
from fedray.runtime.worker_info import doubt, facts
from fedray.scenario.loader import Scenario, dump, read
from fedray.storage import directory
from fedray.storage.loggers import build_loggers

Watch = Callable[[Snapshot], None]


def start(scenario: Scenario, out: Path, own: Own, watch: Watch, address: str | None = None) -> dict[str, Any]:
    """Runs a scenario into a fresh directory and returns the summary.

    Raises:
        BadInput: the scenario or the directory cannot be used.
        FedrayError: the run failed; `fedray resume` continues from its newest checkpoint.
    """
    prepare()
    if scenario.runtime == "inline" or address is None:
        build(scenario, own)  # bad input is found before a directory is made
    fresh = not out.exists()
    directory.prepare(out, dump(scenario))
    try:
        return proceed(scenario, out, own, watch, address)
    except BadInput:
        directory.discard(out, fresh)
        raise


def resume(out: Path, own: Own, watch: Watch, address: str | None = None) -> dict[str, Any]:
    """Continues a run from its newest checkpoint."""
    prepare()
    path = out / "scenario.yaml"
    if not path.is_file():
        raise BadInput(f"{out} is no run directory (it has no scenario.yaml): give the --out of a run")
    return proceed(read(path), out, own, watch, address)


def proceed(scenario: Scenario, out: Path, own: Own, watch: Watch, address: str | None) -> dict[str, Any]:
    """Runs from wherever the directory stands, then writes the report."""
    if scenario.local.lr_grid:
        own = chosen(scenario, out, own, run_inline)
    watch = alerting(watch)
    if scenario.runtime == "ray":
        from fedray.runtime.ray.coordinator import run_on_ray

        summary = run_on_ray(scenario, own, out.absolute(), watch, address)
        doubt(json.loads((out / "manifest.json").read_text()))
    else:
        summary = run_inline(scenario, out, own, watch)
    from fedray.report.write import write_report

    try:
        write_report([out], out / "report.html")
    except BadInput as error:
        raise FedrayError(f"the run is complete, but not its report: {error}") from None
    return summary


def alerting(watch: Watch) -> Watch:
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


def run_inline(scenario: Scenario, out: Path, own: Own, watch: Watch, measure: Measure = evaluator) -> dict[str, Any]:
    """Runs in this process."""
    one_thread()
    study = build(scenario, own)
    gpus = max((tier.num_gpus for tier in study.clients.tiers), default=0.0)
    runtime = Inline(study, device_of(gpus))
    known = {"runtime": "inline", **facts(runtime.host)}
    doubt(known)
    return coordinate(study, runtime, out, watch, known, build_loggers(scenario.loggers, out), measure)
