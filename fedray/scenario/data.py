"""The data sets and partitions that a scenario may name: text and options.

Example:
    >>> sorted(set(PARTITION_SPECS["dirichlet"].options) - CLIENT_KINDS.keys())
    ['allow_empty', 'alpha', 'cap', 'min_rows']
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedray.core.options import (
    REQUIRED,
    NameSpec,
    Option,
    OptionSpecs,
    column_name,
    flag,
    list_of,
    means,
    one_of,
    options_of,
    real,
    text,
    whole,
)

# ---------------------------------------------------------------------------------------------------------------------
# The data sets that a scenario may name: text, options, and where the clients of each come from.


@dataclass(frozen=True)
class DataSpec:
    """What scenarios need to know of a data set.

    Attributes:
        text: one line for `fedray list`.
        options: the keys in the section `data` that only this data set has.
        natural: whether the samples belong to clients already. The default partition is then `natural`.
        clients: the default number of clients, N, if the data set generates as many clients as a scenario requests;
            None: the data set generates none.
        task: `classification` or `regression`; empty: the files or the options of the data set decide.
        toy: whether the data set has an option `clients`, which then follows `clients.number`.
    """

    text: str
    options: OptionSpecs = field(default_factory=dict)
    natural: bool = False
    clients: int | None = None
    task: str = ""
    toy: bool = False


_LIMIT = {"limit": Option(None, whole(1, 10**9))}
_SEED = {"seed": Option(0, whole(0, 2**62))}
_TOY = {**_SEED, "clients": Option(None, whole(1, 10**6)), "samples": Option(None, whole(1, 10**6))}

_CLASSES, _REAL = "classification", "regression"

DATA_SPECS: dict[str, DataSpec] = {
    "digits": DataSpec(
        "scikit-learn's handwritten digits, 1,797 images of 8 x 8, 10 classes (bundled)", _LIMIT, task=_CLASSES
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
            "source": Option("mit_plays", one_of("mit_plays", "tiny", "complete")),
            "stride": Option(1, whole(1, 10_000)),
            "train": Option(0.8, real("(0, 1)")),
            **_LIMIT,
        },
        natural=True,
        task=_CLASSES,
    ),
    "printers": DataSpec(
        "vibration of six 3D printers against print speed",
        {"speed": Option("nominal", one_of("nominal", "measured")), "test_speed": Option(30, whole(1, 1000))},
        natural=True,
        task=_REAL,
    ),
    "sine": DataSpec(
        "toy of Fed-ensemble: y = a sin(2 pi x) + noise, an amplitude for each client",
        _TOY,
        natural=True,
        clients=50,
        task=_REAL,
        toy=True,
    ),
    "interval": DataSpec(
        "the sine toy with inputs in [-1, -0.5] and [0.5, 1] only", _TOY, natural=True, clients=50, task=_REAL, toy=True
    ),
    "cubic": DataSpec(
        "toy of FedAG: y = x^3 + noise",
        {**_TOY, "standardise": Option(True, flag)},
        natural=True,
        clients=10,
        task=_REAL,
        toy=True,
    ),
    "synthetic": DataSpec(
        "a population of any size, generated client by client",
        {
            "samples": Option(20, whole(1, 10**6)),
            "features": Option(64, whole(1, 65_536)),
            "classes": Option(10, whole(2, 65_536)),
            "separation": Option(0.5, real("[0, inf)")),
            "spread": Option(0.0, real("[0, 10]")),
            "per_client": Option(0, whole(0, 65_536)),
            "test": Option(2000, whole(1, 10**7)),
            **_SEED,
        },
        natural=True,
        clients=100,
        task=_CLASSES,
    ),
    "table": DataSpec(
        "your own Parquet, CSV or Feather table, or a folder with one for each client",
        {
            "path": Option(REQUIRED, text),
            "target": Option(REQUIRED, list_of(column_name, 1000, scalar=True)),
            "features": Option(None, list_of(column_name, 65_536)),
            **options_of("group test test_fraction task missing"),
            **_LIMIT,
        },
    ),
    "folder": DataSpec(
        "your own pictures, a folder for each class (data.path)",
        {"path": Option(REQUIRED, text), **options_of("test test_fraction size"), **_LIMIT},
        task=_CLASSES,
    ),
    "hf": DataSpec(
        "a Hugging Face data set of your disk or cache (data.path; extra [hf])",
        {
            "path": Option(REQUIRED, text),
            "config": Option(None, text),
            "split": Option(None, text),
            **options_of("test input target group test_fraction task missing tokenizer length size"),
            "download": Option(False, flag),
            **_LIMIT,
        },
    ),
    "leaf": DataSpec(
        "LEAF's JSON, a client for each user (data.path)",
        {
            "path": Option(REQUIRED, text),
            **options_of("test test_fraction task missing tokenizer length"),
            **_LIMIT,
        },
        natural=True,
    ),
    "union": DataSpec(
        "several data sets of the same inputs as one, with the column `domain` (data.sets)",
        {
            "sets": Option(REQUIRED, list_of(text, 20)),
            "classes": Option("shared", one_of("shared", "apart")),
            **_LIMIT,
        },
        task=_CLASSES,
    ),
    "uci/NAME": DataSpec("a UCI regression set in the standard split layout: uci/energy, uci/kin8nm, ..."),
}


def data_spec_of(name: object) -> DataSpec:
    """Returns the specification of a data set; for a user's own data set it has no options."""
    return DATA_SPECS.get(name, DataSpec("your own")) if isinstance(name, str) else DataSpec("your own")


