"""Memory of the coordinator, the client actors and the object store over a long run on Ray, by least squares.

    python tools/chaos/memory.py [ROUNDS [HIDDEN]]

With 32 hidden units messages travel in the calls, with 2,000 through the object store.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from disturb import actor_pids

import fedray

WARM_UP = 0.2  # of the rounds


def resident(pid: int) -> float:
    """Returns the memory of a process that is not shared, in MB."""
    for line in (Path("/proc") / str(pid) / "status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return 0.0


def stored() -> float:
    """Bytes in the object stores of the cluster, MB."""
    import ray

    cluster: Any = ray  # its resource functions are not annotated
    total, free = cluster.cluster_resources(), cluster.available_resources()
    return float(total["object_store_memory"] - free.get("object_store_memory", 0.0)) / 2**20


def main(rounds: int, hidden: int) -> None:
    seen: dict[str, list[tuple[int, float]]] = defaultdict(list)

    def watch(shown: dict[str, Any]) -> None:
        if shown["round"] < WARM_UP * rounds or shown["round"] >= rounds:
            return
        for name in ("Coordinator", "Client"):
            seen[name].append((shown["round"], sum(resident(pid) for pid in actor_pids(name))))
        seen["object store"].append((shown["round"], stored()))

    keys = {
        "rounds": rounds,
        "data": {"name": "digits"},
        "model": {"name": "mlp", "hidden": [hidden]},
        "clients": {"number": 100, "actors": 2},
        "participation": {"per_round": 10},
        "method": {"name": "feddyn"},
        "evaluate": {"every": 10},
        "checkpoint": {"every": 50},
    }
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        fedray.run(keys, out=Path(folder) / "run", watch=watch)
    for name, points in seen.items():
        at, size = np.array(points).T
        slope = float(np.polyfit(at, size, 1)[0]) * 100
        print(f"| {name} | {size[0]:.0f} at round {at[0]:.0f} | {size[-1]:.0f} at round {at[-1]:.0f} | {slope:+.2f} |")
    print(f"{rounds} rounds in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    given = [int(value) for value in sys.argv[1:]]
    main(*(given + [1000, 32][len(given) :]))
