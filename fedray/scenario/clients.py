"""The keys of a scenario for the population and for who trains what: tiers, clients, participation, schedule, graph."""

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
    """A tier: a class of devices with the same resources.

    Attributes:
        share: the share of this tier in the clients that belong to no tier with a `number`. A tier without `share` and
            `number` gets the remaining clients.
        number: the number of clients in the tier.
        models_per_round: the number of models that a participating client trains in a round, or `all`.
        num_cpus: the CPUs that each actor of the tier reserves. None: one, or the largest share with which all actors
            fit on the machine.
        num_gpus: the GPUs that each actor of the tier reserves: 0, 1/n or 1.
        resources: the custom resources of Ray that each actor of the tier reserves.
        seconds_per_step: the virtual seconds that an optimizer step takes.
        seconds_per_sample: the virtual seconds that each sample of a step takes in addition.
        spread: the standard deviation of the logarithm of the factor by which a client is slower (lognormal).
        uplink: the bandwidth of a client for uploads, in bytes/s.
        downlink: the bandwidth of a client for downloads, in bytes/s.
        latency: the virtual seconds that each transfer takes in addition to the time for its bytes.
        side_by_side: whether a client with several models in a round trains them at the same time.
        width: the share of the network that a client trains: of the channels of every hidden layer, or of the blocks
            (DepthFL).
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
        number: the number of clients, N. Default: the sum over the tiers; else the number of clients in the data or in
            a natural partition; else the default of the method (100, but 10 for `fedag` and 5 for `stacking`, say).
        per_actor: the number of clients that an actor hosts, or `auto`.
        actors: the number of actors of the run, or `auto`.
        trace: path of a CSV or Parquet file of measured devices (`docs/how-to/traces.md`).
        profile: name of a population of devices with published speeds, from which the device of each client is drawn:
            `phones` (`docs/how-to/traces.md`).
        availability: when a client can take part: `always`, or `diurnal` (each client for half of every day).
        device: where tiers with GPUs compute. `auto`: on the GPUs; `cpu`: on CPUs. With `cpu` GPUs are reserved and not
            used, to try out on any machine how actors share GPUs.
        tf32: whether matrix products and convolutions on GPUs round their inputs to 10 bits (TF32). Deep networks then
            train two to four times as fast, and the resulting numbers differ.
        tiers: the tiers of devices, by name.
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
        object: the name of the Python function that chooses in place of `name`, written by fedray.
        options: the options of the selection itself (candidates, exploration, ...).
    """

    name: str = key("uniform", text)
    object: str | None = key(None, maybe(text))
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ParticipationKeys:
    """Which clients take part in a round.

    Attributes:
        selection: the section that says how the participants of a round are chosen.
        per_round: the number of clients that take part in a round.
        fraction: the share of the clients that take part in a round, instead of `per_round`; default: 1.
        overcommit: the number of invited clients, as a multiple of the number that the round waits for. Uploads of
            later clients are not used.
        dropout: the probability that a participant drops out of a round and sends nothing.
        deadline: the virtual seconds after which a round waits for no further client.
        mode: when the server makes a step. `sync`: in each round, after its participants; `semi`: every `tick` seconds,
            with the uploads that have arrived; `buffered`: when a model has `goal` uploads (FedBuff); `async`: at every
            arrival of an upload (FedAsync).
        concurrency: in the modes without rounds: the number of clients that train at the same time; None: all.
        goal: in the mode `buffered`: the number of uploads of a model after which the server makes a step.
        tick: in the mode `semi`: the virtual seconds between two steps of the server.
        alpha: in the mode `async`: the weight with which an arriving upload is mixed into the server's model.
        staleness: the formula for the weight of an upload with staleness tau, the server steps of its model since the
            upload started. `constant`: 1; `polynomial`: `(1 + tau) ** -a`; `hinge`: 1 up to b, then `1 / (a (tau - b) +
            1)`.
        staleness_a: a in the formula of `staleness`: how fast the weight of an upload falls.
        staleness_b: b in the formula of `hinge`: the staleness, in server steps, up to which an upload keeps the weight
            1.
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
    """Which client trains which model.

    Attributes:
        kind: name of the schedule, the rule that assigns models to participants (`fedray list schedules`).
        object: the name of the Python function that assigns the models, written by fedray; `kind` then has no effect.
        rows: what a row of the permutation stands for; each row trains every model once in K rounds. `client`: a client
            (default with full participation); `slot`: a position among the participants, who are drawn uniformly
            (default otherwise); `stratum`: a position that is filled from a fixed set of clients, as in SHEFL. With
            `client` and partial participation a client trains only the models of the rounds in which it takes part.
    """

    kind: str = key("permutation", text)
    object: str | None = key(None, maybe(text))
    rows: str = key("client", one_of("client", "slot", "stratum"))


# ---------------------------------------------------------------------------------------------------------------------
# The client selections and schedules that a scenario may name: text and options.

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
    """The graph of clients over which models walk when there is no server.

    Attributes:
        kind: the kind of graph.
        transition: the rule by which a model moves to a neighbor: `uniform`, `lazy` or `metropolis`.
        probability: for `erdos_renyi`: the probability of an edge (default: 2 log(N) / N); for `watts_strogatz`: the
            probability that an edge is rewired (default: 0.1).
        neighbours: for `watts_strogatz`: the number of neighbors of each node before rewiring.
        edges: for `edges`: path of a CSV or Parquet file with your own graph: the columns `node` and `neighbour`, and a
            row for each edge.
        node_failure: the probability that a node is out of order in a step.
        edge_failure: the probability that an edge is cut in a step.
        failures: path of a CSV or Parquet file with a table of failures: the columns `first` and `last` (steps, from
            0), `node`, and `neighbour` if only the edge from the node to this neighbor is cut.
    """

    kind: str = key("ring", one_of("ring", "complete", "torus", "erdos_renyi", "watts_strogatz", "star", "edges"))
    transition: str = key("uniform", one_of("uniform", "lazy", "metropolis"))
    probability: float | None = key(None, maybe(real("[0, 1]")), _RANDOM)
    neighbours: int = key(4, whole(2, 10_000), _SMALL_WORLD)
    edges: str | None = key(None, maybe(text), Needs("graph.kind", ("edges",)))
    node_failure: float = key(0.0, real("[0, 1)"))
    edge_failure: float = key(0.0, real("[0, 1)"))
    failures: str | None = key(None, maybe(text))
