"""What grows with clients, and what with nodes: `python bench/scale.py` prints the figures of docs/scale.md."""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))  # `on_ray.open_nodes`

# ---------------------------------------------------------------------------------------------------------------------
# One line for each population (in a process of its own): seconds to build, CPU seconds of a round of 1,000 clients,
# peak memory. Then one line for each number of nodes (a Ray cluster of several nodes on this machine): seconds until
# every node has read a broadcast, with one and with several actors on each node. Then what the coordinator does by
# itself, and what an exchange of a large network with some actors takes: seconds, and memory at the coordinator.

CLIENTS = (10**4, 10**5, 10**6)
COORDINATED = ((10**6, 10**4), (10**8, 10**4), (10**8, 10**5))  # clients, jobs of a round
NODES, ACTORS = (1, 2, 3), (1, 4)
MEGABYTES, LAPS = 40, 5
SHARES, NUMBERS = 20, 2_000_000  # replies that the coordinator adds up, and numbers of each
EXCHANGED = ("2", "4", "8 2 6500", "8 4 6500 2")  # see `measure_exchange`
WIDE = 26_000  # hidden units of a network of two million numbers


def scale_scenario(number: int, per_round: int, **changes: Any) -> dict[str, Any]:
    """Returns the scenario of every line: 20 samples of 64 features for each client, a perceptron 64-50-10, K = 5.

    Args:
        number: Clients N.
        per_round: Participants of a round.
        changes: Sections that differ.
    """
    keys = {"runtime": "inline", "data": {"name": "synthetic"}, "schedule": {"rows": "client"}}
    return {**keys, "clients": {"number": number}, "participation": {"per_round": per_round}, **changes}


def measure_population(number: int, rows: str) -> None:
    """Prints the line of one population.

    Args:
        number: Clients N.
        rows: `schedule.rows`, client or stratum.
    """
    began = time.process_time()
    from fedray.assembly.study import build_study
    from fedray.bench.rows import MB, measure_peak_resident
    from fedray.runtime.session import Inline
    from fedray.scenario.loader import read_scenario
    from fedray.simulation.rounds import begin_progress, run_round

    imported = time.process_time()
    keys = scale_scenario(number, 1000, rounds=LAPS, schedule={"rows": rows}, local={"epochs": 1})
    study = build_study(read_scenario(keys))
    runtime = Inline(study)
    progress, built, rounds = begin_progress(study), time.process_time(), []
    for _ in range(LAPS):
        start = time.process_time()
        progress.state = run_round(study, runtime, progress)[2]
        progress.round += 1
        rounds.append(time.process_time() - start)
    print(
        f"N = {number:>9,} rows {rows}: import {imported - began:.2f} s, build {built - imported:.3f} s, "
        f"first round {rounds[0]:.3f} s, others {statistics.median(rounds[1:]):.3f} s, "
        f"peak {measure_peak_resident() / MB:.0f} MB",
        flush=True,
    )


class Reader:
    """An actor that reads the models of a broadcast."""

    def read(self, models: NDArray[np.float32]) -> float:
        """Touches a number of every page, so that all of the models must be there."""
        return float(models[::4096].sum())


def measure_broadcast(nodes: int) -> None:
    """Prints the lines of a cluster with that many nodes."""
    import ray
    from on_ray import open_nodes

    kind: Any = ray.remote(Reader)
    with open_nodes([8] * nodes):
        models = np.zeros(MEGABYTES << 18, dtype=np.float32)
        for each in ACTORS:
            options = [{"num_cpus": 0.1, "resources": {f"node{node}": 1}} for node in range(nodes) for _ in range(each)]
            readers = [kind.options(**one).remote() for one in options]
            ray.get([reader.read.remote(models[:1]) for reader in readers])
            laps = []
            for _ in range(LAPS):
                start = time.perf_counter()
                shared = ray.put(models)
                ray.get([reader.read.remote(shared) for reader in readers])
                laps.append(time.perf_counter() - start)
            for reader in readers:
                ray.kill(reader)
            print(
                f"{nodes} nodes, {each} actors each: {MEGABYTES} MB in {min(laps):.3f} s (best of {LAPS})", flush=True
            )


