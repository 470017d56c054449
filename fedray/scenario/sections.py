"""Declares the keys of a scenario for clients, participation and graph, and the data sets and partitions.

Example:
    >>> sorted(set(PARTITION_SPECS["dirichlet"].options) - CLIENT_KINDS.keys())
    ['allow_empty', 'alpha', 'cap', 'min_rows']
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from fedray.core import options as opt
from fedray.core.types import Mode, Staleness

# ---------------------------------------------------------------------------------------------------------------------
# The keys for the population, and for the choice of participants: tiers, clients, participation.

NO_ROUNDS = opt.Needs("participation.mode", ("semi", "buffered", "async"))


@dataclass(frozen=True)
class TierKeys:
    """A tier, which is a class of devices with the same resources.

    Attributes:
        share: The tier's share of the clients that are in no tier with a `number`. Tiers without `share` and `number`
            get equal parts of the rest.
        number: The number of clients in the tier.
        models_per_round: The number of models that a participating client trains in a round, or `all`.
        num_cpus: The number of CPUs that each actor of the tier reserves. None means one CPU. If there are too few
            CPUs, None means the largest share of a CPU with which all actors fit on the machine.
        num_gpus: The GPUs that each actor of the tier reserves: 0, 1/n or 1. If no tier reserves GPUs, `clients.device`
            decides.
        resources: The custom resources of Ray that each actor of the tier reserves.
        seconds_per_step: The virtual seconds that an optimizer step takes.
        seconds_per_sample: The virtual seconds that an optimizer step takes in addition for each of its samples.
        spread: The spread of the speeds of clients. The compute time of a client is multiplied by a lognormal random
            number, and `spread` is the standard deviation of the logarithm of this number.
        uplink: The bandwidth of a client for uploads, in bytes/s.
        downlink: The bandwidth of a client for downloads, in bytes/s.
        latency: The virtual seconds that each transfer takes in addition to the time for its bytes. A transfer of 0
            bytes takes no time.
        side_by_side: Whether a client with several models in a round trains them at the same time.
        width: The share of the network that a client trains. It is the share of the channels of every hidden layer, or
            of the blocks of the network (DepthFL).
        epochs: The number of passes of a client of the tier over its samples in a round. The default is `local.epochs`.
        steps: The number of optimizer steps of a client of the tier in a round. The default is `local.steps`.
    """

    share: float | None = opt.key(None, opt.maybe(opt.real("[0, 1]")))
    number: int | None = opt.key(None, opt.maybe(opt.whole(0, 10**9)))
    models_per_round: int | str = opt.key(1, opt.either("all", opt.whole(1, 10**4)))
    num_cpus: float | None = opt.key(None, opt.maybe(opt.real("[0, 10000]")))
    num_gpus: float = opt.key(0.0, opt.gpu_share)
    resources: dict[str, float] = opt.key({}, opt.map_of(opt.real("(0, 1e9]")))
    seconds_per_step: float = opt.key(0.01, opt.real("[0, inf)"))
    seconds_per_sample: float = opt.key(0.0, opt.real("[0, inf)"))
    spread: float = opt.key(0.0, opt.real("[0, 10]"))
    uplink: float = opt.key(1e6, opt.real("(0, inf)"))
    downlink: float = opt.key(1e7, opt.real("(0, inf)"))
    latency: float = opt.key(0.0, opt.real("[0, inf)"))
    side_by_side: bool = opt.key(False, opt.flag)
    width: float = opt.key(1.0, opt.real("(0, 1]"))
    epochs: int | None = opt.key(None, opt.maybe(opt.whole(1, 10**6)))
    steps: int | None = opt.key(None, opt.maybe(opt.whole(1, 10**7)))


@dataclass(frozen=True)
class ClientKeys:
    """The population of clients, and the actors that host the clients.

    Attributes:
        number: The number of clients, N. If all tiers have a `number`, the default is the sum of these numbers.
            Otherwise it is the number of clients in the data. If this is unknown, the default is 10 for `fedag`, 5 for
            `stacking`, and 100 for most other methods.
        per_actor: The number of clients that an actor hosts, or `auto`.
        actors: The number of actors of the run, or `auto`.
        trace: Path of a CSV or Parquet file of measured devices (`docs/how-to/traces.md`).
        profile: Name of a population of devices with published speeds, from which the device of each client is drawn.
            The only name is `phones` (`docs/how-to/traces.md`).
        availability: The times at which a client can take part. With `diurnal` each client can take part for half of
            every day.
        device: The devices on which clients are trained. `auto` takes the GPUs that tiers reserve (`num_gpus`). If no
            tier reserves GPUs, `auto` takes the GPUs of this machine if they are expected to be faster than its
            processors. `cpu` takes processors and leaves reserved GPUs unused. With `cpu` you can test without GPUs
            how actors would share them.
        tf32: Whether matrix products and convolutions on GPUs round the mantissas of their inputs to 10 bits (TF32).
            Deep networks then train two to four times as fast, and the results differ slightly.
        tiers: The tiers of devices, by name.
    """

    number: int | None = opt.key(None, opt.maybe(opt.whole(1, 10**9)))
    per_actor: int | str = opt.key("auto", opt.either("auto", opt.whole(1, 10**9)))
    actors: int | str = opt.key("auto", opt.either("auto", opt.whole(1, 10**5)))
    trace: str | None = opt.key(None, opt.maybe(opt.text))
    profile: str | None = opt.key(None, opt.maybe(opt.one_of("phones")))
    availability: str = opt.key("always", opt.one_of("always", "diurnal"))
    device: str = opt.key("auto", opt.device)
    tf32: bool = opt.key(False, opt.flag)
    tiers: dict[str, TierKeys] = opt.section(TierKeys, {}, example={"number": 10})


@dataclass(frozen=True)
class SelectionKeys:
    """The rule that chooses the participants of a round.

    Attributes:
        name: Name of the selection (`fedray list selections`).
        object: The name of the Python function that chooses the participants instead. fedray writes this key.
        options: The options of the selection itself (candidates, exploration, ...).
    """

    name: str = opt.key("uniform", opt.text)
    object: str | None = opt.key(None, opt.maybe(opt.text))
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ParticipationKeys:
    """The participation of clients in rounds, or in training without rounds.

    Attributes:
        selection: The section that says how the participants of a round are chosen.
        per_round: The number of clients that take part in a round.
        fraction: The share of the clients that take part in a round, instead of `per_round`. The default is 1.
        overcommit: The number of invited clients, as a multiple of the number of clients that the round waits for.
            Uploads that arrive after the round are not used.
        dropout: The probability that a participant drops out of a round and sends nothing.
        partial: The share of a round's participants that may train less, as the stragglers of FedProx. Each such client
            trains for a random number of its epochs, or of its `local.steps`, between 1 and all.
        deadline: The virtual seconds of a round after which the server does not wait for further clients. In the modes
            without rounds, the time counts from the beginning of a client's turn, and later uploads are lost.
        mode: The times at which the server makes a step. With `sync` the server makes a step at the end of each round.
            With `semi` it makes a step every `tick` virtual seconds, with the uploads that have arrived. With
            `buffered` it makes a step when a model has `goal` uploads (FedBuff), and with `async` when any upload
            arrives (FedAsync).
        concurrency: The number of clients that train at the same time, in the modes without rounds. None means all
            clients.
        goal: The number of uploads of a model after which the server makes a step, in the mode `buffered`.
        tick: The virtual seconds between two steps of the server, in the mode `semi`.
        alpha: The weight with which an arriving upload is mixed into the server's model, in the mode `async`.
        staleness: The formula for the weight of an upload with staleness tau. tau is the number of steps that the
            server made for the model since the client began to train. `constant` is 1. `polynomial` is
            `(1 + tau) ** -a`. `hinge` is 1 for tau up to b, and `1 / (a (tau - b) + 1)` for a larger tau.
        max_staleness: The largest staleness of an upload that the server uses. The server receives staler uploads and
            counts their bytes, but does not use them (status `stale`). None means no limit.
        staleness_a: The number a in the formula of `staleness`. The larger it is, the faster weights fall.
        staleness_b: The number b in the formula `hinge`. An upload with a staleness of at most b server steps has
            weight 1.
    """

    selection: SelectionKeys = opt.section(SelectionKeys)
    per_round: int | None = opt.key(None, opt.maybe(opt.whole(1, 10**9)))
    fraction: float | None = opt.key(None, opt.maybe(opt.real("(0, 1]")))
    overcommit: float = opt.key(1.0, opt.real("[1, 100]"))
    dropout: float = opt.key(0.0, opt.real("[0, 1)"))
    partial: float = opt.key(0.0, opt.real("[0, 1]"))
    deadline: float | None = opt.key(None, opt.maybe(opt.real("(0, inf)")))
    mode: Literal["sync"] | Mode = opt.key("sync", opt.one_of("sync", *get_args(Mode)))
    concurrency: int | None = opt.key(None, opt.maybe(opt.whole(1, 10**9)), NO_ROUNDS)
    goal: int = opt.key(10, opt.whole(1, 10**9), opt.Needs("participation.mode", ("buffered",)))
    tick: float = opt.key(10.0, opt.real("(0, inf)"), opt.Needs("participation.mode", ("semi",)))
    alpha: float = opt.key(0.6, opt.real("(0, 1]"), opt.Needs("participation.mode", ("async",)))
    staleness: Staleness = opt.key("polynomial", opt.one_of(*get_args(Staleness)), NO_ROUNDS)
    max_staleness: int | None = opt.key(None, opt.maybe(opt.whole(0, 10**9)), NO_ROUNDS)
    staleness_a: float = opt.key(
        0.5, opt.real("(0, 1000]"), opt.Needs("participation.staleness", ("polynomial", "hinge"))
    )
    staleness_b: float = opt.key(4.0, opt.real("[0, 1e6]"), opt.Needs("participation.staleness", ("hinge",)))


# ---------------------------------------------------------------------------------------------------------------------
# The client selections and schedules that a scenario may name: text and options.

SELECTION_SPECS: Mapping[str, opt.NameSpec] = {
    "uniform": opt.NameSpec("every client of a tier with the same odds, without replacement"),
    "examples": opt.NameSpec("odds in proportion to the samples of a client, without replacement"),
    "power_of_choice": opt.NameSpec(
        "the clients with the largest known losses among d candidates (Cho et al. 2020, rpow-d)",
        {"candidates": opt.Option(None, opt.maybe(opt.whole(1, 10**9)))},
    ),
    "oort": opt.NameSpec(
        "by statistical utility and speed, with exploration (Lai et al. 2021)",
        {"exploration": opt.Option(0.9, opt.real("[0, 1]")), "penalty": opt.Option(2.0, opt.real("[0, 100]"))},
    ),
    "round_robin": opt.NameSpec("the clients of all tiers in turn, by their ids"),
    "fair": opt.NameSpec("the same clients for an age of K rounds; all clients take part in equally many ages"),
}
SCHEDULE_SPECS: Mapping[str, opt.NameSpec] = {
    "permutation": opt.NameSpec("every row trains every model once in K rounds (Fed-ensemble)"),
    "random": opt.NameSpec("uniformly random models in every round"),
    "balanced": opt.NameSpec("cyclic shifts of one permutation, equally many jobs of each model"),
    "adaptive": opt.NameSpec("odds grow with a model's last loss at the client"),
    "walk": opt.NameSpec("models walk over a graph of clients, without a server"),
}
IGNORES_LOSSES = ("uniform", "examples", "round_robin", "fair")  # selections to which the server tells no losses


# ---------------------------------------------------------------------------------------------------------------------
# The keys of a graph of clients, for methods without a server.

_RANDOM = opt.Needs("graph.kind", ("erdos_renyi", "watts_strogatz"))
_SMALL_WORLD = opt.Needs("graph.kind", ("watts_strogatz",))


@dataclass(frozen=True)
class GraphKeys:
    """The graph of clients over which models walk when there is no server.

    Attributes:
        kind: The kind of graph.
        transition: The rule by which a model moves to a neighbor.
        probability: The probability of an edge in `erdos_renyi`, by default 2 log(N) / N. In `watts_strogatz` it is the
            probability that an edge is rewired, by default 0.1.
        neighbours: The number of neighbors of each node before rewiring, in `watts_strogatz`. It is even; an odd number
            counts as the even number below.
        edges: Path of a CSV or Parquet file with your own graph, for the kind `edges`. The file has the columns `node`
            and `neighbour`, and a row for each edge.
        node_failure: The probability that a node fails in a step.
        edge_failure: The probability that an edge fails in a step.
        failures: Path of a CSV or Parquet file with a table of failures. The columns are `first` and `last` (steps,
            counted from 0) and `node`. A value in the column `neighbour` means that only the edge between the node and
            this neighbor fails.
    """

    kind: str = opt.key(
        "ring", opt.one_of("ring", "complete", "torus", "erdos_renyi", "watts_strogatz", "star", "edges")
    )
    transition: str = opt.key("uniform", opt.one_of("uniform", "lazy", "metropolis"))
    probability: float | None = opt.key(None, opt.maybe(opt.real("[0, 1]")), _RANDOM)
    neighbours: int = opt.key(4, opt.whole(2, 10_000), _SMALL_WORLD)
    edges: str | None = opt.key(None, opt.maybe(opt.text), opt.Needs("graph.kind", ("edges",)))
    node_failure: float = opt.key(0.0, opt.real("[0, 1)"))
    edge_failure: float = opt.key(0.0, opt.real("[0, 1)"))
    failures: str | None = opt.key(None, opt.maybe(opt.text))


# ---------------------------------------------------------------------------------------------------------------------
# The data sets that a scenario may name: description, options, and facts about the clients of the data set.


@dataclass(frozen=True)
class DataSpec:
    """The specification of a data set for scenarios.

    Attributes:
        text: A one-line description, for `fedray list`.
        options: The keys in the section `data` that only this data set has.
        natural: Whether the samples already belong to clients. The default partition is then `natural`.
        clients: The default number of clients, N, for a data set that generates its clients. It is None for other data
            sets.
        task: `classification` or `regression`. It is empty if the task depends on the files or the options.
    """

    text: str
    options: opt.OptionSpecs = field(default_factory=dict)
    natural: bool = False
    clients: int | None = None
    task: str = ""


_LIMIT = {"limit": opt.Option(None, opt.whole(1, 10**9))}
_SEED = {"seed": opt.Option(0, opt.whole(0, 2**62))}
_TOY = {**_SEED, "clients": opt.Option(None, opt.whole(1, 10**6)), "samples": opt.Option(None, opt.whole(1, 10**6))}

_CLASSES, _REAL = "classification", "regression"

DATA_SPECS: dict[str, DataSpec] = {
    "digits": DataSpec(
        "scikit-learn's handwritten digits, 1,797 images of 8 x 8, 10 classes (bundled)", _LIMIT, task=_CLASSES
    ),
    "breast_cancer": DataSpec(
        "569 tumors with 30 measures each, benign or malignant (bundled with scikit-learn)", task=_CLASSES
    ),
    "mnist": DataSpec("MNIST, 70,000 images of 28 x 28, 10 classes", _LIMIT, task=_CLASSES),
    "fashion_mnist": DataSpec("FashionMNIST, 70,000 images of 28 x 28, 10 classes", _LIMIT, task=_CLASSES),
    "cifar10": DataSpec("CIFAR-10, 60,000 color images of 32 x 32, 10 classes", _LIMIT, task=_CLASSES),
    "cifar100": DataSpec("CIFAR-100, 60,000 color images of 32 x 32, 100 classes", _LIMIT, task=_CLASSES),
    "svhn": DataSpec("street view house numbers, 99,289 color images of 32 x 32, 10 classes", _LIMIT, task=_CLASSES),
    "femnist": DataSpec("handwriting by writer in LEAF JSON, 62 classes", _LIMIT, natural=True, task=_CLASSES),
    "shakespeare": DataSpec(
        "next-character prediction, by role or IID",
        {
            "source": opt.Option("mit_plays", opt.one_of("mit_plays", "tiny", "complete")),
            "stride": opt.Option(1, opt.whole(1, 10_000)),
            "train": opt.Option(0.8, opt.real("(0, 1)")),
            **_LIMIT,
        },
        natural=True,
        task=_CLASSES,
    ),
    "printers": DataSpec(
        "vibration of six 3D printers against print speed",
        {
            "speed": opt.Option("nominal", opt.one_of("nominal", "measured")),
            "test_speed": opt.Option(30, opt.whole(1, 1000)),
        },
        natural=True,
        task=_REAL,
    ),
    "sine": DataSpec(
        "toy of Fed-ensemble: y = a sin(2 pi x) + noise, an amplitude for each client",
        _TOY,
        natural=True,
        clients=50,
        task=_REAL,
    ),
    "interval": DataSpec(
        "the sine toy with inputs in [-1, -0.5] and [0.5, 1] only", _TOY, natural=True, clients=50, task=_REAL
    ),
    "cubic": DataSpec(
        "toy of FedAG: y = x^3 + noise",
        {**_TOY, "standardise": opt.Option(True, opt.flag)},
        natural=True,
        clients=10,
        task=_REAL,
    ),
    "synthetic": DataSpec(
        "a population of any size, generated client by client",
        {
            "samples": opt.Option(20, opt.whole(1, 10**6)),
            "features": opt.Option(64, opt.whole(1, 65_536)),
            "classes": opt.Option(10, opt.whole(2, 65_536)),
            "separation": opt.Option(0.5, opt.real("[0, inf)")),
            "spread": opt.Option(0.0, opt.real("[0, 10]")),
            "per_client": opt.Option(0, opt.whole(0, 65_536)),
            "test": opt.Option(2000, opt.whole(1, 10**7)),
            **_SEED,
        },
        natural=True,
        clients=100,
        task=_CLASSES,
    ),
    "table": DataSpec(
        "your own Parquet, CSV or Feather table, or a folder with one for each client",
        {
            "path": opt.Option(opt.REQUIRED, opt.text),
            "target": opt.Option(opt.REQUIRED, opt.list_of(opt.column_name, 1000, scalar=True)),
            "features": opt.Option(None, opt.list_of(opt.column_name, 65_536)),
            **opt.options_of("exclude group test test_fraction task missing"),
            **_LIMIT,
        },
    ),
    "folder": DataSpec(
        "your own pictures, a folder for each class (data.path)",
        {"path": opt.Option(opt.REQUIRED, opt.text), **opt.options_of("test test_fraction size"), **_LIMIT},
        task=_CLASSES,
    ),
    "hf": DataSpec(
        "a Hugging Face data set of your disk or cache (data.path; extra [hf])",
        {
            "path": opt.Option(opt.REQUIRED, opt.text),
            "config": opt.Option(None, opt.text),
            "split": opt.Option(None, opt.text),
            **opt.options_of("test input target group test_fraction task missing tokenizer length size"),
            "download": opt.Option(False, opt.flag),
            **_LIMIT,
        },
    ),
    "leaf": DataSpec(
        "LEAF's JSON, a client for each user (data.path)",
        {
            "path": opt.Option(opt.REQUIRED, opt.text),
            **opt.options_of("test test_fraction task missing tokenizer length"),
            **_LIMIT,
        },
        natural=True,
    ),
    "union": DataSpec(
        "several data sets of one input shape, joined, with the column `domain` (data.sets)",
        {
            "sets": opt.Option(opt.REQUIRED, opt.list_of(opt.text, 20)),
            "classes": opt.Option("shared", opt.one_of("shared", "apart")),
            **_LIMIT,
        },
        task=_CLASSES,
    ),
    "uci/NAME": DataSpec("a UCI regression set in the standard split layout: uci/energy, uci/kin8nm, ..."),
}


def data_spec_of(name: object) -> DataSpec:
    """Returns the specification of a data set. A user's own data set has a specification without options."""
    return DATA_SPECS.get(name, DataSpec("your own")) if isinstance(name, str) else DataSpec("your own")


