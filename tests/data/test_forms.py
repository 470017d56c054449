"""One set of rows in every form that people have: wherever the rows are the same, the models are the same."""

import json
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
from small import run_quietly, scenario
from small_data import Pairs
from torch.utils.data import TensorDataset

import fedray
from fedray.core.errors import BadInput
from fedray.data import Dataset, Split, adapt, classification
from fedray.data.shards import hash_array
from fedray.data.store import load_data

# -- One set of digits in every form that people have: wherever the rows are the same, the models are the same

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
TRAIN = load_data("digits").train
ORDER = np.argsort(TRAIN.y[:200], kind="stable")  # by class, as the rows of a folder of classes come
X, Y = TRAIN.x[:200][ORDER], TRAIN.y[:200][ORDER]
FLAT = X.reshape(200, 64)
FRAME = pd.DataFrame({**{f"p{i}": FLAT[:, i] for i in range(64)}, "digit": Y})
NAMES = [str(c) for c in range(10)]


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
    folder, per_client = tmp_path / "digits", [slice(c * 50, (c + 1) * 50) for c in range(4)]
    for i, (picture, digit) in enumerate(zip(X, Y, strict=True)):
        (folder / str(digit)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture[0]).save(folder / str(digit) / f"{i:04}.png")
    forms: dict[str, Any] = {
        "one gray plane": (X[:, 0], Y),
        "tensors": (torch.from_numpy(X), torch.from_numpy(Y)),
        "text": (X, Y.astype(str)),
        "one-hot": (X, np.eye(10)[Y]),
        "1 to 10": (X, Y + 1),
        "whole numbers": (X.astype(np.int64), Y.astype(np.int16)),
        "torch": Pairs(list(torch.from_numpy(X)), Y),
        "TensorDataset": TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
        "folder": folder,
        "Hugging Face": pictures,
        "lists of Hugging Face": lists,
        "a pair a client": {f"client {c}": (X[part], Y[part]) for c, part in enumerate(per_client)},
    }
    assert {name: hash_rows(thing) for name, thing in forms.items()} == dict.fromkeys(forms, hash_rows((X, Y)))
    assert hash_models((X, Y)) == hash_models({"name": "folder", "path": str(folder)})


def test_tables_are_the_same_in_every_form(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    FRAME.to_csv(tmp_path / "digits.csv", index=False)
    feather.write_feather(FRAME, str(tmp_path / "digits.feather"))
    hub = datasets.Dataset.from_pandas(FRAME)
    hub.save_to_disk(str(tmp_path / "hub"))
    wards = write_clients(tmp_path)
    hubs = {f"ward {c}": hub.select(range(c * 50, (c + 1) * 50)) for c in range(4)}
    for name, part in hubs.items():
        part.save_to_disk(str(tmp_path / name))
    forms: dict[str, Any] = {
        "pandas": FRAME,
        "polars": polars.from_pandas(FRAME),
        "pyarrow": pa.Table.from_pandas(FRAME),
        "Hugging Face": hub,
        "a table and a column": (FRAME.drop(columns="digit"), FRAME["digit"]),
        "csv": tmp_path / "digits.csv",
        "feather": tmp_path / "digits.feather",
        "a file a client": wards,
        "a Hugging Face data set a client": hubs,
        "a folder of save_to_disk a client": {name: tmp_path / name for name in hubs},
        "a file of a table a client": {c: wards / f"ward{c}.parquet" for c in range(4)},
        "a frame a client": {c: FRAME[FRAME.columns[:: -1 if c else 1]][c * 50 : (c + 1) * 50] for c in range(4)},
    }
    pair = (FLAT.astype(np.float64), Y)
    found = {n: hash_rows(v, **({} if isinstance(v, tuple) else {"target": "digit"})) for n, v in forms.items()}
    assert found == dict.fromkeys(forms, hash_rows(pair))
    named = {"name": "hf", "path": str(tmp_path / "hub"), "target": "digit"}
    assert hash_models(pair) == hash_models(named) == hash_models(wards, data__target="digit")


@pytest.mark.parametrize("more", [{"standardize": False}, {"exclude": ["p9", "p10"]}])
def test_keys_of_a_scenario_were_refused_with_data_that_are_an_object(tmp_path: Path, more: dict[str, Any]) -> None:
    FRAME.to_csv(tmp_path / "digits.csv", index=False)
    filed = {"name": "table", "path": str(tmp_path / "digits.csv"), "target": "digit", **more}
    assert hash_models(FRAME, **{f"data__{key}": filed[key] for key in ("target", *more)}) == hash_models(filed)


def test_the_rows_of_a_client_stay_its_own(tmp_path: Path) -> None:
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
    common = adapt(other, test=(FLAT[:70].astype(float), Y[:70])).test
    assert common is not None and len(common.y) == 70 and common.group is None, "these belong to no client"
    with pytest.raises(BadInput, match="test rows of its own"):
        adapt({c: (pair, pair) for c, pair in other.items()}, test=other[0])


def test_rows_in_memory_stay_there_and_a_hub_is_read_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).normal(size=(6000, 64)).astype(np.float32)
    adapt((x, np.arange(6000) % 3))
    assert not cache.exists()
    hub = datasets.Dataset.from_dict({"x": x.tolist(), "label": [0, 1] * 3000})
    first = adapt(hub)
    monkeypatch.setattr("fedray.data.adaptation.read_form", None)
    assert np.array_equal(adapt(hub).train.x, first.train.x), "it is not read again"


