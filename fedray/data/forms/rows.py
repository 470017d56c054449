"""Converts raw samples of any form to a data set. Treats missing values, converts labels and draws test samples.

A *natural client* is a client named in the data, such as the writer of a text.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedray.core import rng
from fedray.core.errors import BadInput, show_line
from fedray.core.options import CHECKS, NUMBERS_AND_WORDS, ReadOptions, check_value
from fedray.core.types import FloatArray, IntArray
from fedray.data.files import Spool, read_pieces, take_rows
from fedray.data.forms import arrays
from fedray.data.types import (
    Array,
    Dataset,
    Split,
    check_parts,
    classification,
    narrow,
    regression,
    remark_on_test_scale,
    split_stratified,
)
from fedray.own_code.user_code import blame_user_code, name_type

# ---------------------------------------------------------------------------------------------------------------------
# Conversion of text to tokens by the user's tokenizer.

MOST_TOKENS = 256  # largest number of tokens of a sample, if no length is given
Encode = Callable[[Sequence[str]], list[Sequence[int]]]


def tokenize(texts: Iterable[Sequence[Any]], tokenizer: Any, length: int | None) -> Array:
    """Converts texts to tokens `[n, L]` int32. Longer texts are cut, and shorter texts are filled with zeros.

    Args:
        texts: The texts, in one or more lists. Values of other types are converted to text.
        tokenizer: A function that takes a text and returns its tokens, a tokenizer of `tokenizers` or `transformers`,
            or the file or name of such a tokenizer.
        length: Number of tokens, L. None means the length of the longest text, but at most 256.

    Raises:
        BadInput: There is no such tokenizer, a text is missing, or the tokenizer returns no list of integers.

    Example:
        >>> tokenize([["a b", "c"]], lambda text: [1 + ord(c) for c in text], None).tolist()
        [[98, 33, 99], [100, 0, 0]]
    """
    encode, spool, longest, first = find_tokenizer(tokenizer), Spool(), 1, 0
    width = length or MOST_TOKENS
    for piece in texts:
        for number, value in enumerate(piece, first):
            if not isinstance(value, str) and arrays.is_missing(value):
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


def find_tokenizer(tokenizer: Any) -> Encode:
    """Returns a function that takes several texts and returns a list of tokens for each."""
    if tokenizer is None:
        raise BadInput("data: the inputs are text: give data.tokenizer, a function or the file of a tokenizer")
    if isinstance(tokenizer, str | Path):
        tokenizer = _load_tokenizer(str(tokenizer))
    if "tokenizers.Tokenizer" in arrays.list_classes(tokenizer):
        return lambda texts: [part.ids for part in tokenizer.encode_batch(list(texts))]

    def encode(texts: Sequence[str]) -> list[Sequence[int]]:
        with blame_user_code("data.tokenizer"):
            return [_as_ids(tokenizer(text)) for text in texts]

    return encode


def _load_tokenizer(name: str) -> Any:
    """Loads a tokenizer from a file, or by name from the user's cache. Nothing is downloaded."""
    file = Path(name).expanduser()
    try:
        if file.is_file():
            from tokenizers import Tokenizer

            return Tokenizer.from_file(str(file))
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(file) if file.is_dir() else name, local_files_only=True)
    except Exception as error:  # both packages raise errors of many kinds, and may be missing
        why = f"there is no such file, and no such name in the cache ({show_line(str(error))})"
        raise BadInput(f"data.tokenizer = {name}: {why}: give the file of a tokenizer") from error


def _as_ids(found: Any) -> Sequence[int]:
    """Converts a tokenizer's result for one text to a list of integer tokens."""
    given = found["input_ids"] if isinstance(found, Mapping) else getattr(found, "ids", found)
    tokens = np.asarray(given)
    if tokens.ndim != 1 or (len(tokens) and (tokens.dtype.kind not in "iu" or tokens.min() < 0)):
        raise BadInput(f"data.tokenizer returned {name_type(given)} for a text: return a list of whole numbers from 0")
    return list(tokens.tolist())


# ---------------------------------------------------------------------------------------------------------------------
# Remarks for the user about the samples.


