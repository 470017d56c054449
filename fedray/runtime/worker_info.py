"""What the workers of a run say of their computation, for the manifest: engine, width and why, and the self-test."""

from __future__ import annotations

import warnings
from typing import Any

from fedray.runtime.worker import Host
from fedray.training.selftest import invariant


def facts(host: Host) -> dict[str, Any]:
    """The engine of one process, and whether its lanes are independent there."""
    if host.parts is not None:
        return together([facts(part) for part in host.parts.hosts])
    study, engine, device = host.study, host.engine, host.device
    local = study.method.phases[0].local
    return {
        "engine": {"name": engine.name, "width": engine.width, "why": engine.why, "device": device.type},
        "lanes_independent": invariant(study.net, engine, local, study.example, str(device), study.dtype),
    }


def together(known: list[dict[str, Any]]) -> dict[str, Any]:
    """The facts of several processes as one: the first one's engine, and all of them where they differ.

    Example:
        >>> together([{"engine": {"name": "mlp"}, "lanes_independent": flag} for flag in (True, False)])
        {'engine': {'name': 'mlp'}, 'lanes_independent': False}
    """
    engines = [one["engine"] for i, one in enumerate(known) if one["engine"] not in [k["engine"] for k in known[:i]]]
    more = {"engines": engines} if len(engines) > 1 else {}
    return {"engine": engines[0], **more, "lanes_independent": all(one["lanes_independent"] for one in known)}


def doubt(known: dict[str, Any]) -> None:
    """Warns where the self-test failed."""
    if not known["lanes_independent"]:
        warnings.warn(
            "the lane self-test failed here: results repeat for the same packing only (see manifest.json)", stacklevel=2
        )