def measure_coordinator(number: int, jobs: int) -> None:
    """Prints what the coordinator does for a round by itself: plan, clock, dealing, adding up one actor's statistics.

    Args:
        number: Clients N.
        jobs: Jobs of a round.
    """
    import torch

    from fedray.assembly.study import build_study
    from fedray.core.sums import Totals, thin
    from fedray.core.types import SizedPlan, Uploads
    from fedray.runtime.exchange import cut_chunks
    from fedray.runtime.placement import Node, plan_actors
    from fedray.scenario.loader import read_scenario
    from fedray.simulation.devices import JobCosts, time_round
    from fedray.simulation.rounds import job_traffic

    study = build_study(read_scenario(scale_scenario(number, jobs, local={"steps": 2})))
    nodes = [Node(str(n), {"CPU": 16.0}) for n in range(100)]
    phase, specs = study.method.phase, plan_actors(study.clients, nodes, "auto", "auto")
    start = time.process_time()
    plan = phase.schedule(0, None)
    size = study.shards.sizes(plan.world, plan.client)
    up, down = job_traffic(study, plan)
    time_round(study.devices, study.rule, plan, JobCosts(size, up, down), seeds=study.seeds, t=0, now=np.zeros(1))
    cut_chunks(study.clients, specs, SizedPlan(plan, size, size), phase.models)
    per_job = (time.process_time() - start) / jobs
    one = np.zeros(1, np.int64)
    upload = Uploads(torch.ones(1, NUMBERS), one, one, one, one, one + 20)
    totals, reply = Totals(), thin(phase.server.reduce(upload))
    totals.add(reply)  # its memory is new
    start = time.process_time()
    for _ in range(SHARES):
        totals.add(reply)
    per_number = (time.process_time() - start) / SHARES / NUMBERS
    print(
        f"N = {number:,}, {jobs:,} jobs: {1e6 * per_job:.2f} us a job, {1e9 * per_number:.1f} ns a number of a reply",
        flush=True,
    )


