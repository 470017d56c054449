"""Own data in a form that cannot be used, or not as it is: one line that says what it is and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from small import scenario

import fedray
from fedray.core.errors import BadInput, FedrayWarning
from fedray.data import Split, adapt, classification
from fedray.data.catalogue import load_data
from fedray.data.forms.new_rows import read_inputs

X, Y = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 3
FRAME = pd.DataFrame({"age": X[:, 0], "city": ["Rome", "Oslo", "Bonn"] * 20, "ill": Y})
GAPS = FRAME.assign(age=FRAME["age"].where(FRAME["ill"] > 0), city=FRAME["city"].where(FRAME.index > 4))
DATES = FRAME.assign(day=pd.Timestamp(0), note=[f"note {i}" for i in range(60)])
HUB = datasets.Dataset.from_dict({"a": X[:, 0], "b": X[:, 1], "kind": Y})
NAN = np.where(X > 2, np.nan, X)


def at_row_50(values: np.ndarray[Any, Any], wrong: float) -> np.ndarray[Any, Any]:
    """A copy with a wrong number, of which another row was named: that of the withheld test rows."""
    out = values.copy()
    out[50, 0] = wrong
    return out


class Dicts(torch.utils.data.Dataset[dict[str, int]]):
    """Items that are no pairs."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> dict[str, int]:
        return {"x": i}