# ---------------------------------------------------------------------------------------------------------------------
# The partitions that a scenario may name, with text and options. Their code is in `fedray.data.partition`.

CLIENT_KINDS: opt.OptionSpecs = {  # options of every partition: differences between clients besides their samples
    "flipped": opt.Option(None, opt.real("[0, 1]")),
    "noisy": opt.Option(None, opt.real("[0, 1]")),
    "rotation": opt.Option(None, opt.whole(2, 4)),
    "feature_noise": opt.Option(None, opt.real("(0, 100]")),
    "permute_labels": opt.Option(None, opt.whole(2, 10_000)),
    "copies": opt.Option(None, opt.flag),
}
_LEAST = opt.Option(1, opt.whole(0, 10**9))
_ENOUGH = opt.Option(None, opt.whole(1, 10**9))
_SKEW = opt.real("[0, 100]")
_ALPHA = opt.real("[0.0001, 1e9)")  # for a smaller alpha one client has all samples of a class, and numbers underflow


@opt.means("word or list of whole numbers", "`equal`, `lognormal`, `power_law`, `exponential`, or one size per client")
def _sizes(value: object) -> object:
    """Checks the key for the sizes of clients: the name of a distribution, or a list of exact sizes."""
    if isinstance(value, str):
        return opt.one_of("equal", "lognormal", "power_law", "exponential")(value)
    return opt.list_of(opt.whole(1, 10**9), 10**6)(value)