def remark_on_lost_clients(group: IntArray | None, keep: IntArray) -> list[str]:
    """Returns a list with a remark if all samples of a client were drawn as test samples.

    Otherwise the list is empty. `group` has the client of each sample, `[n]`. `keep` has the indices of the training
    samples.

    Example:
        >>> remark_on_lost_clients(np.array([0, 1, 1, 1]), np.array([1, 2]))[0][:63]
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
# Conversion of raw samples of any form to a data set.

CLIENT = "client"  # the column with the client of each sample, if data are given for each client
GIVEN_ROW = "row"  # the column with the index of each training sample in the user's data, from 0


class RawRows(NamedTuple):
    """The raw samples of one part, before missing values are treated and labels are converted.

    Attributes:
        x: The inputs, `[n, ...]`. Missing numbers are NaN.
        y: The labels or targets, of any type, `[n]`, or q for each sample, `[n, q]`.
        group: The natural client of each sample, `[n]` int64. None means that there are no natural clients.
        columns: Further columns by name, `[n]` each.
        names: Names of the classes. The sequence is empty if the names are not known.
        features: Names of the input columns. The tuple is empty if the columns have no names.
        indicators: Whether each input is a 0-1 input of a category, `[f]`. Such inputs are not standardized. None means
            that there are no such inputs.
        table: Columns of the user's table, as in `Dataset.table`.
        origin: Array `[*s]` that was already subtracted from each input. None means that nothing was subtracted.
        remarks: Sentences for the user about changes made to the samples.
    """

    x: Array
    y: Array
    group: IntArray | None = None
    columns: dict[str, Array] = {}  # noqa: RUF012  (nothing changes this default)
    names: Sequence[str] = ()
    features: tuple[str, ...] = ()
    indicators: Array | None = None
    table: dict[str, tuple[str, ...] | None] = {}  # noqa: RUF012  (nothing changes this default)
    origin: FloatArray | None = None
    remarks: tuple[str, ...] = ()

    def take(self, rows: IntArray) -> "RawRows":
        """Returns the samples with the given indices, which must be in ascending order."""
        group = None if self.group is None else self.group[rows]
        columns = {name: values[rows] for name, values in self.columns.items()}
        return self._replace(x=take_rows(self.x, rows), y=self.y[rows], group=group, columns=columns)


def make_reading(**given: Any) -> ReadOptions:
    """Checks the options for reading. Converts all names of columns to text, and returns the options.

    Args:
        given: Fields of `ReadOptions` with the values that the user wrote. `features` is accepted as a second name of
            `input`.

    Raises:
        BadInput: An option has a wrong value.

    Example:
        >>> make_reading(features=["age", 3]).input
        ['age', '3']
        >>> make_reading(task="guess")
        Traceback (most recent call last):
        fedray.core.errors.BadInput: data.task = 'guess' is not one of auto, classification, regression: choose one
    """
    for key in (*arrays.COLUMNS, "features"):
        if key in given:
            given[key] = arrays.spell_columns(given[key])
    if "features" in given:
        given["input"] = given.pop("features")
    for key in NUMBERS_AND_WORDS:
        if given.get(key) is not None:
            given[key] = check_value(f"data.{key}", given[key], CHECKS[key])
    reading = ReadOptions(**given)
    if reading.length is not None and reading.tokenizer is None:
        raise BadInput(f"data.length = {reading.length} cannot act without data.tokenizer: leave it out")
    return reading


def refuse_idle(reading: ReadOptions, used: Collection[str], form: str) -> None:
    """Refuses options that have no effect on a form of data. `used` has the names of the options with an effect.

    Raises:
        BadInput: An option without effect is set.
    """
    for key, value, default in zip(reading._fields, reading, ReadOptions(), strict=True):
        given = value is not None if default is None else value != default
        if given and key not in (*used, "input_key"):
            raise BadInput(f"data.{key} cannot act on {form}: leave it out")


def refuse_second_test(reading: ReadOptions) -> None:
    """Refuses the option `test` for data that have test rows of their own."""
    if reading.test is not None:
        raise BadInput("data.test cannot act, because the data have test rows of their own: leave one of them out")


def align_parts(parts: Sequence[RawRows], reading: ReadOptions) -> list[RawRows]:
    """Gives all parts the same classes, and the same number of tokens.

    Labels of torch or Hugging Face are indices of names. If parts have different names, all labels become indices of
    the sorted names of all parts.

    Raises:
        BadInput: Parts have different names, and some labels are not indices of them.
    """
    named = {tuple(part.names) for part in parts if part.names}
    if len(named) > 1:
        names = sorted(set().union(*named))
        for part in parts:
            if part.y.dtype.kind not in "iu" or not set(np.unique(part.y)) <= set(range(len(part.names))):
                told = " and ".join(", ".join(each)[:100] for each in sorted(named)[:2])
                raise BadInput(f"data: parts have the classes {told}: give all parts the same classes")
        parts = [part._replace(y=np.searchsorted(names, np.array(part.names)[part.y]), names=names) for part in parts]
    if reading.tokenizer is not None and reading.length is None and all(part.x.ndim == 2 for part in parts):
        longest = max(part.x.shape[1] for part in parts)
        gaps = [longest - part.x.shape[1] for part in parts]
        parts = [p._replace(x=np.pad(p.x, ((0, 0), (0, gap)))) if gap else p for p, gap in zip(parts, gaps)]
    return list(parts)


def make_dataset(
    name: str, train: RawRows, test: RawRows | None, reading: ReadOptions, remarks: Sequence[str] = ()
) -> Dataset:
    """Converts raw samples to a data set.

    Args:
        name: Name of the data set in messages and records.
        train: The training samples. The data set gets a column `row` with the index of each sample in `train`.
        test: The test samples. If None or empty, test samples are drawn from `train`.
        reading: The options for reading.
        remarks: Earlier remarks for the user about changes made to the samples.

    Raises:
        BadInput: The samples cannot be used as they are.

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
    if len(given) > 1 and reading.test_fraction not in (0, ReadOptions().test_fraction):
        raise BadInput("data.test_fraction cannot act, because the data have test rows: leave it out")
    given = align_parts(given, reading)
    train = given[0]
    check_parts(name, *(Split(part.x, part.y, part.group) for part in given))
    if GIVEN_ROW not in train.columns:
        train = train._replace(columns={**train.columns, GIVEN_ROW: np.arange(len(train.x))})
    if reading.task == "auto" and arrays.is_whole_with_gaps(train.y):
        reading = reading._replace(task="classification")
        remarks = [*remarks, *arrays.remark_on_many_classes(train.y[~np.isnan(train.y)], "auto")]
    words = ("training ", "test ") if len(given) > 1 else ("",)
    whole = [_treat_gaps(part, reading, word) for part, word in zip([train, *given[1:]], words, strict=True)]
    inputs, origin = narrow([part.x for part in whole])
    known = whole[0].origin if origin is None else origin
    parts = [part._replace(x=x, origin=known) for part, x in zip(whole, inputs, strict=True)]
    train, test = parts[0], parts[1] if len(parts) > 1 else None
    remarks = [*remarks, *(remark for part in parts for remark in part.remarks)]
    labels = arrays.read_labels(train.y, None if test is None else test.y, reading.task, train.names)
    if test is None:
        train = train._replace(y=labels.train)
        every = np.arange(len(train.y))
        keep, rest = (
            (every, every[:0])
            if not reading.test_fraction
            else draw_test_rows(train.y, bool(labels.names), reading.test_fraction, rng.stream(0, "table"))
        )
        remarks += remark_on_lost_clients(train.group, keep)
        train, test = train.take(keep), train.take(rest)
    else:
        assert labels.test is not None
        train, test = train._replace(y=labels.train), test._replace(y=labels.test)
        if train.group is None:
            test = test._replace(group=None)
    means = None
    if reading.missing == "mean" and train.x.dtype.kind == "f":
        means = arrays.mean_of_columns(train.x)
        train, test = _fill(train, means), _fill(test, means)
    rows, held = (Split(part.x, part.y, part.group) for part in (train, test))
    data = classification(name, rows, held, labels.names) if labels.names else regression(name, rows, held)
    if train.indicators is not None:
        data.shift[:, train.indicators], data.scale[:, train.indicators] = 0.0, 1.0  # 0 and 1 stay unchanged
    remarks = (*remarks, *labels.remarks, *remark_on_test_scale(data.kind, train.x, test.x, train.features))
    data = data._replace(columns=train.columns, remarks=remarks, means=means, origin=train.origin)
    return data._replace(features=train.features, table=train.table)


