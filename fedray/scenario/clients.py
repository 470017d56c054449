"""The keys that say who there is and who trains what: tiers of devices, clients, participation, schedule."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, Literal, get_args

from pydantic import ConfigDict, PlainValidator
from pydantic.dataclasses import dataclass

from fedray.core import validators
from fedray.core.spec import Needs
from fedray.core.types import Mode, Staleness
from fedray.core.validators import either, flag, gpu_share, label, map_of, maybe, one_of, real, text, whole

_STRICT = ConfigDict(extra="forbid")
_V = PlainValidator
NO_ROUNDS = Needs("participation.mode", ("semi", "buffered", "async"))


@dataclass(frozen=True, config=_STRICT)
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
        width: the share of the channels of every hidden layer that a client trains.
    """

    share: Annotated[float | None, _V(maybe(real("[0, 1]")))] = None
    number: Annotated[int | None, _V(maybe(whole(0, 10**9)))] = None
    models_per_round: Annotated[int | str, _V(either("all", whole(1, 10**4)))] = 1
    num_cpus: Annotated[float | None, _V(maybe(real("[0, 10000]")))] = None
    num_gpus: Annotated[float, _V(gpu_share)] = 0.0
    resources: Annotated[dict[str, float], _V(map_of(real("(0, 1e9]")))] = field(default_factory=dict)
    seconds_per_step: Annotated[float, _V(real("[0, inf)"))] = 0.01
    seconds_per_sample: Annotated[float, _V(real("[0, inf)"))] = 0.0
    spread: Annotated[float, _V(real("[0, 10]"))] = 0.0
    uplink: Annotated[float, _V(real("(0, inf)"))] = 1e6
    downlink: Annotated[float, _V(real("(0, inf)"))] = 1e7
    latency: Annotated[float, _V(real("[0, inf)"))] = 0.0
    side_by_side: Annotated[bool, _V(flag)] = False
    width: Annotated[float, _V(real("(0, 1]"))] = 1.0


@dataclass(frozen=True, config=_STRICT)
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

    number: Annotated[int | None, _V(maybe(whole(1, 10**9)))] = None
    per_actor: Annotated[int | str, _V(either("auto", whole(1, 10**9)))] = "auto"
    actors: Annotated[int | str, _V(either("auto", whole(1, 10**5)))] = "auto"
    trace: Annotated[str | None, _V(maybe(text))] = None
    profile: Annotated[str | None, _V(maybe(one_of("phones")))] = None
    availability: Annotated[str, _V(one_of("always", "diurnal"))] = "always"
    device: Annotated[str, _V(validators.device)] = "auto"
    tf32: Annotated[bool, _V(flag)] = False
    tiers: dict[Annotated[str, _V(label)], TierKeys] = field(default_factory=dict)


@dataclass(frozen=True, config=_STRICT)
class SelectionKeys:
    """How the participants of a round are chosen.

    Attributes:
        name: name of the selection (`fedray list selections`).
        object: what fedray writes in place of the name where a Python function chooses.
        options: the selection's own options (candidates, exploration, ...).
    """

    name: Annotated[str, _V(text)] = "uniform"
    object: Annotated[str | None, _V(maybe(text))] = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, config=_STRICT)
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

    selection: SelectionKeys = field(default_factory=SelectionKeys)
    per_round: Annotated[int | None, _V(maybe(whole(1, 10**9)))] = None
    fraction: Annotated[float | None, _V(maybe(real("(0, 1]")))] = None
    overcommit: Annotated[float, _V(real("[1, 100]"))] = 1.0
    dropout: Annotated[float, _V(real("[0, 1)"))] = 0.0
    deadline: Annotated[float | None, _V(maybe(real("(0, inf)")))] = None
    mode: Annotated[Literal["sync"] | Mode, _V(one_of("sync", *get_args(Mode)))] = "sync"
    concurrency: Annotated[int | None, _V(maybe(whole(1, 10**9))), NO_ROUNDS] = None
    goal: Annotated[int, _V(whole(1, 10**9)), Needs("participation.mode", ("buffered",))] = 10
    tick: Annotated[float, _V(real("(0, inf)")), Needs("participation.mode", ("semi",))] = 10.0
    alpha: Annotated[float, _V(real("(0, 1]")), Needs("participation.mode", ("async",))] = 0.6
    staleness: Annotated[Staleness, _V(one_of(*get_args(Staleness))), NO_ROUNDS] = "polynomial"
    staleness_a: Annotated[float, _V(real("(0, 1000]")), Needs("participation.staleness", ("polynomial", "hinge"))] = (
        0.5
    )
    staleness_b: Annotated[float, _V(real("[0, 1e6]")), Needs("participation.staleness", ("hinge",))] = 4.0


@dataclass(frozen=True, config=_STRICT)
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

    kind: Annotated[str, _V(text)] = "permutation"
    object: Annotated[str | None, _V(maybe(text))] = None
    rows: Annotated[str, _V(one_of("client", "slot", "stratum"))] = "client"
