"""RawRows of any form, as a data set: gaps treated, labels numbered, test rows withheld."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.core import rng
from fedray.core.errors import BadInput, quote_value
from fedray.core.options import CHECKS, NUMBERS_AND_WORDS, ReadOptions
from fedray.core.types import IntArray
from fedray.data.forms.arrays import (
    doubt_classes,
    find_gaps,
    find_rows,
    is_whole_with_gaps,
    list_classes,
    mean_of_columns,
    read_labels,
    refuse_rows,
)
from fedray.data.input_columns import COLUMNS, spell_columns
from fedray.data.spool import Spool, read_pieces, take_rows
from fedray.data.types import (
    Array,
    Dataset,
    Split,
    check_parts,
    classification,
    narrow,
    regression,
    split_stratified,
    tell_test_scale,
)
from fedray.own_code.user_code import blame_user_code, name_type

# ---------------------------------------------------------------------------------------------------------------------
# Text as tokens, made by a tokenizer that the user names.

MOST_TOKENS = 256  # of a row, where no length is given
Encode = Callable[[Sequence[str]], list[Sequence[int]]]


def tokenize(texts: Iterable[Sequence[Any]], tokenizer: Any, length: int | None) -> Array:
    """Tokens `[n, L]` int32; a longer text is cut, a shorter one ends in zeros.

    Args:
        texts: The texts, in pieces; what is no text is written as one.
        tokenizer: A function from a text to its tokens, a tokenizer of `tokenizers` or `transformers`, its file, or
            its name.
        length: L; None: that of the longest text, 256 at most.

    Raises:
        BadInput: There is no such tokenizer, a text is missing, or what it returns is no list of whole numbers.

    Example:
        >>> tokenize([["a b", "c"]], lambda text: [1 + ord(c) for c in text], None).tolist()
        [[98, 33, 99], [100, 0, 0]]
    """
    encode, spool, longest, first = find_tokenizer(tokenizer), Spool(), 1, 0
    width = length or MOST_TOKENS
    for piece in texts:
        for number, value in enumerate(piece, first):
            if not isinstance(value, str) and is_missing(value):
                raise BadInput(f"data: row {number} has no text: leave such rows out, or give an empty text")
        ids = encode([str(value) for value in piece])
        first += len(piece)
        rows = np.zeros((len(ids), width), dtype=np.int32)
        for row, tokens in zip(rows, ids, strict=True):
            kept = tokens[:width]
            row[: len(kept)] = kept
            longest = max(longest, len(kept))
        spool.append(rows)
    found = spool.finish()
    return found if length else np.ascontiguousarray(found[:, :longest])


def is_missing(value: Any) -> bool:
    """Whether a value stands for nothing: None, NaN, or pandas' NA."""
    return value is None or str(value) == "<NA>" or bool(value != value)


def find_tokenizer(tokenizer: Any) -> Encode:
    """Returns the function that encodes several texts."""
    if tokenizer is None:
        raise BadInput("data: the inputs are text: give data.tokenizer, a function or the file of a tokenizer")
    if isinstance(tokenizer, str | Path):
        tokenizer = _load_tokenizer(str(tokenizer))
    if "tokenizers.Tokenizer" in list_classes(tokenizer):
        return lambda texts: [part.ids for part in tokenizer.encode_batch(list(texts))]
    if not callable(tokenizer):
        raise BadInput(f"data.tokenizer is {name_type(tokenizer)}: give a function from a text to its tokens")

    def encode(texts: Sequence[str]) -> list[Sequence[int]]:
        with blame_user_code("data.tokenizer"):
            return [_as_ids(tokenizer(text)) for text in texts]

    return encode


