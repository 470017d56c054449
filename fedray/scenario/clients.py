"""The keys that say who there is and who trains what: tiers of devices, clients, participation, schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from fedray.core import options as validators
from fedray.core.options import (
    NameSpec,
    Needs,
    Option,
    either,
    flag,
    gpu_share,
    key,
    map_of,
    maybe,
    one_of,
    real,
    section,
    text,
    whole,
)
from fedray.core.types import Mode, Staleness

NO_ROUNDS = Needs("participation.mode", ("semi", "buffered", "async"))


@dataclass(frozen=True)
class TierKeys:
    """A class of devices.

    Attributes:
        share: the tier's share of the clients that are in no tier with a `number`. A tier with neither key gets the
            clients that are left.
        number: number of clients in the tier.
        models_per_round: how many models a client trains in a round that it takes part in, or `all`.
        num_cpus: CPUs that an actor of the tier reserves; None: one, or the largest share with which all actors fit.
        num_gpus: GPUs that an actor reserves: 0, 1/n or 1.
        resources: custom resources of Ray that an actor reserves.
        seconds_per_step: virtual seconds of an optimizer step.
        seconds_per_sample: virtual seconds of each sample in a step.
        spread: standard deviation of the logarithm of a client's slowness (lognormal).
        uplink: bandwidth of a client's uploads, bytes/s.
        downlink: bandwidth of a client's downloads, bytes/s.
        latency: virtual seconds that a transfer takes beside its bytes.
        side_by_side: whether a client trains its models of a round at the same time.
        width: the share of the channels of every hidden layer, or of the blocks (DepthFL), that a client trains.
    """

    share: float | None = key(None, maybe(real("[0, 1]")))
    number: int | None = key(None, maybe(whole(0, 10**9)))
    models_per_round: int | str = key(1, either("all", whole(1, 10**4)))
    num_cpus: float | None = key(None, maybe(real("[0, 10000]")))
    num_gpus: float = key(0.0, gpu_share)
    resources: dict[str, float] = key({}, map_of(real("(0, 1e9]")))
    seconds_per_step: float = key(0.01, real("[0, inf)"))
    seconds_per_sample: float = key(0.0, real("[0, inf)"))
    spread: float = key(0.0, real("[0, 10]"))
    uplink: float = key(1e6, real("(0, inf)"))
    downlink: float = key(1e7, real("(0, inf)"))
    latency: float = key(0.0, real("[0, inf)"))
    side_by_side: bool = key(False, flag)
    width: float = key(1.0, real("(0, 1]"))


@dataclass(frozen=True)
class ClientKeys:
    """The population, and how clients are packed into actors.

    Attributes:
        number: number of clients, N; default: what the tiers add up to, else as many as the data or a natural partition
            have, else the method's own (100; 10 of fedag and random_walk, 5 of stacking, say).
        per_actor: how many clients an actor hosts, or `auto`.
        actors: how many actors the run has, or `auto`.
        trace: path of a CSV or Parquet file of measured devices (`docs/how-to/traces.md`).
        profile: a population of devices with published figures, drawn for each client: `phones`
            (`docs/how-to/traces.md`).
        availability: when clients can be asked: `always`, or `diurnal` (each for half of every day).
        device: where tiers with GPUs compute: `auto`: on these GPUs; `cpu`: GPUs are reserved and not used, to try out
            on any machine how actors share them.
        tf32: whether matrix products and convolutions on GPUs round their inputs to 10 bits (TF32): deep networks train
            two to four times as fast, and to other numbers.
        tiers: the classes of devices by name.
    """

    number: int | None = key(None, maybe(whole(1, 10**9)))
    per_actor: int | str = key("auto", either("auto", whole(1, 10**9)))
    actors: int | str = key("auto", either("auto", whole(1, 10**5)))
    trace: str | None = key(None, maybe(text))
    profile: str | None = key(None, maybe(one_of("phones")))
    availability: str = key("always", one_of("always", "diurnal"))
    device: str = key("auto", validators.device)
    tf32: bool = key(False, flag)
    tiers: dict[str, TierKeys] = section(TierKeys, {}, example={"number": 10})


@dataclass(frozen=True)
class SelectionKeys:
    """How the participants of a round are chosen.

    Attributes:
        name: name of the selection (`fedray list selections`).
        object: what fedray writes in place of the name where a Python function chooses.
        options: the selection's own options (candidates, exploration, ...).
    """

    name: str = key("uniform", text)
    object: str | None = key(None, maybe(text))
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ParticipationKeys:
    """Who takes part in a round.

    Attributes:
        selection: how the participants are chosen.
        per_round: how many clients take part.
        fraction: the share of the clients that takes part; instead of `per_round`; default: 1, unless that is set.
        overcommit: how many times as many clients are invited as the round waits for; later ones are not used.
        dropout: probability that a participant drops out and sends nothing.
        deadline: virtual seconds after which the round waits for no client.
        mode: `sync`: the server waits for its participants, round by round; `semi`: it steps every `tick` seconds with
            what has arrived; `buffered`: when a model has `goal` uploads (FedBuff); `async`: at every arrival
            (FedAsync).
        concurrency: how many clients train at the same time without rounds; None: all.
        goal: uploads of a model that make the server step.
        tick: virtual seconds between two steps of the server.
        alpha: weight of an arrival that is mixed into its model.
        staleness: what an upload weighs whose model took tau steps since it started: `constant`: 1; `polynomial`:
            `(1 + tau) ** -a`; `hinge`: 1 up to b, then `1 / (a (tau - b) + 1)`.
        staleness_a: how fast the weight falls: a in its formula.
        staleness_b: up to which staleness the weight is 1: b in its formula, in server steps.
    """

    selection: SelectionKeys = section(SelectionKeys)
    per_round: int | None = key(None, maybe(whole(1, 10**9)))
    fraction: float | None = key(None, maybe(real("(0, 1]")))
    overcommit: float = key(1.0, real("[1, 100]"))
    dropout: float = key(0.0, real("[0, 1)"))
    deadline: float | None = key(None, maybe(real("(0, inf)")))
    mode: Literal["sync"] | Mode = key("sync", one_of("sync", *get_args(Mode)))
    concurrency: int | None = key(None, maybe(whole(1, 10**9)), NO_ROUNDS)
    goal: int = key(10, whole(1, 10**9), Needs("participation.mode", ("buffered",)))
    tick: float = key(10.0, real("(0, inf)"), Needs("participation.mode", ("semi",)))
    alpha: float = key(0.6, real("(0, 1]"), Needs("participation.mode", ("async",)))
    staleness: Staleness = key("polynomial", one_of(*get_args(Staleness)), NO_ROUNDS)
    staleness_a: float = key(0.5, real("(0, 1000]"), Needs("participation.staleness", ("polynomial", "hinge")))
    staleness_b: float = key(4.0, real("[0, 1e6]"), Needs("participation.staleness", ("hinge",)))


@dataclass(frozen=True)
class ScheduleKeys:
    """Who trains what.

    Attributes:
        kind: kind of schedule: which rule assigns models to participants (`fedray list schedules`).
        object: what fedray writes where a Python function assigns the models; `kind` is then not read.
        rows: what a row of the permutation is, which meets every model once in K rounds: `client` (default with full
            participation), `slot` (a place among the participants, who are drawn uniformly; default otherwise), or
            `stratum` (a place filled by one of a fixed set of clients, as in SHEFL). With `client` and partial
            participation a client meets the models of the rounds it takes part in.
    """

    kind: str = key("permutation", text)
    object: str | None = key(None, maybe(text))
    rows: str = key("client", one_of("client", "slot", "stratum"))


# ---------------------------------------------------------------------------------------------------------------------
# The client selections and schedules as scenarios know them: text and options.

SELECTION_SPECS: Mapping[str, NameSpec] = {
    "uniform": NameSpec("every client of a tier with the same odds, without replacement"),
    "examples": NameSpec("odds in proportion to the samples of a client, without replacement"),
    "power_of_choice": NameSpec(
        "of d candidates the clients with the largest known losses (Cho et al. 2020, rpow-d)",
        {"candidates": Option(None, maybe(whole(1, 10**9)))},
    ),
    "oort": NameSpec(
        "by statistical utility and speed, with exploration (Lai et al. 2021)",
        {"exploration": Option(0.9, real("[0, 1]")), "penalty": Option(2.0, real("[0, 100]"))},
    ),
    "round_robin": NameSpec("the clients of all tiers in turn, by their ids"),
    "fair": NameSpec("the same clients for an age of K rounds, every client in as many ages as the others"),
}
SCHEDULE_SPECS: Mapping[str, NameSpec] = {
    "permutation": NameSpec("every row trains every model once in K rounds (Fed-ensemble)"),
    "random": NameSpec("uniformly random models in every round"),
    "balanced": NameSpec("cyclic shifts of one permutation, equally many jobs of each model"),
    "adaptive": NameSpec("odds grow with a model's last loss at the client"),
    "walk": NameSpec("models walk over a graph of clients, without a server"),
}
READS_LOSSES = ("power_of_choice", "oort")  # and a user's own, which may


# ---------------------------------------------------------------------------------------------------------------------
# The keys of a graph of clients, for methods without a server.

_RANDOM = Needs("graph.kind", ("erdos_renyi", "watts_strogatz"))
_SMALL_WORLD = Needs("graph.kind", ("watts_strogatz",))


@dataclass(frozen=True)
class GraphKeys:
    """Where models walk when there is no server.

    Attributes:
        kind: kind of the graph.
        transition: which neighbor is next: uniform, lazy, metropolis.
        probability: probability of an edge (erdos_renyi; default: 2 log(N) / N), or that an edge is rewired
            (watts_strogatz; default: 0.1).
        neighbours: neighbors of each node before rewiring (watts_strogatz).
        edges: file of a graph of your own, CSV or Parquet: the columns `node` and `neighbour`, a row for each edge.
        node_failure: probability that a node is out of order in a step.
        edge_failure: probability that an edge is cut in a step.
        failures: file of a table of failures, CSV or Parquet: the columns `first` and `last` (steps, from 0), `node`,
            and `neighbour` where only the edge to it is cut.
    """

    kind: str = key("ring", one_of("ring", "complete", "torus", "erdos_renyi", "watts_strogatz", "star", "edges"))
    transition: str = key("uniform", one_of("uniform", "lazy", "metropolis"))
    probability: float | None = key(None, maybe(real("[0, 1]")), _RANDOM)
    neighbours: int = key(4, whole(2, 10_000), _SMALL_WORLD)
    edges: str | None = key(None, maybe(text), Needs("graph.kind", ("edges",)))
    node_failure: float = key(0.0, real("[0, 1)"))
    edge_failure: float = key(0.0, real("[0, 1)"))
    failures: str | None = key(None, maybe(text))
