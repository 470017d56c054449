"""Facts on the computation of a run's workers, for the manifest: the engine, its width and why, and the self-test."""

from __future__ import annotations

from typing import Any

import torch

from fedray.assembly.students import has_compiled_students
from fedray.core import native
from fedray.core.errors import FedrayWarning, warn_user
from fedray.core.types import Net
from fedray.runtime.worker import Worker
from fedray.simulation.study import Study
from fedray.training.choice import COMPILED, Engine
from fedray.training.selftest import check_invariance


def worker_facts(worker: Worker) -> dict[str, Any]:
    """Describes the engine of one process, and tests whether its lanes are independent there."""
    fitting = worker.study.method.phase.fitting
    if fitting is not None:
        why = f"every client fits decision trees of at most {fitting.leaves} leaves"
        engine_ = {"name": "sklearn", "width": 1, "why": why, "device": worker.device.type, "evaluates": "torch"}
        return {"engine": engine_, "lanes_independent": True, "kernels": native.hash_library() or "none"}
    if worker.parts is not None:
        return join_worker_facts([worker_facts(part) for part in worker.parts.workers])
    whole = _describe_engine(worker, worker.study.net, worker.engine)
    slices = [_describe_engine(worker, tier.net, tier.engine) for tier in worker.tiers if tier is not None]
    return join_worker_facts([whole, *slices]) if slices else whole


def _describe_engine(worker: Worker, net: Net, engine: Engine) -> dict[str, Any]:
    """The facts of one network: that of a worker, or a slice of it."""
    study, device = worker.study, worker.device
    phase = study.method.phase
    return {
        "engine": {
            "name": engine.name,
            "width": engine.width,
            "why": engine.why,
            "device": device.type,
            **_say_tf32(device),
            "evaluates": engine.evaluates,
        },
        "lanes_independent": check_invariance(
            net, engine, phase.local, study.example, device=str(device), dtype=study.dtype, models=phase.models
        ),
        "kernels": native.hash_library() or "none",
    }


def _say_tf32(device: torch.device) -> dict[str, bool]:
    """What the manifest says where products and convolutions on a GPU round their inputs; nothing elsewhere."""
    rounds = device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
    return {"tf32": True} if rounds else {}


def join_worker_facts(each: list[dict[str, Any]]) -> dict[str, Any]:
    """Joins the facts of several processes: the engine of the first one, and all engines where they differ.

    Example:
        >>> join_worker_facts([{"engine": {"name": "mlp"}, "lanes_independent": flag} for flag in (True, False)])
        {'engine': {'name': 'mlp'}, 'lanes_independent': False}
    """
    engines: list[dict[str, Any]] = []
    for facts in each:
        if facts["engine"] not in engines:
            engines.append(facts["engine"])
    more = {"engines": engines} if len(engines) > 1 else {}
    kernels = ", ".join(dict.fromkeys(facts["kernels"] for facts in each if "kernels" in facts))
    independent = all(facts["lanes_independent"] for facts in each)
    return {"engine": engines[0], **more, "lanes_independent": independent, **({"kernels": kernels} if kernels else {})}


def describe_lanes(study: Study, facts: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Whether compiled kernels train anything in a run, clients or a student, "compiled" or "torch": for its identity.

    Args:
        study: The run's.
        facts: On its workers.
    """
    engines = facts.get("engines", [facts["engine"]])
    compiled = any(engine["name"] in COMPILED for engine in engines) or has_compiled_students(study)
    return {"engine": {"lanes": "compiled" if compiled else "torch"}}


def warn_if_dependent(facts: dict[str, Any]) -> None:
    """Warns where the self-test failed."""
    if not facts["lanes_independent"]:
        warn_user(
            "the lane self-test failed here: results repeat for the same packing only (see manifest.json)",
            FedrayWarning,
        )