FORMS: list[tuple[Any, dict[str, Any], str]] = [
    (X, {}, "data is a ndarray without labels: give a pair"),
    ((X, X, Y, Y), {}, "data is a tuple of 4 .*: give a pair"),
    ("mnist", {}, r"data is text: give pathlib.Path\('mnist'\)"),
    ((X, Y[:50]), {}, "^data arrays: train has 60 inputs, but 50 labels: give one for each input$"),
    ((NAN, Y), {}, r"\d of 60 rows have missing inputs \(the first is row \d+\): write data.missing: mean, or drop"),
    (((X, Y), (NAN, Y)), {}, r"of 60 test rows have missing inputs \(the first is row \d+\): write data.missing"),
    (((NAN, Y), (X, Y)), {}, r"of 60 training rows have missing inputs \(the first is row \d+\): write data.mis"),
    ((at_row_50(X, np.inf), Y), {}, r"^data: 1 of 60 rows have infinite inputs \(the first is row 50\): correct them"),
    (
        (at_row_50(X, np.inf), Y),
        {"missing": "drop"},
        r"^data: 1 of 60 rows have infinite inputs \(the first is row 50\)",
    ),
    (
        (X, at_row_50(X, -np.inf)[:, 0]),
        {},
        r"^data: 1 of 60 rows have infinite labels \(the first is row 50\): correct",
    ),
    (
        (X, np.array(["a", None, "b"] * 20, dtype=object)),
        {},
        "20 of 60 rows have no label .*: write data.missing",
    ),
    ((X, np.arange(60) / 7), {"task": "classification"}, "data.task = classification, but the labels are real numbers"),
    (
        (np.zeros((3000, 1)), np.arange(3000)),
        {},
        "3000 different whole numbers in 3000 rows: write data.task",
    ),
    (([[1.0, 2.0], [3.0]] * 30, Y), {}, "x has rows of different lengths"),
    ((["good", "bad", "so"] * 20, Y), {}, "the inputs are text: give data.tokenizer"),
    (FRAME, {}, "data.target is missing: name the column to predict: age, city, ill .*: data__target=COLUMN"),
    (
        ((X, Y), (X[:9], np.linspace(-2, 2, 9))),
        {},
        "^data: the labels are whole numbers, .* of the test rows real numbers",
    ),
    (((X, np.array(["a", "b"] * 30)), (X, Y)), {}, "^data: the labels are text in the training or the test rows and"),
    (FRAME, {"target": "il"}, r"has no column il: did you mean ill\? \(its columns: age, city, ill\)"),
    (
        FRAME,
        {"target": "ill", "input": ["agee"]},
        r"no column agee: did you mean age\? \(its columns: age, city",
    ),
    (FRAME, {"target": "ill", "missing": "median"}, "data.missing = 'median' is not one of refuse, mean, drop"),
    (GAPS, {"target": "ill"}, r"columns age \(20\), city \(5\) have missing values: write data.missing: mean"),
    (
        GAPS,
        {"target": "city", "missing": "mean"},
        "city has 5 missing values, and a target or a client has no mean",
    ),
    (FRAME.assign(day=pd.Timestamp(0)), {"target": "ill", "input": ["day"]}, "column day is of type datetime64"),
    (FRAME.assign(age="x"), {"target": "ill", "input": ["age", "age"]}, "data.input: column age is named twice"),
    (
        DATES[["day", "ill"]],
        {"target": "ill"},
        "^data: the table has no column of numbers or categories beside the target: make numbers or text of day$",
    ),
    (DATES[["note", "ill"]], {"target": "ill"}, "^data: the table has no column .*: name note in data.input$"),
    ((X[:0], Y[:0]), {}, "^data arrays: train has no rows: give some$"),
    (FRAME[:0], {"target": "ill"}, "^data: the table has no rows: give some$"),
    (FRAME[:0], {"target": "age", "test": FRAME}, "^data: the table has no rows: give some$"),
    ({"a": (X[:0], Y[:0]), "b": (X[:0], Y[:0])}, {}, "^data clients: train has no rows: give some$"),
    ((X * np.nan, Y), {"missing": "drop"}, "^data: each of 60 rows has gaps, so data.missing = drop leaves none"),
    (FRAME.assign(age=np.nan), {"target": "age", "missing": "drop"}, "^data: each of 60 rows has gaps, so"),
    (HUB, {}, "data.target is missing: name the column to predict: a, b, kind"),
    (HUB.to_iterable_dataset(), {}, "data is read as a stream: load it without streaming=True"),
    (datasets.DatasetDict({"a": HUB, "b": HUB}), {}, "say which split has the training rows: a, b"),
    (
        datasets.DatasetDict({"train": HUB}),
        {"target": "kind", "test": "tst"},
        "data.test = tst: there is no such",
    ),
    (torch.utils.data.DataLoader(Dicts()), {}, "data is a DataLoader: give its data set, loader.dataset"),
    (Dicts(), {}, "item 0 is a dict: give pairs of an input and a label"),
    ({"a": (X, Y), "b": (X[:, :3], Y)}, {}, "client b has rows of shape .*: give all clients' inputs one shape"),
    ({"a": FRAME, "b": FRAME[["ill"]]}, {"target": "ill"}, "client b has no column age, but a has"),
    ((X, Y), {"target": "ill"}, "data.target cannot act on pairs of inputs and labels: leave it out"),
    (FRAME, {"target": "ill", "size": 8}, "data.size cannot act on a table without data.tokenizer: leave it out"),
    ((X, Y), {"length": 8}, "data.length = 8 cannot act without data.tokenizer: leave it out"),
    (
        (X, Y),
        {"test": (X, Y), "test_fraction": 0.5},
        "data.test_fraction cannot act, because data.test has the test rows",
    ),
    (HUB, {"target": "kind", "size": 8}, "data.size cannot act on columns of numbers: leave it out"),
    (Path("nowhere.csv"), {}, "data = nowhere.csv: there is no such file or folder"),
]


@pytest.mark.parametrize(("thing", "options", "line"), FORMS, ids=[line[:40] for *_, line in FORMS])
def test_what_cannot_be_read_is_one_line(thing: Any, options: dict[str, Any], line: str) -> None:
    with pytest.raises(BadInput, match=line) as error:
        adapt(thing, **options)
    assert "\n" not in str(error.value)


