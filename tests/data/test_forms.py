"""One set of digits in every form that people have: wherever the rows are the same, the models are the same."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

import fedray
from fedray.core.errors import BadInput, FedrayWarning
from fedray.data import Dataset, Split, adapt, classification, store
from fedray.data.catalogue import load_data
from fedray.data.shards import hash_array
from fedray.data.types import Array

SCENARIO = {
    "rounds": 2,
    "runtime": "inline",
    "report": False,
    "method": "fedavg",
    "clients": 4,
    "data": {"partition": {"name": "dirichlet", "alpha": 1.0, "allow_empty": True}},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"lr": 0.05, "epochs": 1},
}


def take_digits() -> tuple[Array, Array]:
    """200 digits by class, so that the rows of a folder of classes come in the same order."""
    train = load_data("digits").train
    order = np.argsort(train.y[:200], kind="stable")
    return train.x[:200][order], train.y[:200][order]


X, Y = take_digits()
FLAT = X.reshape(200, 64)
FRAME = pd.DataFrame({**{f"p{i}": FLAT[:, i] for i in range(64)}, "digit": Y})
NAMES = [str(c) for c in range(10)]


class Pairs(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """The digits as a map-style data set."""

    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(X[i]), int(Y[i])


def write_pictures(home: Path) -> Path:
    for i, (picture, digit) in enumerate(zip(X, Y, strict=True)):
        (home / "digits" / str(digit)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture[0]).save(home / "digits" / str(digit) / f"{i:04}.png")
    return home / "digits"


def write_clients(home: Path) -> Path:
    (home / "wards").mkdir()
    for client in range(4):
        FRAME.iloc[client * 50 : (client + 1) * 50].to_parquet(home / "wards" / f"ward{client}.parquet")
    return home / "wards"


def hash_models(data: Any, **options: Any) -> str:
    """What a run with these data ends with."""
    return str(fedray.run(SCENARIO, data=data, **options).summary["model_hash"])


def hash_rows(thing: Any, **options: Any) -> str:
    """A digest of all that a data set made of a form trains on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        data = adapt(thing, **options)
    parts = (data.train.x, data.train.y, data.test.x, data.test.y, data.shift, data.scale)
    return " ".join([hash_array(part) for part in parts] + [str(data.classes)])


def test_pictures_are_the_same_in_every_form(tmp_path: Path) -> None:
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)})
    columns = {"image": [Image.fromarray(x[0]) for x in X], "label": Y}
    pictures = datasets.Dataset.from_dict(columns, features=features)
    lists = datasets.Dataset.from_dict({"image": X[:, 0].tolist(), "label": Y.tolist()})
    folder, per_client = write_pictures(tmp_path), [slice(c * 50, (c + 1) * 50) for c in range(4)]
    forms: dict[str, Any] = {
        "one gray plane": (X[:, 0], Y),
        "tensors": (torch.from_numpy(X), torch.from_numpy(Y)),
        "text": (X, Y.astype(str)),
        "one-hot": (X, np.eye(10)[Y]),
        "1 to 10": (X, Y + 1),
        "whole numbers": (X.astype(np.int64), Y.astype(np.int16)),
        "torch": Pairs(),
        "TensorDataset": TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
        "folder": folder,
        "Hugging Face": pictures,
        "lists of Hugging Face": lists,
        "a pair a client": {f"client {c}": (X[part], Y[part]) for c, part in enumerate(per_client)},
    }
    assert {name: hash_rows(thing) for name, thing in forms.items()} == dict.fromkeys(forms, hash_rows((X, Y)))
    runs: list[Any] = [(X, Y), Pairs(), pictures, folder, {"name": "folder", "path": str(folder)}]
    assert len({hash_models(thing) for thing in runs}) == 1