def measure_exchange(actors: int, nodes: int = 0, hidden: int = WIDE, models: int = 5) -> None:
    """Prints how long an exchange takes, and how much memory the coordinator takes for it meanwhile.

    Args:
        actors: Client actors, on this machine.
        nodes: Nodes beside the coordinator's over which they are spread, on this machine too. 0: they are on the
            coordinator's node.
        hidden: Hidden units of the network.
        models: K.
    """
    from on_ray import open_nodes

    from fedray.runtime.ray.connection import open_ray

    with open_nodes([actors // nodes] * nodes, head=0) if nodes else open_ray(None, actors):
        laps = _time_laps(actors, hidden, models)
    print(
        f"{actors} actors{f' on {nodes} nodes' if nodes else ''}, K = {models}, {hidden:,} hidden units: "
        f"{statistics.median(memory for memory, _ in laps) / 1e6:.0f} MB more at the coordinator, "
        f"{min(seconds for _, seconds in laps):.3f} s",
        flush=True,
    )


def _time_laps(actors: int, hidden: int, models: int) -> list[tuple[int, float]]:
    """Bytes more at the coordinator, and seconds, of some exchanges."""
    from fedray.assembly.registry import UserObjects
    from fedray.assembly.study import build_study
    from fedray.runtime.ray.coordinator import RayRuntime
    from fedray.scenario.loader import read_scenario
    from fedray.simulation.rounds import begin_progress, size_jobs

    keys = scale_scenario(1000, 40, model={"name": "mlp", "hidden": [hidden]}, local={"steps": 1}, runtime="ray")
    keys["clients"]["actors"], keys["method"] = actors, {"name": "fed_ensemble", "models": models}
    scenario = read_scenario(keys)
    study = build_study(scenario)
    state = begin_progress(study).state
    jobs = size_jobs(study, study.method.phase.schedule(0, state))
    runtime, laps = RayRuntime(scenario, UserObjects().with_rows(scenario, study), study, "scale"), []
    for t in range(2 + LAPS):
        with watch_memory() as most:
            start = time.perf_counter()
            runtime.train(t, jobs, state)
            seconds = time.perf_counter() - start
        laps.append((most[0], seconds))
    runtime.close()
    return laps[2:]  # nobody knew yet how long a round takes


def measure_steps() -> None:
    """Prints what the server's step takes at the coordinator, for the mean and two servers that keep vectors."""
    from fedray.runtime.environment import prepare_process, use_one_thread

    prepare_process()
    use_one_thread()
    import torch

    from fedray.components.servers import Optimizer, Rows, feddyn_server, mean, with_optimizer
    from fedray.core.types import State, Uploads

    rows, one, none = Rows(1, 5), np.arange(5), np.zeros(5, np.int64)
    base, uploads = mean(rows), Uploads(torch.full((5, NUMBERS), 0.01), one, one, none, none, none + 20)
    adam = with_optimizer(base, rows, NUMBERS, Optimizer("adam", lr=0.1))
    for name, server in {"mean": base, "FedDyn": feddyn_server(base, rows, 100, 0.1, NUMBERS), "Adam": adam}.items():
        models, stats, seconds = torch.ones(5, NUMBERS), server.reduce(uploads), []
        state = State(models, torch.zeros(5, 0, dtype=torch.int64), server.init(models))
        for _ in range(LAPS):
            start = time.process_time()
            server.step(state, stats, 0)
            seconds.append(time.process_time() - start)
        print(f"step of {name}: {1e9 * min(seconds) / models.numel():.1f} ns a number", flush=True)


@contextmanager
def watch_memory() -> Iterator[list[int]]:
    """Yields a list of one number: the most bytes that this process takes beyond its memory at the start."""
    status, over = Path("/proc/self/status"), threading.Event()
    start, most = _read_anonymous(status), [0]

    def watch() -> None:
        while not over.wait(0.002):
            most[0] = max(most[0], _read_anonymous(status) - start)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


def _read_anonymous(status: Path) -> int:
    """Bytes of memory that are this process's own, from its file in /proc."""
    [line] = (line for line in status.read_text().splitlines() if line.startswith("RssAnon"))
    return 1024 * int(line.split()[1])


def print_figures(arguments: list[str]) -> None:
    """Prints one line, or without arguments all of them, each from a process of its own."""
    match arguments:
        case ["population", number, rows]:
            measure_population(int(number), rows)
        case ["broadcast", nodes]:
            measure_broadcast(int(nodes))
        case ["coordinator", number, jobs]:
            measure_coordinator(int(number), int(jobs))
        case ["exchange", *numbers]:
            measure_exchange(*map(int, numbers))
        case ["step"]:
            measure_steps()
        case _:
            lines = [f"population {number} {rows}" for rows in ("stratum", "client") for number in CLIENTS]
            lines += [f"broadcast {nodes}" for nodes in NODES]
            lines += [f"coordinator {number} {jobs}" for number, jobs in COORDINATED]
            lines += [*(f"exchange {case}" for case in EXCHANGED), "step"]
            for line in lines:
                subprocess.run([sys.executable, __file__, *line.split()], check=True)
            print_table()


# ---------------------------------------------------------------------------------------------------------------------
# What a round takes on a cluster that is not here, from constants that are measured above: the last table of
# docs/scale.md.

PLAN = 0.6e-6  # seconds of a job at the coordinator: plan, virtual clock, chunks (`coordinator` lines)
ADD = 0.6e-9  # seconds of a number of a reply, to add it (`coordinator` lines)
LINK = 1.25e9  # bytes/s of the coordinator's network: 10 Gbit/s
GB = 1e9


class Deployment(NamedTuple):
    """A run on a cluster.

    Attributes:
        nodes: Of the cluster.
        actors: Client actors, the same number on each node.
        models: K.
        numbers: Of a model, d.
        jobs: Of a round.
    """

    nodes: int
    actors: int
    models: int
    numbers: int
    jobs: int


class Estimate(NamedTuple):
    """What a round takes beside the training.

    Attributes:
        broadcast: GB of models to all nodes.
        replies: GB of sums that come to the coordinator.
        kept: GB of sums that the coordinator holds.
        seconds: Of planning, broadcast, sums on their way and adding.
    """

    broadcast: float
    replies: float
    kept: float
    seconds: float


def estimate_round(place: Deployment) -> Estimate:
    """Estimates a round. Jobs are in the order of their models, so A actors have A + K - 1 sums of models.

    Example:
        >>> one = estimate_round(Deployment(nodes=100, actors=100, models=5, numbers=21_300_000, jobs=1000))
        >>> round(one.replies, 1), round(one.replies * GB / LINK, 1)  # GB, seconds
        (17.7, 14.2)
    """
    nodes, actors, models, d, jobs = place
    sums = min(actors + models - 1, actors * models)
    down, up = 4.0 * nodes * models * d + 24.0 * jobs, 8.0 * sums * d
    seconds = jobs * PLAN + (down + up) / LINK + sums * d * ADD
    return Estimate(down / GB, up / GB, 8.0 * models * d / GB, seconds)


PLACES = {
    "perceptron, 1,600 actors": Deployment(100, 1600, 5, 3_760, 100_000),
    "perceptron, 100 actors of 16 CPUs": Deployment(100, 100, 5, 3_760, 100_000),
    "ResNet-34, 100 actors": Deployment(100, 100, 5, 21_300_000, 1_000),
    "ResNet-34, 1,000 actors of a GPU": Deployment(100, 1000, 5, 21_300_000, 10_000),
}


def print_table() -> None:
    """Prints the estimates as a Markdown table."""
    print("| K = 5, 100 nodes; GB | broadcast | replies | kept | seconds |")
    print("| --- | --- | --- | --- | --- |")
    for name, place in PLACES.items():
        print(f"| {name} | " + " | ".join(f"{value:.3g}" for value in estimate_round(place)) + " |")


if __name__ == "__main__":
    print_figures(sys.argv[1:])
