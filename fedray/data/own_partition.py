"""A user's own partition: a function that says which rows each client gets, called with a generator of its address.

Example:
    >>> def halves(labels, clients, generator, options):
    ...     return np.array_split(np.argsort(labels, kind="stable"), clients)
    >>> from fedray.core import rng
    >>> deal_by_function(halves, np.array([1, 0, 1, 0]), 2, rng.stream(0, "partition"), {}).rows.tolist()
    [1, 3, 0, 2]
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from fedray.core.errors import BadInput
from fedray.core.types import IntArray
from fedray.data.cut import Cut
from fedray.data.dealing import Generator, check_rows
from fedray.data.types import Array
from fedray.own_code.recorded_options import RecordedOptions, refuse_unread
from fedray.own_code.source_code import name_callable
from fedray.own_code.user_code import blame_user_code, name_type

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
    """The cut that a user's function makes; rows that it gives to nobody are not trained on.

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
    """
    where = f"data.partition.name = {name_callable(function)}"
    check_rows(len(labels), clients, 0)
    again, more = copy.deepcopy(generator), {} if columns is None else {"columns": columns}
    recorded = RecordedOptions(options)
    given = options if declares else cast(Mapping[str, Any], recorded)
    with blame_user_code(where):
        found = function(labels, clients, generator, given, **more)
    if not declares:
        refuse_unread("data.partition", name_callable(function), recorded)
    made = _cut(found, clients, len(labels), where)
    with blame_user_code(where):
        repeated = function(labels, clients, again, given, **more)
    other = _cut(repeated, clients, len(labels), where)
    if not (np.array_equal(made.rows, other.rows) and np.array_equal(made.offsets, other.offsets)):
        raise BadInput(
            f"{where}: asked again it deals other rows, so that no run could be repeated: draw with its generator alone"
        )
    return made


def _cut(found: Any, clients: int, rows: int, where: str) -> Cut:
    """The cut that a function returned."""
    if not isinstance(found, Sequence | np.ndarray) or isinstance(found, str):
        raise BadInput(f"{where}: it returned {name_type(found)}: return a list with the rows of each client")
    if len(found) != clients:
        raise BadInput(
            f"{where}: it returned the rows of {len(found)} clients, but clients.number is {clients}: return as many"
        )
    return cut_of_parts([_check_rows_of(where, i, part, rows) for i, part in enumerate(found)], rows, where)


def wants_columns(function: Callable[..., Any]) -> bool:
    """Whether a function has a keyword-only argument `columns`."""
    try:
        found = inspect.signature(function).parameters.get("columns")
    except (TypeError, ValueError):  # one without a signature
        return False
    return found is not None and found.kind is inspect.Parameter.KEYWORD_ONLY


def cut_of_parts(parts: Sequence[IntArray], rows: int, where: str) -> Cut:
    """The cut of clients with these rows.

    Args:
        parts: Rows of each client.
        rows: Rows of the data, n.
        where: What dealt them, for messages.

    Raises:
        BadInput: A row is dealt twice.
    """
    every = np.concatenate([np.empty(0, np.int64), *parts])
    count = np.bincount(every, minlength=rows)
    if count.max(initial=0) > 1:
        raise BadInput(f"{where}: row {int(np.argmax(count))} is dealt {count.max()} times: deal each row once")
    return Cut(every, np.cumsum([0, *(len(part) for part in parts)]).astype(np.int64))


def _check_rows_of(where: str, client: int, rows: Any, number: int) -> IntArray:
    """Rows of a client as int64."""
    array = np.asarray(rows)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        kind = f"an array of {array.dtype}, {list(array.shape)}" if array.dtype.kind != "O" else name_type(rows)
        raise BadInput(f"{where}: the rows of client {client} are {kind}: give whole numbers, [n]")
    if len(array) and (array.min() < 0 or array.max() >= number):
        wrong = int(array.min() if array.min() < 0 else array.max())
        raise BadInput(f"{where}: client {client} has row {wrong}: there are rows 0 to {number - 1}")
    return array.astype(np.int64)


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
    """The user's function of a name; None where the name is not a user's."""
    return _FUNCTIONS.get(name)
