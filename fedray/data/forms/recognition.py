"""Which form a user's data have, and who reads it: one row a form, and the first that knows a thing reads it.

A row may open what it holds by the rows again: a table with its labels is a table, and a file of a table is one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedray.core.errors import BadInput
from fedray.core.read_options import ReadOptions
from fedray.data.forms import clients, hugging_face, leaf, pairs, pictures, tables
from fedray.data.forms.arrays import as_array, is_array
from fedray.data.forms.pairs import describe_thing, is_pair
from fedray.data.forms.rows import refuse_idle
from fedray.data.types import Dataset
from fedray.files.layout import find_parts, list_tables
from fedray.files.plain import expand_user_path


class Form(NamedTuple):
    """A form of a user's own data.

    Attributes:
        name: What messages call it.
        is_it: Whether a thing has it. A `Path` is that of a file or a folder that exists.
        open: Reads a thing of it, as the options say.
        options: Those that it reads; others are refused. None: `open` refuses what it does not read.
    """

    name: str
    is_it: Callable[[Any], bool]
    open: Callable[[Any, ReadOptions], Dataset]
    options: Collection[str] | None = None


def read_form(thing: Any, reading: ReadOptions) -> Dataset:
    """Returns a data set of data in the form that a user has them.

    Args:
        thing: One of the forms that `fedray.data.adapt` lists.
        reading: How they are read.

    Raises:
        BadInput: The data are of no such form, or cannot be read; one line with the remedy.

    Example:
        >>> read_form("digits", ReadOptions())
        Traceback (most recent call last):
        fedray.core.errors.BadInput: data is text: give pathlib.Path('digits') for a file or a folder, or data__name
    """
    if isinstance(thing, Path):
        place = expand_user_path("data", str(thing))
        if not place.exists():
            raise BadInput(f"data = {thing}: there is no such file or folder: correct the path")
        thing = place
    form = next(form for form in FORMS if form.is_it(thing))
    if form.options is not None:
        refuse_idle(reading, form.options, form.name)
    return form.open(thing, reading)


def _read_table_with_labels(pair: Any, reading: ReadOptions) -> Dataset:
    """Returns a table of inputs and a column of labels, and the same of the test rows."""
    whole, target = _join_target(pair)
    test = None if reading.test is None else _join_target(reading.test)[0]
    return tables.read_table(tables.as_frame(whole), reading._replace(target=target, test=test))


def _join_target(pair: Any) -> tuple[Any, str]:
    """Returns a table of inputs and a column of labels as one table, and the name of the target."""
    import pandas as pd

    if not is_pair(pair) or not tables.is_frame(pair[0]):
        raise BadInput(f"data.test is {describe_thing(pair)}: give a pair (x, y) as the data are")
    frame, y = tables.as_frame(pair[0]), as_array(pair[1], "data: y")
    if y.ndim != 1 or len(y) != len(frame):
        raise BadInput(f"data has {len(frame)} inputs, but labels of shape {list(y.shape)}: give one for each input")
    target = str(getattr(pair[1], "name", None) or "target")
    if target in list(frame):
        raise BadInput(f"data: the inputs have a column {target}, which is also the name of the labels: leave it out")
    whole = pd.DataFrame({column: frame[column].reset_index(drop=True) for column in frame})
    return whole.assign(**{target: y}), target


def _read_mapping(things: Mapping[Any, Any], reading: ReadOptions) -> Dataset:
    """Returns a mapping from clients to data, or from parts to data of any form."""
    parts = find_parts(map(str, things), "data", reading.test if isinstance(reading.test, str) else None)
    if parts is None:
        return clients.read_client_map(things, reading)
    named = {str(name): value for name, value in things.items()}
    if parts.test is not None:
        if parts.test not in named or (reading.test is not None and not isinstance(reading.test, str)):
            raise BadInput(f"data.test cannot act beside the parts {', '.join(named)}: name one of them")
        reading = reading._replace(test=named[parts.test])
    data = read_form(named[parts.train], reading)
    return data._replace(remarks=(*parts.remarks, *data.remarks))


FORMS = (
    Form("a fedray.data.Dataset", lambda thing: isinstance(thing, Dataset), lambda data, _: data),
    Form("a Hugging Face data set", hugging_face.is_hugging_face, hugging_face.read_hugging_face),
    Form("LEAF's JSON", leaf.holds_users, leaf.read_users, pairs.OPTIONS),
    Form("a file of a table", lambda thing: isinstance(thing, Path) and thing.is_file(), tables.read_table_file),
    Form("what save_to_disk wrote", hugging_face.is_saved, hugging_face.read_saved),
    Form("a folder of tables", lambda at: isinstance(at, Path) and bool(list_tables(at)), clients.read_table_folder),
    Form("a folder of pictures", lambda at: isinstance(at, Path), pictures.read_folder, pictures.OPTIONS),
    Form("a table", tables.is_frame, lambda frame, how: tables.read_table(tables.as_frame(frame), how)),
    Form("a mapping", lambda thing: isinstance(thing, Mapping), _read_mapping),
    Form(
        "two tables",
        lambda two: is_pair(two) and all(map(tables.is_frame, two)) and list(two[0]) == list(two[1]),
        lambda two, how: tables.read_table(tables.as_frame(two[0]), how._replace(test=two[1])),
    ),
    Form(
        "a table with its labels",
        lambda pair: is_pair(pair) and tables.is_frame(pair[0]) and is_array(pair[1]),
        _read_table_with_labels,
        tables.TEXT_OPTIONS - {"target"},
    ),
    Form(pairs.NAME, lambda _: True, pairs.read_thing, pairs.OPTIONS),  # the last: it says what else is no form
)
