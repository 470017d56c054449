"""What the workers of a run say of their computation, for the manifest: engine, width and why, and the self-test."""

from __future__ import annotations

import warnings
from typing import Any

from fedray.runtime.worker import Worker
from fedray.training.selftest import check_invariance


def worker_facts(host: Worker) -> dict[str, Any]:
    """The engine of one process, and whether its lanes are independent there."""
    if host.parts is not None:
        return join_worker_facts([worker_facts(part) for part in host.parts.hosts])
    study, engine, device = host.study, host.engine, host.device
    local = study.method.phase.local
    return {
        "engine": {"name": engine.name, "width": engine.width, "why": engine.why, "device": device.type},
        "lanes_independent": check_invariance(study.net, engine, local, study.example, str(device), study.dtype),
    }


def join_worker_facts(known: list[dict[str, Any]]) -> dict[str, Any]:
    """The facts of several processes as one: the first one's engine, and all of them where they differ.

    Example:
        >>> join_worker_facts([{"engine": {"name": "mlp"}, "lanes_independent": flag} for flag in (True, False)])
        {'engine': {'name': 'mlp'}, 'lanes_independent': False}
    """
    engines = [one["engine"] for i, one in enumerate(known) if one["engine"] not in [k["engine"] for k in known[:i]]]
    more = {"engines": engines} if len(engines) > 1 else {}
    return {"engine": engines[0], **more, "lanes_independent": all(one["lanes_independent"] for one in known)}


def warn_if_dependent(known: dict[str, Any]) -> None:
    """Warns where the self-test failed."""
    if not known["lanes_independent"]:
        warnings.warn(
            "the lane self-test failed here: results repeat for the same packing only (see manifest.json)", stacklevel=2
        )
