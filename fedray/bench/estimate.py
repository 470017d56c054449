"""What a round takes on a cluster that is not here, from constants that `fedray.bench.scale` measures.

`python -m fedray.bench.estimate` prints the last table of docs/scale.md.

Example:
    >>> one = estimate_round(Deployment(nodes=100, actors=100, models=5, numbers=21_300_000, jobs=1000))
    >>> round(one.replies, 1), round(one.replies * GB / LINK, 1)  # GB, seconds
    (17.7, 14.2)
"""

from __future__ import annotations

from typing import NamedTuple

PLAN = 0.6e-6  # seconds of a job at the coordinator: plan, virtual clock, chunks (`coordinator` lines)
ADD = 0.6e-9  # seconds of a number of a reply, to add it (`coordinator` lines)
LINK = 1.25e9  # bytes/s of the coordinator's network: 10 Gbit/s
PAGE = 1 << 20  # bytes of models that travel together
LEAST = 1 << 20  # bytes of a model's sums, from which on those of a node are added there (`exchange` lines)
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
        node: GB of sums if every node sent its own.
        each: GB of sums if every actor sent its own.
        kept: GB of sums that the coordinator holds.
        seconds: Of planning, broadcast, sums on their way and adding, on the nodes and at the coordinator.
    """

    broadcast: float
    replies: float
    node: float
    each: float
    kept: float
    seconds: float


def estimate_round(place: Deployment) -> Estimate:
    """What a round takes: jobs lie in the order of their models, so that A neighbors have A + K - 1 shares of models.

    The actors of a node are neighbors, and where a model is large their sums are added there.
    """
    nodes, actors, models, d, jobs = place
    here, apart = (min(number + models - 1, number * models) for number in (nodes, actors))
    adds = actors > nodes and 8 * d >= LEAST
    shares = here if adds else apart
    down = max(4.0 * here * d, nodes * min(4.0 * models * d, PAGE)) + 24.0 * jobs
    up, node, each = 8.0 * shares * d, 8.0 * here * d, 8.0 * apart * d
    seconds = jobs * PLAN + (down + up) / LINK + (shares + adds * apart / nodes) * d * ADD
    return Estimate(down / GB, up / GB, node / GB, each / GB, 8.0 * models * d / GB, seconds)


PLACES = {
    "perceptron, 1,600 actors": Deployment(100, 1600, 5, 3_760, 100_000),
    "perceptron, 100 actors of 16 CPUs": Deployment(100, 100, 5, 3_760, 100_000),
    "ResNet-34, 100 actors": Deployment(100, 100, 5, 21_300_000, 1_000),
    "ResNet-34, 1,000 actors of a GPU": Deployment(100, 1000, 5, 21_300_000, 10_000),
}


def print_table() -> None:
    """Prints the estimates as a Markdown table."""
    print("| K = 5, 100 nodes; GB | broadcast | replies | of each node | of each actor | kept | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, place in PLACES.items():
        print(f"| {name} | " + " | ".join(f"{value:.3g}" for value in estimate_round(place)) + " |")


if __name__ == "__main__":
    print_table()
