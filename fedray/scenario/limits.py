"""Settings in which one method equals another, such as one model: allowed, with a warning that names the other method.

Example:
    >>> from fedray.scenario.loader import read_scenario
    >>> name_limits(read_scenario({"method": {"name": "fedprox", "mu": 0.01}}))
    []
    >>> name_limits(read_scenario({"compress": {"kind": "topk", "ratio": 0.5}}))
    []
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from fedray.scenario.methods import method_spec_of
from fedray.scenario.schema import Scenario
from fedray.scenario.slices import SLICE_SPECS

_REGULAR = ("ring", "complete", "torus")


def name_limits(scenario: Scenario, own: Collection[str] = ()) -> list[str]:
    """One clause for each setting in which something is another thing: `key = value: what it is`.

    Args:
        scenario: has the settings.
        own: which of data, model and method are Python objects, of which nothing is known here.
    """
    is_own = "method" in own or scenario.method.object is not None
    found = [one for one in _limits(scenario) if not (is_own and one[0].startswith("method."))]
    return [f"{key} = {value} makes it {other}" for key, value, other in found]


def _limits(scenario: Scenario) -> Iterator[tuple[str, object, str]]:
    """Key, value, and what the method or its part is with it."""
    method, compress, server, graph = scenario.method, scenario.compress, scenario.server, scenario.graph
    for limit in method_spec_of(method.name).limits:
        value = method.models if limit.key == "models" else method.options.get(limit.key)
        if value == limit.value:
            yield f"method.{limit.key}", limit.value, limit.text
    if method.name in SLICE_SPECS and all(tier.width == 1 for tier in scenario.clients.tiers.values()):
        other = "FedAvg" if method.models == 1 else "Fed-ensemble"
        yield "clients.tiers.*.width", 1, f"{other} ({method.name} that cuts nothing)"
    if compress.kind in ("topk", "randomk") and compress.ratio == 1:
        kept = ", error feedback keeps nothing back" if compress.error_feedback else ""
        yield "compress.ratio", 1, f"a dense upload ({compress.kind} that keeps every entry{kept})"
    if server.robust == "trimmed_mean" and server.trim == 0:
        yield "server.trim", 0, "the plain mean (trimmed_mean that drops nothing)"
    if server.optimizer == "momentum" and server.momentum == 0 and server.lr == 1:
        yield "server.momentum", 0, "the plain mean (momentum 0 at rate 1)"
    if scenario.schedule.kind == "walk" and graph.transition == "metropolis" and graph.kind in _REGULAR:
        yield "graph.transition", "metropolis", f"uniform (every node of a {graph.kind} has as many neighbours)"