def test_the_note_on_a_column_that_is_left_out_named_a_key_of_files(tmp_path: Path) -> None:
    table = DATES.drop(columns=["city", "day"])
    with pytest.warns(UserWarning, match=r"^data: column note is text .*: name it in data.input$"):
        adapt(table, target="ill")
    table.drop(columns="note").assign(day="x").to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(BadInput, match="^data.features: column day is named twice"):
        load_data("table", path=str(tmp_path / "t.csv"), target="ill", features=["day", "day"])


RUNS: list[tuple[dict[str, Any], str]] = [
    ({"data": FRAME, "data__features": ["age"]}, r"data.features is no option of data .*: did you mean data.input\?"),
    ({"data": FRAME, "data__client": "ward"}, r"data.client is no option of data .*: did you mean data.group\?"),
    ({"data": FRAME, "data__tagret": "age"}, r"data.tagret is no option of data .*: did you mean data.target\?"),
    (
        {"data": adapt((X, Y)), "data__target": "ill"},
        "data.target cannot act, because the data are a fedray",
    ),
    ({"data": {"naem": "digits"}}, r"data.naem is not a key of data set digits: did you mean data.name\?"),
    (
        {"data": (X, Y), "model": torch.nn.Linear(4, 3)},
        r"model is a module, Linear\(...\): give a function that",
    ),
    ({"data": (X, Y), "model": lambda: torch.nn.Linear(5, 3)}, r"cannot read the data, features of shape \[4\]"),
    ({"data": (X.astype(int) % 9, Y)}, "tokens of shape .*, or give inputs as float32 if they are numbers"),
    ({"data": (X.astype(int) % 9, Y), "model": {"name": "lstm"}}, "model.vocabulary = 3, .* go up to 8: set it to 9"),
    (
        {"data": FRAME, "data__target": "ill", "data__partition": {"name": "column", "column": "citty"}},
        "no such column in table; its columns: age, city, ill",
    ),
    (
        {"data": classification("mine", Split(X, Y), Split(X[:0], Y[:0]), ("a", "b", "c"))},
        r"test has no rows, .*: give some, or data=\(x, y\), of which a fifth is kept",
    ),
]


@pytest.mark.filterwarnings("ignore:data. column city is text")
@pytest.mark.parametrize(("arguments", "line"), RUNS, ids=[line[:40] for _, line in RUNS])
def test_a_run_says_in_one_line_what_its_data_cannot_be_used_for(arguments: dict[str, Any], line: str) -> None:
    keys = {key: value for key, value in scenario().items() if key not in ("data", "model")}
    with pytest.raises(BadInput, match=line) as error:
        fedray.run(keys, **arguments)
    assert "\n" not in str(error.value)


def test_a_file_of_another_program_says_how_to_convert_it(tmp_path: Path) -> None:
    (tmp_path / "a.xlsx").write_bytes(b"PK")
    with pytest.raises(BadInput, match=r".xlsx files are not read: convert it once, pandas.read_excel"):
        adapt(tmp_path / "a.xlsx", target="ill")
    with pytest.raises(BadInput, match=r"it has no folders: put the pictures of each class into a folder"):
        fedray.run(scenario(), data={"name": "folder", "path": str(tmp_path)})
    with pytest.raises(BadInput, match=r"data.path = imdb: no such folder, and no such name in .*data.download: true"):
        fedray.run({"rounds": 1}, data={"name": "hf", "path": "imdb"})


TEXTS = pd.DataFrame({"text": ["a b", "a", "b", "b a"] * 10, "kind": [0, 1] * 20, "who": [*"bcda"] * 10})


def count_letters(text: str) -> list[int]:
    return [1 + ord(letter) - ord("a") for letter in text.split()]


def test_a_table_of_text_has_the_clients_of_its_group() -> None:
    """`group` had no effect beside a tokenizer."""
    data = adapt(TEXTS, target="kind", input="text", group="who", tokenizer=count_letters)
    assert data.train.group is not None and data.test.group is not None
    known = np.array(["a", "b", "c", "d"])
    assert known[data.train.group].tolist() == data.columns["who"].tolist()
    table = adapt(datasets.Dataset.from_pandas(TEXTS), target="kind", group="who", tokenizer=count_letters)
    assert table.train.group is not None and table.test.group is not None
    assert np.array_equal(table.train.group, data.train.group) and np.array_equal(table.test.group, data.test.group)