def test_seven_channels_that_came_last_were_read_as_a_side_in_silence() -> None:
    images = np.zeros((40, 9, 9, 7), np.float32)
    with pytest.warns(
        FedrayWarning, match=r"\[9, 9, 7\] are read as 9 channels of 9 x 7: where the 7 are the channels, give"
    ):
        adapt((images, Y[:40] % 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error", FedrayWarning)
        assert adapt((images.transpose(0, 3, 1, 2), Y[:40] % 2)).train.x.shape[1:] == (7, 9, 9)


def test_tables_are_the_same_in_every_form(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    FRAME.to_csv(tmp_path / "digits.csv", index=False)
    feather.write_feather(FRAME, str(tmp_path / "digits.feather"))
    hub = datasets.Dataset.from_pandas(FRAME)
    hub.save_to_disk(str(tmp_path / "hub"))
    wards = write_clients(tmp_path)
    forms: dict[str, Any] = {
        "pandas": FRAME,
        "polars": polars.from_pandas(FRAME),
        "pyarrow": pa.Table.from_pandas(FRAME),
        "Hugging Face": hub,
        "a table and a column": (FRAME.drop(columns="digit"), FRAME["digit"]),
        "csv": tmp_path / "digits.csv",
        "feather": tmp_path / "digits.feather",
        "a file a client": wards,
        "a Hugging Face data set a client": {f"ward {c}": hub.select(range(c * 50, (c + 1) * 50)) for c in range(4)},
        "a frame a client": {c: FRAME.iloc[c * 50 : (c + 1) * 50] for c in range(4)},
    }
    pair = (FLAT.astype(np.float64), Y)
    found = {n: hash_rows(v, **({} if isinstance(v, tuple) else {"target": "digit"})) for n, v in forms.items()}
    assert found == dict.fromkeys(forms, hash_rows(pair))
    named = {"name": "hf", "path": str(tmp_path / "hub"), "target": "digit"}
    runs = [hash_models(pair), hash_models(named)]
    runs += [hash_models(thing, data__target="digit") for thing in (FRAME, wards)]
    assert len(set(runs)) == 1


def test_two_parts_are_training_and_test_rows() -> None:
    held = np.arange(200) % 4 == 0
    split = {"train": (X[~held], Y[~held]), "test": (X[held], Y[held])}
    forms: list[Any] = [
        (split["train"], split["test"]),
        datasets.DatasetDict({k: datasets.Dataset.from_dict({"x": x.tolist(), "y": y}) for k, (x, y) in split.items()}),
        tuple(TensorDataset(*map(torch.from_numpy, part)) for part in split.values()),
    ]
    for thing in forms:
        data = adapt(thing)
        assert np.array_equal(data.train.x.ravel(), X[~held].ravel())
        assert np.array_equal(data.test.y, Y[held])
    with_test = adapt(FRAME[~held], target="digit", test=FRAME[held])
    assert np.array_equal(with_test.test.x, FLAT[held])


def test_the_rows_of_a_client_stay_its_own(tmp_path: Path) -> None:
    """A mapping from clients to data was taken for keys of a scenario."""
    wards = write_clients(tmp_path)
    plain = {key: value for key, value in SCENARIO.items() if key not in ("data", "clients")}
    by_file = fedray.run(plain, data=wards, data__target="digit", out=tmp_path / "run")
    shards = by_file.study.shards
    assert by_file.study.clients.number == 4
    for client in range(4):
        rows = shards.data.columns["client"][shards.fetch(np.array([0]), np.array([client])).rows[0].numpy()]
        assert set(rows) == {f"ward{client}"}
    again = fedray.load(tmp_path / "run", data=wards)
    assert again.study.scenario["data"]["target"] == "digit", "how the data were read is recorded"
    other = {c: (FLAT[c * 50 : (c + 1) * 50].astype(float), Y[c * 50 : (c + 1) * 50]) for c in range(4)}
    assert fedray.run(plain, data=other).summary["model_hash"] == by_file.summary["model_hash"]


def test_tables_of_clients_are_joined_without_a_new_table_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """They took 2 ms a client, and 100,000 clients minutes."""
    ward = pd.DataFrame({"age": [1.0, 2.0] * 5, "ill": ["no", "yes"] * 5, "bed": range(10)}, index=range(7, 17))
    other = ward[["bed", "ill", "age"]].assign(more=0)  # another order, and a column that the first one lacks
    made, init = list[int](), pd.DataFrame.__init__

    def count(*arguments: Any, **how: Any) -> None:
        made.append(1)
        init(*arguments, **how)

    monkeypatch.setattr(pd.DataFrame, "__init__", count)
    data = adapt({f"w{i}": other if i % 3 == 2 else ward for i in range(60)}, target="ill")
    assert len(made) < 60
    assert data.train.group is not None and np.unique(data.train.group).tolist() == list(range(60))
    assert {tuple(row) for row in data.train.x} <= {(1.0 + bed % 2, float(bed)) for bed in range(10)}


def test_rows_that_are_large_lie_in_the_store_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).normal(size=(6000, 64)).astype(np.float32)
    data = adapt((x, np.arange(6000) % 3))
    files = sorted(cache.iterdir())
    assert len(files) == 1
    assert np.array_equal(store.map_store(files[0])[0]["train x"], data.train.x)
    adapt((x, np.arange(6000) % 3))
    assert sorted(cache.iterdir()) == files
    hub = datasets.Dataset.from_dict({"x": x.tolist(), "label": [0, 1] * 3000})
    first = adapt(hub)
    monkeypatch.setattr("fedray.data.adaptation.read_form", None)
    assert np.array_equal(adapt(hub).train.x, first.train.x), "it is not read again"


def test_missing_inputs_get_the_mean_of_the_training_rows_or_their_rows_are_dropped() -> None:
    x = np.arange(80.0).reshape(40, 2)
    x[::4, 1] = np.nan
    y = np.array(["a", "b"] * 20)
    with pytest.raises(BadInput, match=r"10 of 40 rows have missing inputs \(the first is row \d\): write data.mis"):
        adapt((x, y))
    mean, dropped = adapt((x, y), missing="mean"), adapt((x, y), missing="drop")
    whole = np.concatenate([mean.train.x, mean.test.x])
    filled = whole[np.isin(whole[:, 0], x[::4, 0])][:, 1]
    kept = mean.train.x[~np.isin(mean.train.x[:, 0], x[::4, 0])][:, 1]
    assert np.allclose(filled, kept.mean())
    assert len(dropped.train.y) + len(dropped.test.y) == 30


def test_a_column_without_a_value_was_filled_with_a_mean_of_nothing_in_silence() -> None:
    empty = FRAME.astype("float32").assign(p3=np.nan, p9=np.nan, digit=Y)
    with pytest.warns(
        FedrayWarning, match=r"^data: no training row has a value in columns p3, p9, read as 0: leave them out$"
    ):
        adapt(empty, target="digit", missing="mean")


def test_text_needs_a_tokenizer_and_becomes_tokens(tmp_path: Path) -> None:
    texts, labels = ["good day", "bad", "good", "bad day now"] * 5, ["up", "down", "up", "down"] * 5
    words = {"good": 1, "bad": 2, "day": 3, "now": 4}

    def encode(text: str) -> list[int]:
        return [words[word] for word in text.split()]

    frame = pd.DataFrame({"text": texts, "label": labels})
    table = adapt(frame, tokenizer=encode, input="text", target="label")
    assert np.array_equal(table.train.x, adapt((texts, labels), tokenizer=encode).train.x)
    for thing in ((texts, labels), datasets.Dataset.from_dict({"text": texts, "label": labels})):
        data = adapt(thing, tokenizer=encode)
        assert data.kind == "tokens"
        assert data.train.x.shape == (16, 3)
        assert adapt(thing, tokenizer=encode, length=2).train.x.shape == (16, 2)
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"[UNK]": 0, **words}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "words.json"))
    for one in (tokenizer, str(tmp_path / "words.json")):
        assert hash_rows((texts, labels), tokenizer=one) == hash_rows((texts, labels), tokenizer=encode)


