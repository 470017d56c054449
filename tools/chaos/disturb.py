"""Real kills at random moments of a run on three nodes, whatever the scenario: `kill -9` by process id, nothing mocked.

    python tools/chaos/disturb.py SCENARIO.yaml [KILLS [SEED [KINDS]]]

runs a scenario undisturbed in one process, undisturbed on three nodes (started here, on this machine), and once more
while client actors, nodes, raylets, agents, the coordinator and the driver are killed, or what KINDS names (as in
`node,raylet,agent,oom`); it prints the cost, and whether the bits agree.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from fedray.bench.rows import list_tree

KINDS = ("client", "node", "raylet", "agent", "coordinator", "driver", "slow", "oom")
HEALTH = {"health_check_period_ms": 500, "health_check_timeout_ms": 20_000, "health_check_failure_threshold": 4}
MOST_HUNGRY = 30.0  # seconds for an actor to come to a node without memory and to be killed
MOST_ABSENT = 30.0  # seconds for actors to be made again
SLOW = 3.0  # seconds that a slow node stands still
STARVED = {"RAY_memory_usage_threshold": "0.0", "RAY_memory_monitor_refresh_ms": "250"}  # no memory is ever enough
PATIENCE = 600.0  # seconds without a new round: the run hangs


class Outcome(NamedTuple):
    """What a disturbed run came to.

    Attributes:
        kills: The number of faults of each kind.
        rounds: The round in which each fault fell.
        seconds: How long the disturbed run took.
        quiet: How long the undisturbed run took on the same nodes.
        same: Whether both runs have the hashes of one process.
    """

    kills: dict[str, int]
    rounds: list[int]
    seconds: float
    quiet: float
    same: bool

    def row(self, name: str) -> str:
        """Returns a line of the table in docs/explanation/reliability_tests.md."""
        number = sum(self.kills.values())
        kinds = " | ".join(str(self.kills.get(kind, 0)) for kind in KINDS)
        lost = self.seconds - self.quiet
        each, same = lost / max(1, number), "yes" if self.same else "NO"
        return f"| {name} | {kinds} | {self.quiet:.0f} | {self.seconds:.0f} | {each:.1f} | {same} |"


@contextmanager
def three_nodes() -> Iterator[Any]:
    """Starts a head and two nodes of one CPU each."""
    from fedray.runtime import environment

    environment.prepare_process()
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "_system_config": HEALTH, "include_dashboard": False}
    cluster: Any = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        add_node(cluster)
    try:
        yield cluster
    finally:
        cluster.shutdown()


def add_node(cluster: Any, **options: Any) -> Any:
    """Adds a node. Tries four times, because a start may fail on a machine that is short of time."""
    for _ in range(4):
        try:
            return cluster.add_node(num_cpus=1, **options)
        except Exception as error:
            print(f"a node did not start: {error}", file=sys.stderr)
    raise RuntimeError("no node started in 4 tries")


def fedray(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fedray", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def actor_pids(name: str) -> list[int]:
    """Returns the process ids of an actor class below this process."""
    return [one.id for one in list_tree() if one.command.startswith(f"ray::{name}")]


def newest_round(out: Path) -> int:
    """Returns the round of the newest checkpoint, or -1 if there is none."""
    return max((int(path.name[6:]) for path in (out / "checkpoints").glob("round-[0-9]*")), default=-1)


def wait_until(over: Callable[[], bool], out: Path, what: str) -> None:
    """Waits until a condition holds. Fails if the run makes no progress."""
    moved, at = time.monotonic(), newest_round(out)
    while not over():
        if newest_round(out) != at:
            moved, at = time.monotonic(), newest_round(out)
        assert time.monotonic() - moved < PATIENCE, f"no new round in {PATIENCE:g} s while waiting for {what}"
        time.sleep(0.01)


def inject_fault(kind: str, cluster: Any, driver: subprocess.Popen[str], dice: random.Random) -> bool:
    """Causes one fault. Returns False if there was no process to hit."""
    if kind == "driver":
        driver.kill()
        driver.communicate()
        return True
    if kind in ("node", "raylet", "agent", "oom"):
        node = dice.choice(sorted(cluster.worker_nodes, key=id))
        if kind == "oom":
            cluster.remove_node(node, allow_graceful=False)
            node = starve(cluster, dice)
        elif kind != "node":
            kill_part(kind, node.all_processes["raylet"][0].process.pid)
            time.sleep(dice.uniform(0.0, 3.0))
        cluster.remove_node(node, allow_graceful=False)
        time.sleep(dice.uniform(0.0, 3.0))
        add_node(cluster)
        return True
    name, deadline = "Coordinator" if kind == "coordinator" else "Client", time.monotonic() + MOST_ABSENT
    while not (found := actor_pids(name)):  # after the fault before, actors are made again
        if driver.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    victim = dice.choice(found)
    os.kill(victim, signal.SIGSTOP if kind == "slow" else signal.SIGKILL)
    if kind == "slow":
        time.sleep(SLOW)
        os.kill(victim, signal.SIGCONT)
    return True


def starve(cluster: Any, dice: random.Random) -> Any:
    """Adds a node on which Ray's memory monitor kills whatever works there, and waits until it has."""
    node = add_node(cluster, env_vars=STARVED)
    raylet, seen = node.all_processes["raylet"][0].process.pid, set[int]()
    deadline = time.monotonic() + MOST_HUNGRY
    while time.monotonic() < deadline:
        there = {one.id for one in list_tree() if one.parent == raylet and one.command.startswith("ray::Client")}
        if seen - there:
            break
        seen |= there
        time.sleep(0.05)
    time.sleep(dice.uniform(0.0, 2.0))
    return node


