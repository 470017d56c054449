"""`fedray check`: what a scenario resolves to, before anything runs."""

from __future__ import annotations

import os

import numpy as np

from fedray.assembly import memory
from fedray.assembly.study import build_study
from fedray.core.text import format_bytes
from fedray.scenario.schema import Scenario
from fedray.scenario.training import CompressKeys
from fedray.simulation.rounds import job_traffic
from fedray.simulation.study import Study
from fedray.training.choice import choose_engine

ACTOR_BYTES = 250e6  # private memory of an actor that has imported torch (measured 180 to 315 MB)


def explain_scenario(scenario: Scenario) -> str:
    """The resolved plan as text: clients, tiers, actors, memory, bytes a round."""
    study = build_study(scenario)
    return "\n".join(f"{name:12} {value}" for name, value in scenario_facts(scenario, study))


def scenario_facts(scenario: Scenario, study: Study) -> list[tuple[str, str]]:
    """(name, text) pairs."""
    phase, layout = study.method.phase, study.net.layout
    devices = sorted({"cuda" if tier.num_gpus else "cpu" for tier in study.clients.tiers})
    trained = [part.study for part in study.parts if part.voter is None] or [study]
    voters = [part.voter for part in study.parts if part.voter is not None]
    engines = [(choose_engine(one.net, device, one.example), device) for device in devices for one in trained]
    plan = phase.schedule(0, None)
    jobs, d = len(plan.client), layout.d
    up, down = (int(each.sum()) for each in job_traffic(study, phase, plan))
    actors = actor_count(scenario, study)
    rows = [
        (
            "method",
            f"{study.method.name}: {size_text(study)}, {study.rounds} rounds, schedule {scenario.schedule.kind}",
        ),
        ("data", f"{scenario.data.name}, {study.clients.number:,} clients by {scenario.data.partition.name}"),
        *(
            (
                "model",
                f"{one.net.name}: {one.net.layout.d:,} parameters and buffers, {format_bytes(4.0 * one.net.layout.d)}",
            )
            for one in trained
        ),
        *(("engine", f"{e.name} on {device}, up to {e.width} lanes ({e.why})") for e, device in engines),
        *(("votes", f"{one.name}: every client fits its own, its bytes are not counted") for one in voters),
        ("worlds", f"{study.replicates} replicates x {study.per_replicate} folds"),
        ("jobs", f"{jobs:,} a round"),
        (
            "bytes",
            f"about {format_bytes(down)} down and {format_bytes(up)} up a round, if all jobs count; {bytes_text(scenario)}",
        ),
        (
            "runtime",
            f"{scenario.runtime}, {actors} client actors, about {format_bytes(actors * ACTOR_BYTES)} of memory",
        ),
        ("state", f"{format_bytes(4.0 * d * phase.models * study.worlds)} of models at the server"),
        (
            "memory",
            f"up to {format_bytes(sum(need.bytes for need in memory.estimate_study(scenario, study)))} in one process",
        ),
    ]
    if phase.walk is not None:
        degree = np.bincount(phase.walk.edges.ravel(), minlength=study.clients.number)
        text = f"{scenario.graph.kind}, {len(phase.walk.edges):,} edges, {degree.min()} to {degree.max()} a client, "
        rows.append(("graph", text + f"{scenario.graph.transition} steps"))
    for tier in study.clients.tiers:
        models = phase.models if tier.models_per_round is None else tier.models_per_round
        cpus = "a share of a CPU" if tier.num_cpus is None else f"{tier.num_cpus:g} CPU"
        text = f"{tier.number:,} clients, {models} models a round, actors of {cpus} and {tier.num_gpus:g} GPU, "
        text += f"{tier.seconds_per_step:g} s a step, {format_bytes(tier.uplink)}/s up, {format_bytes(tier.downlink)}/s down"
        rows.append((f"tier {tier.name}", text))
    return rows


def bytes_text(scenario: Scenario) -> str:
    """What survives the uplink, and a ratio that nothing reads."""
    keys = scenario.compress
    if keys.kind in ("topk", "randomk"):
        return f"{keys.kind}, ratio {keys.ratio:g}"
    return keys.kind + (f" (no use of compress.ratio = {keys.ratio:g})" if keys.ratio != CompressKeys().ratio else "")


def size_text(study: Study) -> str:
    """How many models there are, and of a stack how its rounds are spent."""
    if not study.parts:
        return f"{study.method.phase.models} models"
    bases = [part for part in study.parts if part.begins == 0 and part.folds > 1]
    subs, rest = sum(part.folds * part.models for part in bases), len(study.parts) - len(bases)
    text = f"{subs} sub models of {len(bases)} bases in {bases[0].ends} rounds"
    return text + (f", a meta model in {study.parts[-1].ends - study.parts[-1].begins}" if rest else "")


def actor_count(scenario: Scenario, study: Study) -> int:
    """Client actors on this machine; the cluster's own CPUs decide when it runs there."""
    if scenario.runtime == "inline":
        return 0
    from fedray.runtime.placement import Room, plan_actors

    gpus = float(sum(tier.num_gpus > 0 for tier in study.clients.tiers))
    room = Room(float(os.cpu_count() or 1), gpus, {name: 1e9 for t in study.clients.tiers for name in t.resources})
    return len(plan_actors(study.clients, room, scenario.clients.per_actor, scenario.clients.actors))
