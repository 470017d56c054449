"""The partitions as scenarios know them: text and options; which rows they deal is in `fedray.data.partition`."""

from __future__ import annotations

from collections.abc import Mapping

from fedray.scenario.spec import REQUIRED, NameSpec, Option, OptionSpecs
from fedray.scenario.validators import flag, list_of, means, one_of, real, text, whole

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


@means("word or list of whole numbers", "`equal`, `lognormal`, `power_law`, `exponential`, or one size a client")
def _sizes(value: object) -> object:
    """The name of a law of sizes, or exact sizes."""
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
        alpha=Option(0.5, real("(0, inf)")),
        allow_empty=Option(False, flag),
        min_rows=Option(None, whole(0, 10**9)),
    ),
    "dirichlet_clients": _name(
        "class shares of each client drawn from Dirichlet(alpha), in sizes of a law of their own",
        alpha=Option(0.5, real("(0, inf)")),
        sizes=Option("equal", _sizes),
        skew=Option(1.0, _SKEW),
        min_rows=_LEAST,
    ),
    "lognormal": _name("shuffled, lognormal sizes", sigma=Option(1.0, _SKEW), min_rows=_LEAST),
    "power_law": _name("shuffled, sizes by a power law of their rank", exponent=Option(1.5, _SKEW), min_rows=_LEAST),
    "exponential": _name("shuffled, sizes that fall exponentially", rate=Option(3.0, _SKEW), min_rows=_LEAST),
    "sizes": _name("shuffled, exact sizes", sizes=Option(REQUIRED, list_of(whole(1, 10**9), 10**6))),
    "natural": _name("as the data comes: by writer, role, device or generated client"),
    "column": _name("by the values of a column, one a client", column=Option(REQUIRED, text)),
    "domain": _name("by the values of a column, one a group of clients", column=Option("domain", text)),
    "time": _name("sorted by a column, the earliest rows to the first client", column=Option(REQUIRED, text)),
    "file": _name("as a file says, such as the partition.parquet of a run", file=Option(REQUIRED, text)),
    "flower": _name(
        "by a partitioner of flwr_datasets, with its arguments", more=True, partitioner=Option(REQUIRED, text)
    ),
}


def explain_idle_size(key: str, name: str, options: Mapping[str, object]) -> str:
    """Why an option of a partition's sizes cannot act; empty if it can.

    Args:
        key: dotted.
        name: of the partition.
        options: of the partition, resolved.

    Example:
        >>> explain_idle_size("data.partition.skew", "dirichlet_clients", {"sizes": "equal", "skew": 2.0})
        'data.partition.sizes is equal'
    """
    sizes = options.get("sizes") if name == "dirichlet_clients" else None
    if key == "data.partition.skew" and sizes == "equal":
        return "data.partition.sizes is equal"
    listed = isinstance(sizes, list | tuple) and key in ("data.partition.skew", "data.partition.min_rows")
    return "data.partition.sizes gives the size of each client" if listed else ""