def kill_part(kind: str, raylet: int) -> None:
    """Kills the raylet of a node, or an agent of it, without which the raylet ends."""
    agents = [one.id for one in list_tree() if one.parent == raylet and one.command.endswith("Agent")]
    for pid in [raylet] if kind == "raylet" else agents[:1]:
        os.kill(pid, signal.SIGKILL)


def has_reached(driver: subprocess.Popen[str], out: Path, at: int) -> bool:
    """Returns whether the run has a checkpoint of this round, or has ended."""
    return newest_round(out) >= at or driver.poll() is not None


def wait_for_summary(driver: subprocess.Popen[str], out: Path) -> dict[str, Any]:
    wait_until(lambda: driver.poll() is not None, out, "the end")
    _, errors = driver.communicate()
    assert driver.returncode == 0, errors
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


def hashes(summary: dict[str, Any]) -> tuple[str, str]:
    return summary["model_hash"], summary["state_hash"]


def run_disturbed(scenario: dict[str, Any], faults: list[str], folder: Path, seed: int) -> Outcome:
    """Runs a scenario on three nodes under these faults, each at a random moment of a random round."""
    dice, file, out = random.Random(seed), folder / "scenario.yaml", folder / "disturbed"
    file.write_text(yaml.safe_dump(scenario))
    want = hashes(wait_for_summary(fedray("run", file, "runtime=inline", "--out", folder / "one"), folder / "one"))
    kills: Counter[str] = Counter()
    fell: list[int] = []
    with three_nodes() as cluster:
        began = time.monotonic()
        quiet = wait_for_summary(
            fedray("run", file, "--address", cluster.address, "--out", folder / "quiet"), folder / "quiet"
        )
        spent = time.monotonic() - began
        began = time.monotonic()
        driver = fedray("run", file, "--address", cluster.address, "--out", out)
        last = max(1, scenario["rounds"] * 3 // 4)  # a fault takes seconds, in which the run goes on
        for kind, at in zip(faults, sorted(dice.randrange(last) for _ in faults), strict=True):
            wait_until(partial(has_reached, driver, out, at), out, f"round {at}")
            time.sleep(dice.uniform(0.0, 1.0))
            if driver.poll() is None and inject_fault(kind, cluster, driver, dice):
                kills[kind] += 1
                fell.append(newest_round(out))
                if kind == "driver":
                    driver = fedray("resume", out, "--address", cluster.address)
        done = wait_for_summary(driver, out)
        seconds = time.monotonic() - began
    return Outcome(dict(kills), fell, seconds, spent, hashes(done) == hashes(quiet) == want)


def shuffle_faults(number: int, seed: int, among: Sequence[str] = KINDS) -> list[str]:
    """Faults of all kinds in turn, in random order."""
    kinds = [among[i % len(among)] for i in range(number)]
    random.Random(seed).shuffle(kinds)
    return kinds


if __name__ == "__main__":
    name, number, seed, among = sys.argv[1:] + ["", "10", "0", ",".join(KINDS)][len(sys.argv) - 1 :]
    with tempfile.TemporaryDirectory() as place:
        faults = shuffle_faults(int(number), int(seed), among.split(","))
        outcome = run_disturbed(yaml.safe_load(Path(name).read_text()), faults, Path(place), int(seed))
    print(outcome.row(Path(name).stem), outcome.rounds)