def test_missing_inputs_get_the_mean_of_the_training_rows_or_their_rows_are_dropped() -> None:
    x = np.arange(80.0).reshape(40, 2)
    x[::4, 1] = np.nan
    y = np.array(["a", "b"] * 20)
    mean, dropped = adapt((x, y), missing="mean"), adapt((x, y), missing="drop")
    whole = np.concatenate([mean.train.x, mean.test.x])
    filled = whole[np.isin(whole[:, 0], x[::4, 0])][:, 1]
    kept = mean.train.x[~np.isin(mean.train.x[:, 0], x[::4, 0])][:, 1]
    assert np.allclose(filled, kept.mean())
    assert len(dropped.train.y) + len(dropped.test.y) == 30


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
    tokenizers, file = pytest.importorskip("tokenizers"), str(tmp_path / "words.json")

    def save(known: dict[str, int]) -> Any:
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, **known}, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        tokenizer.save(file)
        return tokenizer

    for one in (save(words), file):
        assert hash_rows((texts, labels), tokenizer=one) == hash_rows((texts, labels), tokenizer=encode)
    short = adapt(((texts, labels), (["good"], ["up"])), tokenizer=encode)  # the longest text of all has three tokens
    assert (short.train.x.shape, short.test.x.tolist()) == ((20, 3), [[1, 0, 0]])
    hub = datasets.Dataset.from_dict({"text": texts, "label": labels})
    before = adapt(hub, tokenizer=file).train.x
    save({word: 5 - i for word, i in words.items()})
    assert np.array_equal(adapt(hub, tokenizer=file).train.x, np.where(before, 5 - before, 0))  # the file has changed


def test_labels_of_parts_mean_their_own_names() -> None:
    one, other = (TensorDataset(torch.eye(4), torch.tensor([0, 1, 0, 1])) for _ in range(2))
    for part, names in ((one, ["cat", "dog"]), (other, ["cat", "horse"])):
        part.classes = names  # type: ignore[attr-defined]  # as data sets of torchvision have
    data = adapt({"A": one, "B": other}, test_fraction=0.0)
    said = np.array(data.class_names)[data.train.y].tolist()
    assert said == ["cat", "dog", "cat", "dog", "cat", "horse", "cat", "horse"]
    assert np.array(data.class_names)[adapt((one, other)).test.y].tolist() == ["cat", "horse"] * 2


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


# -- Own data in a form that cannot be used, or not as it is: one line that says what it is and what to do

TEXTS = pd.DataFrame({"text": ["a b", "a", "b", "b a"] * 10, "kind": [0, 1] * 20, "who": [*"bcda"] * 10})


def count_letters(text: str) -> list[int]:
    return [1 + ord(letter) - ord("a") for letter in text.split()]


