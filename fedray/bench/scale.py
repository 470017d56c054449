"""What grows with clients, and what with nodes: `python -m fedray.bench.scale` prints the figures of docs/scale.md.

One line for each population (in a process of its own): seconds to build, CPU seconds of a round of 1,000 clients, peak
memory. Then one line for each number of nodes (a Ray cluster of several nodes on this machine): seconds until every
node has read a broadcast, with one and with several actors on each node. Then what the coordinator does by itself.

Example:
    >>> scale_scenario(10**6, 1000)["clients"]
    {'number': 1000000}
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np

CLIENTS = (10**4, 10**5, 10**6)
COORDINATED = ((10**6, 10**4), (10**8, 10**4), (10**8, 10**5))  # clients, jobs of a round
NODES, ACTORS = (1, 2, 3), (1, 4)
MEGABYTES, LAPS = 40, 5
SHARES = 20  # statistics that the coordinator adds up


def scale_scenario(number: int, per_round: int, **changes: Any) -> dict[str, Any]:
    """The scenario of every line: 20 samples of 64 features for each client, a perceptron 64-50-10, K = 5.

    Args:
        number: clients N.
        per_round: participants of a round.
        changes: sections that differ.
    """
    keys = {"runtime": "inline", "data": {"name": "synthetic"}, "schedule": {"rows": "client"}}
    return {**keys, "clients": {"number": number}, "participation": {"per_round": per_round}, **changes}


def measure_population(number: int, rows: str) -> None:
    """Prints the line of one population.

    Args:
        number: clients N.
        rows: `schedule.rows`, client or stratum.
    """
    began = time.process_time()
    from fedray.assembly.study import build_study
    from fedray.bench.measure import MB, measure_peak_resident
    from fedray.runtime.inline import Inline
    from fedray.scenario.loader import read_scenario
    from fedray.simulation.rounds import begin_progress, run_round

    imported = time.process_time()
    keys = scale_scenario(number, 1000, rounds=LAPS, schedule={"rows": rows}, local={"epochs": 1})
    study = build_study(read_scenario(keys))
    runtime, phase = Inline(study), study.method.phase
    progress, built, rounds = begin_progress(study, phase), time.process_time(), []
    for _ in range(LAPS):
        start = time.process_time()
        progress.state = run_round(study, runtime, phase, progress)[2]
        progress.round += 1
        rounds.append(time.process_time() - start)
    print(
        f"N = {number:>9,} rows {rows}: import {imported - began:.2f} s, build {built - imported:.3f} s, "
        f"first round {rounds[0]:.3f} s, others {statistics.median(rounds[1:]):.3f} s, "
        f"peak {measure_peak_resident() / MB:.0f} MB",
        flush=True,
    )


def measure_broadcast(nodes: int) -> None:
    """Prints the lines of a cluster with that many nodes."""
    from fedray.runtime.ray.broadcast import time_broadcasts

    for each, seconds in zip(ACTORS, time_broadcasts(nodes, ACTORS, MEGABYTES, LAPS), strict=True):
        print(f"{nodes} nodes, {each} actors each: {MEGABYTES} MB in {seconds:.3f} s (best of {LAPS})", flush=True)


def measure_coordinator(number: int, jobs: int) -> None:
    """Prints what the coordinator does for a round by itself: plan, clock, dealing, adding up one actor's statistics.

    Args:
        number: clients N.
        jobs: jobs of a round.
    """
    import torch

    from fedray.assembly.study import build_study
    from fedray.core.exact_sum import merge_stats
    from fedray.core.types import Uploads
    from fedray.runtime.placement import deal_jobs, plan_actors
    from fedray.runtime.seats import Node
    from fedray.scenario.loader import read_scenario
    from fedray.simulation.clock import JobCosts, time_round
    from fedray.simulation.rounds import job_traffic

    study = build_study(read_scenario(scale_scenario(number, jobs, local={"steps": 2})))
    nodes = [Node(str(n), {"CPU": 16.0}) for n in range(100)]
    phase, specs = study.method.phase, plan_actors(study.clients, nodes, "auto", "auto")
    start = time.process_time()
    plan = phase.schedule(0, None)
    size = study.shards.sizes(plan.world, plan.client)
    up, down = job_traffic(study, phase, plan)
    time_round(study.devices, study.rule, plan, JobCosts(size, up, down), seeds=study.seeds, t=0, now=np.zeros(1))
    deal_jobs(study.clients, specs, plan, size, at_home=False)
    per_job = (time.process_time() - start) / jobs
    one = np.zeros(1, np.int64)
    upload = Uploads(torch.zeros(1, study.net.layout.d), one, one, one, one, one + 20)
    replies = [phase.server.reduce(upload) for _ in range(SHARES)]
    start = time.process_time()
    merge_stats(replies)
    per_number = (time.process_time() - start) / SHARES / (study.net.layout.d * phase.models)
    print(
        f"N = {number:,}, {jobs:,} jobs: {1e6 * per_job:.2f} us a job, {1e9 * per_number:.1f} ns a number an actor",
        flush=True,
    )


def print_figures(arguments: list[str]) -> None:
    """Prints one line, or without arguments all of them, each from a process of its own."""
    match arguments:
        case ["population", number, rows]:
            measure_population(int(number), rows)
        case ["broadcast", nodes]:
            measure_broadcast(int(nodes))
        case ["coordinator", number, jobs]:
            measure_coordinator(int(number), int(jobs))
        case _:
            lines = [f"population {number} {rows}" for rows in ("stratum", "client") for number in CLIENTS]
            lines += [f"broadcast {nodes}" for nodes in NODES]
            lines += [f"coordinator {number} {jobs}" for number, jobs in COORDINATED]
            for line in lines:
                subprocess.run([sys.executable, "-m", "fedray.bench.scale", *line.split()], check=True)


if __name__ == "__main__":
    print_figures(sys.argv[1:])