def test_a_data_set_made_by_hand_takes_tensors_names_and_one_column_of_targets() -> None:
    x, names = np.eye(6), ("no", "yes")
    y = np.array([0, 1] * 3)
    made: list[Dataset] = []
    for labels in (y, torch.from_numpy(y), y + 1, np.eye(2)[y], np.array(names)[y], y.astype(bool)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            made.append(classification("mine", Split(torch.from_numpy(x), labels), Split(x, labels), names))  # type: ignore[arg-type]  # a tensor is taken too
    for data in made:
        assert data.train.y.tolist() == y.tolist()
        assert data.train.x.dtype == np.float32
    assert fedray.data.regression("mine", Split(x, y.astype(float)), Split(x, y * 0.5)).train.y.shape == (6, 1)


class Drawn(Pairs):
    """The digits, moved anew whenever one is asked for."""

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(X[i]).roll(int(torch.randint(8, ())), -1), int(Y[i])


def test_transforms_that_would_act_once_or_never_are_said() -> None:
    with pytest.warns(FedrayWarning, match=r"^data: item \d differs when it is asked for again\. .* as augment=$"):
        adapt(Drawn())
    adapt(Pairs())  # warnings are errors
    rows = datasets.Dataset.from_dict({"x": FLAT.tolist(), "label": Y.tolist()})
    for thing in (rows.with_transform(dict), datasets.DatasetDict(train=rows, test=rows.with_transform(dict))):
        for _ in range(2):  # the second time rows are kept
            with pytest.warns(FedrayWarning, match="^data: rows are read as they are stored, without the transform of"):
                adapt(thing)
    adapt(rows.with_format("torch"))