def test_a_table_of_text_has_the_clients_of_its_group() -> None:
    data = adapt(TEXTS, target="kind", input="text", group="who", tokenizer=count_letters)
    assert data.train.group is not None and data.test.group is not None
    known = np.array(["a", "b", "c", "d"])
    assert known[data.train.group].tolist() == data.columns["who"].tolist()
    table = adapt(datasets.Dataset.from_pandas(TEXTS), target="kind", group="who", tokenizer=count_letters)
    assert table.train.group is not None and table.test.group is not None
    assert np.array_equal(table.train.group, data.train.group) and np.array_equal(table.test.group, data.test.group)
    named = adapt(TEXTS.astype({"who": "category"}), target="kind", input="text", group="who", tokenizer=count_letters)
    assert named.train.group is not None and np.array_equal(named.train.group, data.train.group)


def test_test_rows_of_a_hub_belong_to_the_clients_of_the_training_rows() -> None:
    some = TEXTS[TEXTS["who"].isin(["b", "d"])].reset_index(drop=True).replace({"who": {"d": "z"}})
    both = {"train": datasets.Dataset.from_pandas(TEXTS), "test": datasets.Dataset.from_pandas(some)}
    data = adapt(datasets.DatasetDict(both), target="kind", group="who", tokenizer=count_letters)
    assert data.test.group is not None
    assert data.test.group.tolist() == [1 if who == "b" else -1 for who in some["who"]]


# -- Hugging Face data sets of the user's cache are read without the network; what is not there is one line

COLUMNS = {"a": np.arange(40.0), "label": [0, 1] * 20}


def test_a_named_data_set_comes_from_the_cache_without_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the cache is what `datasets.load_dataset("someone/ASet")` leaves there."""
    folder = tmp_path / "someone___a_set" / "default" / "0.0.0" / ("ab" * 20)
    datasets.Dataset.from_dict(COLUMNS).save_to_disk(str(tmp_path / "saved"))
    rows = datasets.load_from_disk(str(tmp_path / "saved"))
    folder.mkdir(parents=True)
    next((tmp_path / "saved").glob("*.arrow")).rename(folder / "a_set-train.arrow")
    split = {"name": "train", "num_bytes": 0, "num_examples": len(rows), "dataset_name": "a_set"}
    about = json.loads((tmp_path / "saved" / "dataset_info.json").read_text())
    about |= {"builder_name": "parquet", "dataset_name": "a_set", "config_name": "default", "splits": {"train": split}}
    (folder / "dataset_info.json").write_text(json.dumps({**about, "version": {"version_str": "0.0.0"}}))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr("socket.getaddrinfo", None)  # nobody asks for an address
    data = load_data("hf", path="someone/ASet", target="label")
    assert data.class_names == ("0", "1") and len(data.train.y) + len(data.test.y) == 40
    assert not datasets.config.HF_HUB_OFFLINE, "what it was before"
    with pytest.raises(BadInput):
        load_data("hf", path="someone/other", target="label")


# -- Networks that get inputs as they are: a network that standardizes by itself trains as before

THREE: dict[str, Any] = {"rounds": 2, "method": {"name": "fedavg"}, "clients": {"number": 3}, "report": False}


def test_pixels_from_0_to_1_train_as_those_that_were_divided_before() -> None:
    """Pictures of 16, 255 and 65,535 levels: to the bit the models of the same pictures as numbers from 0 to 1."""
    digits = load_data("digits")
    for levels, kind in ((16, np.uint8), (255, np.uint8), (65_535, np.uint16)):
        x = (digits.train.x[:200].astype(np.float64) / 16 * levels).astype(kind)
        divided = x.astype(np.float32) / np.float32(levels)
        runs = [
            run_quietly({**scenario(THREE), "data": keys}, ((part[:150], y[:150]), (part[150:], y[150:])))
            for part, keys in ((x, {"scale": "unit"}), (divided, {"standardize": False}))
            for y in (digits.train.y[:200],)
        ]
        assert runs[0].summary["model_hash"] == runs[1].summary["model_hash"]