# ---------------------------------------------------------------------------------------------------------------------
# The partitions that a scenario may name: text and options. The code that deals samples is in `fedray.data.partition`.

CLIENT_KINDS: OptionSpecs = {  # what makes clients differ beside the rows they hold; every partition has these options
    "flipped": Option(None, real("[0, 1]")),
    "noisy": Option(None, real("[0, 1]")),
    "rotation": Option(None, whole(2, 4)),
    "feature_noise": Option(None, real("(0, 100]")),
    "permute_labels": Option(None, whole(2, 10_000)),
    "copies": Option(None, flag),
}
_LEAST = Option(1, whole(0, 10**9))
_SKEW = real("[0, 100]")
_ALPHA = real("[0.0001, 1e9)")  # below, all rows of a class are one client's anyway, and numbers underflow


@means("word or list of whole numbers", "`equal`, `lognormal`, `power_law`, `exponential`, or one size a client")
def _sizes(value: object) -> object:
    """Checks the sizes of clients: the name of a law of sizes, or a list of exact sizes."""
    if isinstance(value, str):
        return one_of("equal", "lognormal", "power_law", "exponential")(value)
    return list_of(whole(1, 10**9), 10**6)(value)


def _name(line: str, *, more: bool = False, **options: Option) -> NameSpec:
    return NameSpec(line, {**options, **CLIENT_KINDS}, more)


PARTITION_SPECS: Mapping[str, NameSpec] = {
    "iid": _name("shuffled and dealt evenly"),
    "shards": _name(
        "sorted by label, cut into shards, `shards` of them for each client", shards=Option(2, whole(1, 10**6))
    ),
    "classes": _name("each client holds exactly `classes` classes", classes=Option(2, whole(1, 10**6))),
    "dirichlet": _name(
        "shares of each class over the clients drawn from Dirichlet(alpha)",
        alpha=Option(0.5, _ALPHA),
        allow_empty=Option(False, flag),
        min_rows=Option(None, whole(0, 10**9)),
        cap=Option(None, flag),
    ),
    "dirichlet_clients": _name(
        "class shares of each client drawn from Dirichlet(alpha), in sizes of a law of their own",
        alpha=Option(0.5, _ALPHA),
        sizes=Option("equal", _sizes),
        skew=Option(1.0, _SKEW),
        min_rows=_LEAST,
    ),
    "lognormal": _name("shuffled, lognormal sizes", sigma=Option(1.0, _SKEW), min_rows=_LEAST),
    "power_law": _name("shuffled, sizes by a power law of their rank", exponent=Option(1.5, _SKEW), min_rows=_LEAST),
    "exponential": _name("shuffled, sizes that fall exponentially", rate=Option(3.0, _SKEW), min_rows=_LEAST),
    "sizes": _name("shuffled, exact sizes", sizes=Option(REQUIRED, list_of(whole(1, 10**9), 10**6))),
    "natural": _name("as the data comes: by writer, role, device or generated client"),
    "column": _name("by the values of a column, one a client", column=Option(REQUIRED, column_name)),
    "domain": _name("by the values of a column, one a group of clients", column=Option("domain", column_name)),
    "time": _name("sorted by a column, the earliest rows to the first client", column=Option(REQUIRED, column_name)),
    "file": _name("as a file says, such as the partition.parquet of a run", file=Option(REQUIRED, text)),
    "flower": _name(
        "by a partitioner of flwr_datasets, with its arguments", more=True, partitioner=Option(REQUIRED, text)
    ),
}
