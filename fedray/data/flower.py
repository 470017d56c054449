"""Partitions of `flwr_datasets`: a Flower user's split, with exactly its index lists.

The partitioner sees a table of the training rows without their inputs: the column `label`, every further column of the
data set, and `group` where the data has natural clients. It draws by a seed of its own (Flower's default is 42), so all
replicates have the same partition.

Example:
    >>> from flwr_datasets.partitioner import IidPartitioner  # doctest: +SKIP
    >>> deal_by_flower(IidPartitioner(num_partitions=2), {"label": np.zeros(4, np.int64)}, None).rows  # doctest: +SKIP
    array([0, 2, 1, 3])
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedray.core.errors import BadInput
from fedray.core.text import suggest_nearest
from fedray.data.cut import Cut
from fedray.data.own_partition import cut_of_parts
from fedray.data.types import Array, Dataset
from fedray.own_code.user_code import describe_exception

INSTALL = "pip install 'fedray[flower]'"
ROW = "fedray_row"  # the column of row numbers, which a partition of the table keeps


def make_partitioner(name: str, options: Mapping[str, Any], clients: int | None) -> Any:
    """A partitioner of `flwr_datasets` by its name.

    Args:
        name: Of the class: `DirichletPartitioner`.
        options: Its arguments; `num_partitions` may be left to `clients`, and `partition_by` to the labels.
        clients: Number of clients, N, if the scenario says it.

    Raises:
        BadInput: The package is missing, or has no such partitioner, or refuses the options.
    """
    try:
        from flwr_datasets import partitioner as known
    except ImportError:
        raise BadInput(f"data.partition.name = flower needs the package flwr_datasets: {INSTALL}") from None
    names = [one for one in known.__all__ if one != "Partitioner"]
    if name not in names:
        remedy = suggest_nearest(name, names, f"choose one of {', '.join(names)}")
        raise BadInput(f"data.partition.partitioner = {name}: flwr_datasets has no such partitioner: {remedy}")
    kind = getattr(known, name)
    takes = inspect.signature(kind).parameters
    if "num_partitions" in takes and "num_partitions" not in options and clients is None:
        raise BadInput(f"clients.number is missing: give the number of clients, which {name} needs")
    usual = {"num_partitions": clients, "partition_by": "label"}
    given = {**{key: value for key, value in usual.items() if key in takes}, **options}
    for key in given:
        if key not in takes:
            remedy = suggest_nearest(key, takes, f"it takes {', '.join(takes)}")
            raise BadInput(f"data.partition.{key} is not an argument of {name}: {remedy}")
    try:
        return kind(**given)
    except Exception as error:
        raise BadInput(f"data.partition.partitioner = {name}: {describe_exception(error)}") from None


def deal_by_flower(partitioner: Any, columns: Mapping[str, Array], clients: int | None) -> Cut:
    """The cut of a partitioner of `flwr_datasets`; rows that it gives to nobody are not trained on.

    Args:
        partitioner: It is copied; it has no data set yet.
        columns: Of the rows, `[n]` each.
        clients: Number of clients, N; None accepts any number.

    Raises:
        BadInput: It raised, has a data set already, or makes another number of partitions.
    """
    import datasets

    name = type(partitioner).__name__
    if partitioner.is_dataset_assigned():
        raise BadInput(f"data.partition = {name}: it has a data set already: give a fresh one, without rows")
    own, rows = copy.deepcopy(partitioner), len(next(iter(columns.values())))
    own.dataset = datasets.Dataset.from_dict({**columns, ROW: np.arange(rows)})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of repeated draws; where it gives up it raises
            number = own.num_partitions
            parts = [np.asarray(own.load_partition(i)[ROW], dtype=np.int64) for i in range(number)]
    except Exception as error:
        known = ", ".join(columns)
        told = f"data.partition.partitioner = {name}: {describe_exception(error)}; the columns are {known}"
        raise BadInput(told) from None
    if clients not in (None, number):
        raise BadInput(
            f"clients.number = {clients}, but {name} makes {number} partitions: leave it out or set it to {number}"
        )
    return cut_of_parts(parts, rows, f"data.partition.partitioner = {name}")


def list_columns(data: Dataset) -> dict[str, Array]:
    """The columns by which the training rows of a data set can be dealt, `[n]` each; regressions have no `label`."""
    known: dict[str, Array] = (
        {"label": data.train.y} if data.train.y.ndim == 1 else {"row": np.arange(len(data.train.y))}
    )
    if data.train.group is not None:
        known["group"] = data.train.group
    return {**known, **data.columns}


def is_partitioner(thing: Any) -> bool:
    """Whether an object is a partitioner of `flwr_datasets`; the package is not imported for this."""
    return any(f"{one.__module__}.{one.__qualname__}".startswith("flwr_datasets.") for one in type(thing).__mro__)