def test_test_rows_of_a_hub_belong_to_the_clients_of_the_training_rows() -> None:
    """Clients were numbered among those of each split alone: the test rows of b were those of a."""
    some = TEXTS[TEXTS["who"].isin(["b", "d"])].reset_index(drop=True).replace({"who": {"d": "z"}})
    both = {"train": datasets.Dataset.from_pandas(TEXTS), "test": datasets.Dataset.from_pandas(some)}
    data = adapt(datasets.DatasetDict(both), target="kind", group="who", tokenizer=count_letters)
    assert data.test.group is not None
    assert data.test.group.tolist() == [1 if who == "b" else -1 for who in some["who"]]


@pytest.mark.parametrize("gap", [None, np.nan])
def test_a_missing_text_is_no_text(gap: float | None) -> None:
    """It was the text `nan` or `None`, or the tokenizer's fault."""
    texts = [gap, *TEXTS["text"][1:]]
    table = pd.DataFrame({"text": texts, "kind": TEXTS["kind"]})
    hub = datasets.Dataset.from_dict({"text": [None, *texts[1:]], "kind": TEXTS["kind"].tolist()})
    for thing in ((texts, TEXTS["kind"]), (np.array(texts, dtype=object), TEXTS["kind"]), table, hub):
        names: dict[str, Any] = {} if isinstance(thing, tuple) else {"input": "text", "target": "kind"}
        with pytest.raises(BadInput, match="row 0 has no text: leave such rows out"):
            adapt(thing, tokenizer=count_letters, **names)


def test_options_of_text_and_pictures_that_cannot_act_on_numbers_are_refused() -> None:
    for options in ({"size": 8}, {"tokenizer": count_letters}):
        with pytest.raises(BadInput, match=f"data.{next(iter(options))} cannot act on inputs that are numbers"):
            adapt((X, Y), **options)
    with pytest.raises(BadInput, match=r"data.size cannot act on a table of text"):
        adapt(TEXTS, target="kind", input="text", tokenizer=count_letters, size=8)


def test_clients_that_vanish_are_said() -> None:
    """A client without rows, or without training rows, was left out in silence."""
    rome, nobody = (X, Y), (X[:0], Y[:0])
    with pytest.raises(BadInput, match=r"client Oslo has no rows: leave it out"):
        adapt({"Rome": rome, "Oslo": nobody})
    with pytest.raises(BadInput, match=r"client Oslo has no rows: leave it out"):
        adapt({"Rome": FRAME, "Oslo": FRAME[:0]}, target="ill")
    hub = {"Rome": HUB, "Oslo": HUB.select([])}
    with pytest.raises(BadInput, match=r"client Oslo has no rows: leave it out"):
        adapt(hub, target="kind")
    with pytest.warns(FedrayWarning, match=r"all rows of 12 of 60 clients were drawn as test rows, so that 48 clients"):
        adapt(pd.DataFrame({"a": X[:, 0], "ill": Y, "who": range(60)}), target="ill", group="who")


def test_an_npz_file_is_not_a_mapping_from_clients(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=X, y=Y)
    with np.load(tmp_path / "rows.npz") as rows, pytest.raises(BadInput, match=r"arrays x, y of an .npz file"):
        adapt(rows)


def test_texts_to_predict_were_told_to_be_a_table() -> None:
    """Tokens are given as tokens: a run does not keep the tokenizer of its data."""
    data = adapt(
        (["a b", "b", "a", "b a"] * 4, [0, 1] * 8), tokenizer=lambda text: [ord(letter) % 32 for letter in text]
    )
    with pytest.raises(BadInput, match=r"trained on tokens: give them as whole numbers \[n, 3\]"):
        read_inputs(data, ["a b", "b"])