def _load_tokenizer(name: str) -> Any:
    """Returns a tokenizer of a file, or of a name in the user's cache; nothing is downloaded."""
    file = Path(name).expanduser()
    try:
        if file.is_file():
            from tokenizers import Tokenizer

            return Tokenizer.from_file(str(file))
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(file) if file.is_dir() else name, local_files_only=True)
    except ImportError as error:
        package = str(error.name or "tokenizers").partition(".")[0]
        raise BadInput(f"data.tokenizer = {name} needs {package}: `pip install {package}`, or give a file") from error
    except Exception as error:  # both packages raise many kinds
        why = " ".join(str(error).split())[:200]
        raise BadInput(
            f"data.tokenizer = {name}: there is no such file, and no such name in the cache ({why}): give the file of "
            "a tokenizer"
        ) from error


def _as_ids(found: Any) -> Sequence[int]:
    """Returns the tokens of a text as whole numbers."""
    if "tokenizers.Encoding" in list_classes(found):
        return list(found.ids)
    if isinstance(found, dict) or "input_ids" in getattr(found, "data", ()):
        found = found["input_ids"]
    tokens = found.tolist() if isinstance(found, np.ndarray) or "torch.Tensor" in list_classes(found) else found
    whole = isinstance(tokens, list | tuple) and all(isinstance(token, int | np.integer) for token in tokens)
    if not whole or any(token < 0 for token in tokens):
        raise BadInput(f"data.tokenizer returned {name_type(found)} for a text: return a list of whole numbers from 0")
    return list(tokens)


# ---------------------------------------------------------------------------------------------------------------------
# What a user is told of rows that were read, in one sentence each.


def tell_lost(group: IntArray | None, keep: IntArray) -> list[str]:
    """Returns what is said of clients all of whose rows were drawn as test rows.

    Example:
        >>> tell_lost(np.array([0, 1, 1, 1]), np.array([1, 2]))[0][:63]
        'data: all rows of 1 of 2 clients were drawn as test rows, so th'
    """
    if group is None or not (lost := len(np.setdiff1d(group, group[keep]))):
        return []
    of = len(np.unique(group))
    return [
        f"data: all rows of {lost} of {of} clients were drawn as test rows, so that {of - lost} clients are left: "
        "lower data.test_fraction, or leave clients of few rows out"
    ]


# ---------------------------------------------------------------------------------------------------------------------
# RawRows of any form, as a data set: gaps treated, labels numbered, test rows withheld.

CLIENT = "client"  # the column that says whose a row is, where clients come apart
GIVEN_ROW = "row"  # the column that says which of the user's rows a training row is, from 0
MOST_COUNTED = 5_000_000  # rows up to which there is that column


class RawRows(NamedTuple):
    """The rows of one part, as they were found.

    Attributes:
        x: Inputs, `[n, ...]`; numbers that are missing are NaN.
        y: Labels of any kind, `[n]` or `[n, q]`.
        group: The natural client of each row, `[n]` int64; None without any.
        columns: Further columns by name, `[n]` each.
        names: Names of the classes, where the form has them.
        features: Names of the inputs, where they have some.
        indicators: Which inputs are 0 or 1 for a category, `[f]`; they are not standardized. None: none.
        table: Columns of the table that they are of (`Dataset.table`).
        origin: What was subtracted from the inputs already (`fedray.data.types`), `[*s]`; None: nothing.
        remarks: What was done that the user should know, a sentence each.
    """

    x: Array
    y: Array
    group: IntArray | None = None
    columns: dict[str, Array] = {}  # noqa: RUF012  (nothing changes this default)
    names: Sequence[str] = ()
    features: tuple[str, ...] = ()
    indicators: Array | None = None
    table: dict[str, tuple[str, ...] | None] = {}  # noqa: RUF012  (nothing changes this default)
    origin: NDArray[np.float64] | None = None
    remarks: tuple[str, ...] = ()

    def take(self, rows: IntArray) -> RawRows:
        """Returns some of the rows, by rising indices."""
        group = None if self.group is None else self.group[rows]
        columns = {name: values[rows] for name, values in self.columns.items()}
        return self._replace(x=take_rows(self.x, rows), y=self.y[rows], group=group, columns=columns)


