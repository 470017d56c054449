"""What grows with clients, and what with nodes: `python bench/scale.py`, the figures of docs/scale.md.

One line a population (a process each): seconds to build, CPU seconds of a round of 1,000 clients, peak memory. Then one
line a number of nodes (Ray's own cluster of several nodes on this machine): seconds until every node has read a
broadcast, with one and with several actors a node. Then what the coordinator does by itself.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time

import numpy as np

CLIENTS, NODES, ACTORS = (10**4, 10**5, 10**6), (1, 2, 3), (1, 4)
MEGABYTES, LAPS = 40, 5


def population(number: int, rows: str) -> None:
    """One population: 20 samples of 64 features a client, a perceptron 64-50-10, K = 5."""
    began = time.process_time()
    from fedray.assembly.study import build_study
    from fedray.simulation.rounds import begin_progress, run_round
    from fedray.runtime.inline import Inline
    from fedray.scenario.loader import read_scenario

    keys = {"rounds": LAPS, "runtime": "inline", "data": {"name": "synthetic"}, "schedule": {"rows": rows}}
    keys |= {"clients": {"number": number}, "participation": {"per_round": 1000}, "local": {"epochs": 1}}
    imported = time.process_time()
    study = build_study(read_scenario(keys))
    runtime, phase = Inline(study), study.method.phases[0]
    progress, built, rounds = begin_progress(study, phase), time.process_time(), []
    for _ in range(LAPS):
        start = time.process_time()
        progress.state = run_round(study, runtime, phase, progress)[2]
        progress.round += 1
        rounds.append(time.process_time() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"N = {number:>9,} rows {rows}: import {imported - began:.2f} s, build {built - imported:.3f} s, "
        f"first round {rounds[0]:.3f} s, others {statistics.median(rounds[1:]):.3f} s, peak {peak:.0f} MB", flush=True
    )  # fmt: skip


def broadcast(nodes: int) -> None:
    """One put, read by the actors of every node."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    for node in range(nodes):
        cluster.add_node(
            num_cpus=8, resources={f"node{node}": 8}, object_store_memory=300 << 20, include_dashboard=False
        )
    ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)

    @ray.remote(num_cpus=0.1)
    class Reader:
        def read(self, models: np.ndarray) -> float:  # type: ignore[type-arg]
            return float(models[::4096].sum())  # a number a page: all of it is there

    models = np.zeros(MEGABYTES << 18, dtype=np.float32)
    for each in ACTORS:
        readers = [Reader.options(resources={f"node{n}": 1}).remote() for n in range(nodes) for _ in range(each)]
        ray.get([reader.read.remote(models[:1]) for reader in readers])
        laps = []
        for _ in range(LAPS):
            start = time.perf_counter()
            shared = ray.put(models)
            ray.get([reader.read.remote(shared) for reader in readers])
            laps.append(time.perf_counter() - start)
            del shared
        print(f"{nodes} nodes, {each} actors each: {MEGABYTES} MB in {min(laps):.3f} s (best of {LAPS})", flush=True)
        for reader in readers:
            ray.kill(reader)
    ray.shutdown()
    cluster.shutdown()


def coordinator(number: int, jobs: int) -> None:
    """What the coordinator does for a round by itself: plan, clock, dealing, and adding up one actor's statistics."""
    import torch

    from fedray.assembly.study import build_study
    from fedray.simulation.clock import JobCosts, time_round
    from fedray.core.types import Uploads
    from fedray.simulation.rounds import job_traffic
    from fedray.runtime.placement import Room, deal_jobs, plan_actors
    from fedray.scenario.loader import read_scenario
    from fedray.core.exact_sum import merge_stats

    keys = {"runtime": "inline", "data": {"name": "synthetic"}, "schedule": {"rows": "client"}, "local": {"steps": 2}}
    study = build_study(read_scenario(keys | {"clients": {"number": number}, "participation": {"per_round": jobs}}))
    phase, places = study.method.phases[0], plan_actors(study.clients, Room(1600.0, 0.0, {}), "auto", "auto")
    start = time.process_time()
    plan = phase.schedule(0, None)
    size = study.shards.sizes(plan.world, plan.client)
    up, down = job_traffic(study, phase, plan)
    time_round(study.devices, study.rule, study.seeds, 0, plan, JobCosts(size, up, down), np.zeros(1))
    deal_jobs(study.clients, places, plan, size, at_home=False)
    each = (time.process_time() - start) / jobs
    one = np.zeros(1, np.int64)
    upload = Uploads(torch.zeros(1, study.net.layout.d), one, one, one, one, one + 20)
    replies = [phase.server.reduce(upload) for _ in range(20)]
    start = time.process_time()
    merge_stats(replies)
    adding = (time.process_time() - start) / len(replies) / (study.net.layout.d * phase.models)
    print(
        f"N = {number:,}, {jobs:,} jobs: {1e6 * each:.2f} us a job, {1e9 * adding:.1f} ns a number an actor", flush=True
    )


def main() -> None:
    if len(sys.argv) > 3:
        coordinator(int(sys.argv[1]), int(sys.argv[2]))
    elif len(sys.argv) > 2:
        population(int(sys.argv[1]), sys.argv[2])
    elif len(sys.argv) > 1:
        broadcast(int(sys.argv[1]))
    else:
        wanted = [[str(number), rows] for rows in ("stratum", "client") for number in CLIENTS]
        wanted += [[str(nodes)] for nodes in NODES]
        wanted += [[str(n), str(jobs), "alone"] for n, jobs in ((10**6, 10**4), (10**8, 10**4), (10**8, 10**5))]
        for words in wanted:
            subprocess.run([sys.executable, __file__, *words], check=True)


if __name__ == "__main__":
    main()
