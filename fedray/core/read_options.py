"""How a user's own data are read: one row an option, which both doors, the loaders and the reference ask."""

from __future__ import annotations

from typing import Any, NamedTuple

from fedray.core.spec import Option, OptionSpecs
from fedray.core.validators import Check, column_name, list_of, one_of, real, text, whole


class ReadOptions(NamedTuple):
    """How a user's data are read.

    Attributes:
        target: The column to predict: one, also for a regression; None where the form says it.
        input: The inputs: a column of images, lists or text, or columns of numbers, truth values and categories; None
            where the form says it, or all other columns of a table.
        group: Column of the natural clients.
        test: The test rows, in the form of the data, or which of its parts they are; None: as the form says, or drawn.
        test_fraction: Share of the rows that are drawn as test rows where none are given.
        task: `auto`, `classification` or `regression`.
        missing: `refuse` missing values, put the `mean` of the training rows in their place (text gets a category of
            its own), or `drop` the rows that have them.
        tokenizer: Makes tokens of text: a function, a tokenizer, its file, or its name in the user's cache.
        length: Tokens of a row; shorter ones end in zeros. None: those of the longest row, 256 at most.
        size: Height and width that pictures are brought to; None: they are as they are, all of one size.
        input_key: What `input` is called where the options stand, for messages.
    """

    target: Any = None
    input: Any = None
    group: str | None = None
    test: Any = None
    test_fraction: float = 0.2
    task: str = "auto"
    missing: str = "refuse"
    tokenizer: Any = None
    length: int | None = None
    size: int | None = None
    input_key: str = "input"


CHECKS: dict[str, Check] = {  # of what a scenario says; in Python `target`, `input`, `test` and `tokenizer` may be more
    "target": column_name,
    "input": list_of(column_name, 65_536, scalar=True),
    "group": column_name,
    "test": text,
    "test_fraction": real("(0, 1)"),
    "task": one_of("auto", "classification", "regression"),
    "missing": one_of("refuse", "mean", "drop"),
    "tokenizer": text,
    "length": whole(1, 100_000),
    "size": whole(1, 4096),
}
NUMBERS_AND_WORDS = ("test_fraction", "task", "missing", "length", "size")


def options_of(names: str) -> OptionSpecs:
    """Some of the options of reading, by their names, as options of a data set.

    Example:
        >>> options_of("task size")["task"].default
        'auto'
    """
    return {name: Option(ReadOptions._field_defaults[name], CHECKS[name]) for name in names.split()}