def make_reading(**given: Any) -> ReadOptions:
    """Returns the options of reading as users write them, checked; columns by their names as text.

    Args:
        given: Fields of `ReadOptions`; what is `input` elsewhere is called `features` by tables.

    Raises:
        BadInput: Names the option, its value and what it may be.

    Example:
        >>> make_reading(features=["age", 3]).input
        ['age', '3']
        >>> make_reading(task="guess")
        Traceback (most recent call last):
        fedray.core.errors.BadInput: data.task = 'guess' is not one of auto, classification, regression: choose one
    """
    for key in (*COLUMNS, "features"):
        if key in given:
            given[key] = spell_columns(given[key], f"data.{key}")
    if "features" in given:
        given["input"] = given.pop("features")
    for key in NUMBERS_AND_WORDS:
        if given.get(key) is not None:
            try:
                given[key] = CHECKS[key](given[key])
            except ValueError as wrong:
                raise BadInput(f"data.{key} = {quote_value(given[key])} {wrong}") from None
    reading = ReadOptions(**given)
    if reading.test is not None and reading.test_fraction != ReadOptions().test_fraction:
        raise BadInput("data.test_fraction cannot act, because data.test has the test rows: leave it out")
    if reading.length is not None and reading.tokenizer is None:
        raise BadInput(f"data.length = {reading.length} cannot act without data.tokenizer: leave it out")
    return reading


def refuse_idle(reading: ReadOptions, used: Collection[str], form: str) -> None:
    """Refuses options that a form of data does not read.

    Args:
        reading: The options.
        used: Those that the form reads.
        form: What messages call it.

    Raises:
        BadInput: Names the first one.
    """
    for key, value, default in zip(reading._fields, reading, ReadOptions(), strict=True):
        given = value is not None if default is None else value != default
        if given and key not in (*used, "input_key"):
            raise BadInput(f"data.{key} cannot act on {form}: leave it out")


def make_dataset(
    name: str, train: RawRows, test: RawRows | None, reading: ReadOptions, remarks: Sequence[str] = ()
) -> Dataset:
    """Returns a data set of rows as they were found.

    Args:
        name: For messages and records.
        train: The rows, of which test rows are drawn if there are no others. The data set has a column `row` with their
            places here.
        test: The test rows; None or without rows: they are drawn.
        reading: How the rows are read.
        remarks: What was done already that the user should know.

    Raises:
        BadInput: The rows cannot be used as they are; one line with the remedy.

    Example:
        >>> x = np.array([[1.0], [np.nan], [3.0], [4.0]] * 10, np.float32)
        >>> y = np.array(["no", "yes"] * 20)
        >>> make_dataset("mine", RawRows(x, y), None, ReadOptions())  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedray.core.errors.BadInput: data: 10 of 40 rows have missing inputs (the first is row 1): ...
        >>> data = make_dataset("mine", RawRows(x, y), None, ReadOptions(missing="drop"))
        >>> data.class_names, len(data.train.y), len(data.test.y)
        (('no', 'yes'), 24, 6)
    """
    given = [part for part in (train, test) if part is train or (part is not None and len(part.x))]
    check_parts(name, *(Split(part.x, part.y, part.group) for part in given))
    if GIVEN_ROW not in train.columns and len(train.x) <= MOST_COUNTED:
        train = train._replace(columns={**train.columns, GIVEN_ROW: np.arange(len(train.x))})
    if reading.task == "auto" and is_whole_with_gaps(train.y):
        reading = reading._replace(task="classification")
        remarks = [*remarks, *doubt_classes(train.y[~np.isnan(train.y)], "auto")]
    words = ("training ", "test ") if len(given) > 1 else ("",)
    whole = [_treat_gaps(part, reading, word) for part, word in zip([train, *given[1:]], words, strict=True)]
    inputs, origin = narrow([part.x for part in whole])
    known = whole[0].origin if origin is None else origin
    parts = [part._replace(x=x, origin=known) for part, x in zip(whole, inputs, strict=True)]
    train, test = parts[0], parts[1] if len(parts) > 1 else None
    remarks = [*remarks, *(remark for part in parts for remark in part.remarks)]
    labels = read_labels(train.y, None if test is None else test.y, reading.task, train.names)
    if test is None:
        numbers, train = train.y.dtype.kind in "iuf" and not train.names, train._replace(y=labels.train)
        generator = rng.stream(0, "table")
        keep, rest = draw_test_rows(train.y, bool(labels.names), reading.test_fraction, generator, numbers=numbers)
        remarks += tell_lost(train.group, keep)
        train, test = train.take(keep), train.take(rest)
    else:
        assert labels.test is not None
        train, test = train._replace(y=labels.train), test._replace(y=labels.test)
        if train.group is None:
            test = test._replace(group=None)
    means = None
    if reading.missing == "mean" and train.x.dtype.kind == "f":
        means = mean_of_columns(train.x)
        train, test = _fill(train, means), _fill(test, means)
    rows, held = (Split(part.x, part.y, part.group) for part in (train, test))
    data = classification(name, rows, held, labels.names) if labels.names else regression(name, rows, held)
    if train.indicators is not None:
        data.shift[:, train.indicators], data.scale[:, train.indicators] = 0.0, 1.0  # 0 and 1 stay as they are
    remarks = (*remarks, *labels.remarks, *tell_test_scale(data.kind, train.x, test.x, train.features))
    data = data._replace(columns=train.columns, remarks=remarks, means=means, origin=train.origin)
    return data._replace(features=train.features, table=train.table)


