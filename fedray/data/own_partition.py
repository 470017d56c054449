"""A user's own partition: a function that says which rows each client gets, called with a generator of its address."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from fedray.core.errors import BadInput
from fedray.core.text import suggest_nearest
from fedray.data.cut import Cut, Generator, check_rows
from fedray.data.types import Array, Dataset
from fedray.own_code.contract import RecordedOptions, contract, refuse_unread
from fedray.own_code.source_code import name_callable
from fedray.own_code.user_code import describe_exception, name_type

# (labels [n], clients N, generator, options, perhaps columns=) -> rows of each client, N arrays of row numbers
OwnPartition = Callable[..., Sequence[Any]]


def deal_by_function(
    function: OwnPartition,
    labels: Array,
    clients: int,
    generator: Generator,
    options: Mapping[str, Any],
    *,
    columns: Mapping[str, Array] | None = None,
    declares: bool = False,
) -> Cut:
    """Cuts the rows by a user's function; rows that no client gets are not trained on.

    Args:
        function: The user's.
        labels: Labels `[n]` or targets `[n, q]` of the rows.
        clients: Number of clients, N.
        generator: For its draws: the same in every process, another one for each seed.
        options: What the scenario sets beside the partition's name.
        columns: Further columns of the rows by name, `[n]` each, where the function wants them; None: it does not.
        declares: Whether its options were declared, so that it may leave some unread.

    Raises:
        BadInput: It raised, what it returned is not rows of N clients, each row once, and the same ones again, or it
            did not read an option.

    Example:
        >>> def halves(labels, clients, generator, options):
        ...     return np.array_split(np.argsort(labels, kind="stable"), clients)
        >>> from fedray.core import rng
        >>> deal_by_function(halves, np.array([1, 0, 1, 0]), 2, rng.stream(0, "partition"), {}).rows.tolist()
        [1, 3, 0, 2]
    """
    where = f"data.partition.name = {name_callable(function)}"
    check_rows(len(labels), clients, 0)
    more, recorded = {} if columns is None else {"columns": columns}, RecordedOptions(options)
    given = options if declares else cast(Mapping[str, Any], recorded)
    found = contract(where, function, again=True)(labels, clients, generator, given, **more)
    if not declares:
        refuse_unread("data.partition", name_callable(function), recorded)
    if not isinstance(found, Sequence | np.ndarray) or isinstance(found, str) or len(found) != clients:
        of = f" of {len(found)}" if isinstance(found, Sequence | np.ndarray) else ""
        raise BadInput(f"{where}: it returned {name_type(found)}{of}: return a list with the rows of {clients} clients")
    parts = [np.asarray(rows) for rows in found]
    for client, rows in enumerate(parts):
        if rows.ndim != 1 or (len(rows) and rows.dtype.kind not in "iu"):
            raise BadInput(f"{where}: the rows of client {client} are {name_type(found[client])}: give whole numbers")
        if len(rows) and (rows.min() < 0 or rows.max() >= len(labels)):
            raise BadInput(f"{where}: client {client} has rows {rows.min()} to {rows.max()} of 0 to {len(labels) - 1}")
    return cut_of_parts(parts, len(labels), where)


def wants_columns(function: Callable[..., Any]) -> bool:
    """Whether a function has a keyword-only argument `columns`."""
    try:
        found = inspect.signature(function).parameters.get("columns")
    except (TypeError, ValueError):  # one without a signature
        return False
    return found is not None and found.kind is inspect.Parameter.KEYWORD_ONLY


def cut_of_parts(parts: Sequence[Array], rows: int, where: str) -> Cut:
    """Returns the cut of clients with these rows.

    Args:
        parts: Rows of each client.
        rows: Rows of the data, n.
        where: What dealt them, for messages.

    Raises:
        BadInput: A row is dealt twice.
    """
    every = np.concatenate([np.empty(0, np.int64), *(part.astype(np.int64) for part in parts)])
    count = np.bincount(every, minlength=rows)
    if count.max(initial=0) > 1:
        raise BadInput(f"{where}: row {int(np.argmax(count))} is dealt {count.max()} times: deal each row once")
    return Cut(every, np.cumsum([0, *(len(part) for part in parts)]).astype(np.int64))


_FUNCTIONS: dict[str, OwnPartition] = {}  # registered in this process, by name
_DECLARING: set[str] = set()  # those whose options were declared


def register_partition(name: str, function: OwnPartition, *, declares: bool = False) -> None:
    """Gives a partition of your own a name for scenarios, in this process; the newest function counts.

    Args:
        name: For scenarios.
        function: The user's.
        declares: Whether its options were declared.
    """
    _FUNCTIONS[name] = function
    (_DECLARING.add if declares else _DECLARING.discard)(name)


def declares_options(name: str) -> bool:
    """Whether a user's function of a name has declared its options."""
    return name in _DECLARING


def find_partition(name: str) -> OwnPartition | None:
    """Returns the user's function of a name; None where the name is not a user's."""
    return _FUNCTIONS.get(name)


# ---------------------------------------------------------------------------------------------------------------------
# Partitions of `flwr_datasets`: a Flower user's split, with exactly its index lists.
#
# The partitioner sees a table of the training rows without their inputs: the column `label`, every further column of
# the data set, and `group` where the data has natural clients. It draws by a seed of its own (Flower's default is
# 42), so all replicates have the same partition.

INSTALL = "pip install 'fedray[flower]'"
ROW = "fedray_row"  # the column of row numbers, which a partition of the table keeps


def make_partitioner(name: str, options: Mapping[str, Any], clients: int | None) -> Any:
    """Returns a partitioner of `flwr_datasets` by its name.

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
    if name not in known.__all__:
        remedy = suggest_nearest(name, known.__all__, f"choose one of {', '.join(known.__all__)}")
        raise BadInput(f"data.partition.partitioner = {name}: flwr_datasets has no such partitioner: {remedy}")
    kind = getattr(known, name)
    takes = inspect.signature(kind).parameters
    usual = {"num_partitions": clients, "partition_by": "label"}
    given = {**{key: value for key, value in usual.items() if key in takes and value is not None}, **options}
    try:
        return kind(**given)
    except Exception as error:
        raise BadInput(f"data.partition.partitioner = {name}: {describe_exception(error)}") from None


def deal_by_flower(partitioner: Any, columns: Mapping[str, Array], clients: int | None) -> Cut:
    """Cuts the rows by a partitioner of `flwr_datasets`; rows that no client gets are not trained on.

    Args:
        partitioner: It is copied; it has no data set yet.
        columns: Of the rows, `[n]` each.
        clients: Number of clients, N; None accepts any number.

    Raises:
        BadInput: It raised, has a data set already, or makes another number of partitions.

    Example:
        >>> from flwr_datasets.partitioner import IidPartitioner  # doctest: +SKIP
        >>> labels = {"label": np.zeros(4, np.int64)}
        >>> deal_by_flower(IidPartitioner(num_partitions=2), labels, None).rows  # doctest: +SKIP
        array([0, 2, 1, 3])
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
        raise BadInput(f"clients.number = {clients}, but {name} makes {number} partitions: leave it out")
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