def _name(line: str, *, more: bool = False, **options: opt.Option) -> opt.NameSpec:
    return opt.NameSpec(line, {**options, **CLIENT_KINDS}, more)


PARTITION_SPECS: Mapping[str, opt.NameSpec] = {
    "iid": _name("shuffled and dealt evenly"),
    "shards": _name(
        "sorted by label, cut into shards, `shards` of them for each client", shards=opt.Option(2, opt.whole(1, 10**6))
    ),
    "classes": _name("each client holds exactly `classes` classes", classes=opt.Option(2, opt.whole(1, 10**6))),
    "dirichlet": _name(
        "each class is split over the clients in shares from Dirichlet(alpha)",
        alpha=opt.Option(0.5, _ALPHA),
        allow_empty=opt.Option(False, opt.flag),
        min_rows=opt.Option(None, opt.whole(0, 10**9)),
        cap=opt.Option(None, opt.flag),
    ),
    "dirichlet_clients": _name(
        "each client draws class shares from Dirichlet(alpha); `sizes` sets its size",
        alpha=opt.Option(0.5, _ALPHA),
        sizes=opt.Option("equal", _sizes),
        skew=opt.Option(1.0, _SKEW),
        min_rows=_LEAST,
    ),
    "lognormal": _name("shuffled, lognormal sizes", sigma=opt.Option(1.0, _SKEW), min_rows=_LEAST),
    "power_law": _name(
        "shuffled, sizes by a power law of their rank", exponent=opt.Option(1.5, _SKEW), min_rows=_LEAST
    ),
    "exponential": _name("shuffled, sizes that fall exponentially", rate=opt.Option(3.0, _SKEW), min_rows=_LEAST),
    "sizes": _name("shuffled, exact sizes", sizes=opt.Option(opt.REQUIRED, opt.list_of(opt.whole(1, 10**9), 10**6))),
    "natural": _name("as the data comes: by writer, role, device or generated client", min_rows=_ENOUGH),
    "column": _name(
        "a client for each value of a column", column=opt.Option(opt.REQUIRED, opt.column_name), min_rows=_ENOUGH
    ),
    "domain": _name("a group of clients for each value of a column", column=opt.Option("domain", opt.column_name)),
    "time": _name(
        "sorted by a column, the earliest rows to the first client", column=opt.Option(opt.REQUIRED, opt.column_name)
    ),
    "file": _name("as a file says, such as the partition.parquet of a run", file=opt.Option(opt.REQUIRED, opt.text)),
    "flower": _name(
        "by a partitioner of flwr_datasets, with its arguments",
        more=True,
        partitioner=opt.Option(opt.REQUIRED, opt.text),
    ),
}