def draw_test_rows(
    y: Array, classes: bool, fraction: float, generator: np.random.Generator, *, numbers: bool = False
) -> tuple[IntArray, IntArray]:
    """Training rows and test rows, drawn at random; every class is divided in the same way.

    Args:
        y: Labels or targets.
        classes: Whether they are classes.
        fraction: Share of the rows that are test rows, between 0 and 1.
        generator: Draws them.
        numbers: Whether classes were whole numbers, which may be meant as targets.

    Raises:
        BadInput: One of the two would have no rows.
    """
    keep, rest = split_stratified(y if classes else np.zeros(len(y), np.int64), fraction, generator)
    if not len(keep) or not len(rest):
        of = f" of each of {len(np.unique(y))} classes" if classes else ""
        remedy = f"{'raise' if len(keep) else 'lower'} it, or give the test rows (data.test)"
        if classes:
            remedy += (
                ", or write data.task: regression if the labels are quantities" if numbers else ", or another target"
            )
        raise BadInput(f"data.test_fraction = {fraction}{of} leaves no rows of {len(y)} for one part: {remedy}")
    return keep, rest


def _treat_gaps(part: RawRows, reading: ReadOptions, word: str) -> RawRows:
    """RawRows without gaps, except for inputs that are filled when the training rows are known.

    `word` says which rows they are, where there are several kinds.
    """
    no_label = find_gaps(part.y)
    no_input = find_gaps(part.x) if reading.missing != "mean" else np.zeros(len(part.x), bool)
    refuse = partial(refuse_rows, where="data", kind=word)
    for what, values in (("inputs", part.x), ("labels", part.y)):
        remedy = "correct them, or leave those rows out"
        refuse(find_rows(values, np.isinf), what=f"infinite {what}", remedy=remedy)
    if reading.missing != "drop":
        refuse(no_label, what="no label", remedy="write data.missing: drop, or fill them")
    if reading.missing == "refuse":
        refuse(no_input, what="missing inputs", remedy="write data.missing: mean, or drop (those rows)")
    gaps = no_label | no_input
    if not gaps.any():
        return part
    if gaps.all():
        raise BadInput(f"data: each of {len(gaps)} {word}rows has gaps, so data.missing = drop leaves none: fill them")
    return part.take(np.flatnonzero(~gaps))


def _fill(part: RawRows, means: Array) -> RawRows:
    """RawRows with means instead of NaN."""
    if not any(np.isnan(piece).any() for piece in read_pieces(part.x)):
        return part
    spool = Spool()
    for piece in read_pieces(part.x):
        spool.append(np.where(np.isnan(piece), means, piece))
    return part._replace(x=spool.finish())