def draw_test_rows(
    y: Array, classes: bool, fraction: float, generator: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Splits samples at random into training and test samples.

    `fraction` is the share of test samples in every class, between 0 and 1.

    Raises:
        BadInput: One of the two parts would be empty.
    """
    keep, rest = split_stratified(y if classes else np.zeros(len(y), np.int64), fraction, generator)
    if not len(keep) or not len(rest):
        of = f" of each of {len(np.unique(y))} classes" if classes else ""
        remedy = f"{'raise' if len(keep) else 'lower'} it, give the test rows (data.test)"
        remedy += ", or write data.task: regression if the labels are quantities" if classes else ""
        raise BadInput(f"data.test_fraction = {fraction}{of} leaves no rows of {len(y)} for one part: {remedy}")
    return keep, rest


def _treat_gaps(part: RawRows, reading: ReadOptions, word: str) -> RawRows:
    """Refuses or drops samples with missing values, as the option `missing` says.

    If `missing` is `mean`, missing inputs are replaced later. `word` names the samples in messages (`training ` or
    `test `).
    """
    no_label = arrays.find_gaps(part.y)
    no_input = arrays.find_gaps(part.x) if reading.missing != "mean" else np.zeros(len(part.x), bool)
    refuse = partial(arrays.refuse_rows, where="data", kind=word)
    for what, values in (("inputs", part.x), ("labels", part.y)):
        remedy = "correct them, or leave those rows out"
        refuse(arrays.find_rows(values, np.isinf), what=f"infinite {what}", remedy=remedy)
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
    """Replaces each NaN in the inputs by the mean of the column."""
    if not any(np.isnan(piece).any() for piece in read_pieces(part.x)):
        return part
    spool = Spool()
    for piece in read_pieces(part.x):
        spool.append(np.where(np.isnan(piece), means, piece))
    return part._replace(x=spool.finish())
