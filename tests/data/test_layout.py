"""Parts, clients and classes by the names of folders, files, splits and keys, at both doors; nothing vanishes."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

import fedray
from fedray.core.errors import FedrayWarning
from fedray.data import Dataset, adapt, store
from fedray.files.layout import list_files
from fedray.scenario.loader import read_scenario

X = np.random.default_rng(0).normal(size=(60, 3))
Y = (X[:, 0] > 0).astype(int)
FRAME = pd.DataFrame(X, columns=["a", "b", "c"]).assign(label=Y)
HUB = datasets.Dataset.from_pandas(FRAME)
SCENARIO: dict[str, Any] = {"rounds": 1, "runtime": "inline", "method": "fedavg", "report": False}


def write_files(home: Path, *paths: str) -> Path:
    """A folder with tables, pictures, other files, and folders (`name/`); a picture is darker than those before it."""
    folder = home / "rows"
    for i, path in enumerate(paths):
        file = folder / path
        (file if path.endswith("/") else file.parent).mkdir(parents=True, exist_ok=True)
        if file.suffix.lower() == ".csv":
            FRAME.to_csv(file, index=False)
        elif file.suffix.lower() == ".parquet":
            FRAME.to_parquet(file)
        elif file.suffix.lower() in (".png", ".pgm"):
            Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8) * 3 + i % 60).save(file)
        elif not path.endswith("/"):
            file.write_text("x")
    return folder


def list_pictures(*folders: str) -> list[str]:
    return [f"{folder}/{i}.png" for folder in folders for i in range(6)]


def open_both(folder: Path, name: str = "folder", **options: Any) -> list[Dataset]:
    """What both doors make of a folder."""
    return [adapt(folder, **options), store.open_dataset(name, None, {"path": str(folder), **options})]


def test_a_scenario_file_dealt_the_tables_of_clients_to_others(tmp_path: Path) -> None:
    wards = write_files(tmp_path, "Rome.csv", "Oslo.parquet", "Bonn.csv")
    named = {"name": "table", "path": str(wards), "target": "label"}
    for run in (fedray.run(SCENARIO, data=wards, data__target="label"), fedray.run({**SCENARIO, "data": named})):
        assert run.study.scenario["data"]["partition"] == {"name": "natural"}
        assert run.study.client_names == ("Bonn", "Oslo", "Rome")
    assert read_scenario({"data": named}).clients.number is None
    dealt = read_scenario({"data": {**named, "partition": {"name": "iid"}}, "clients": {"number": 7}})
    assert (dealt.data.partition.name, dealt.clients.number) == ("iid", 7)
    table = {"data": named, "table": [{"name": "one", "overrides": {"seed": 1}}]}
    assert read_scenario(table).data.partition.name == "natural"


@pytest.mark.filterwarnings("ignore:data. Oslo, Rome are clients")
def test_the_clients_of_data_that_were_read_before_were_dealt_to_others(tmp_path: Path) -> None:
    things: list[Any] = [
        adapt({"Rome": (X, Y), "Oslo": (X, Y)}),
        adapt(FRAME.assign(ward=["Rome", "Oslo"] * 30), target="label", group="ward"),
        adapt(write_files(tmp_path, *list_pictures("Rome/cat", "Rome/dog", "Oslo/cat", "Oslo/dog"))),
    ]
    for data in things:
        run = fedray.run(SCENARIO, data=data)
        assert (run.study.clients.number, run.study.scenario["data"]["partition"]["name"]) == (2, "natural")
        assert sorted(run.study.client_names) == ["Oslo", "Rome"]
    keys: dict[str, Any] = {"data__target": "label", "data__group": "ward", "data__partition__flipped": 0.5}
    turned = fedray.run(
        {**SCENARIO, "data": {"partition": {"min_rows": 2}}}, data=things[0], data__partition__noisy=0.5
    )
    assert turned.study.scenario["data"]["partition"] == {"name": "natural", "min_rows": 2, "noisy": 0.5}
    flipped = fedray.run(SCENARIO, data=FRAME.assign(ward=["Rome", "Oslo"] * 30), **keys)
    assert flipped.study.scenario["data"]["partition"] == {"name": "natural", "flipped": 0.5}
    dealt = fedray.run({**SCENARIO, "data": {"partition": "iid"}}, data=things[0], clients__number=4)
    assert dealt.study.clients.number == 4


PAIR, TEST = (X[:40], Y[:40]), (X[40:], Y[40:])
SETS = [TensorDataset(torch.from_numpy(x).float(), torch.from_numpy(y)) for x, y in (PAIR, TEST)]


@pytest.mark.parametrize(
    ("train", "test", "options"),
    [
        (PAIR, TEST, {}),
        (tuple(part.tolist() for part in PAIR), tuple(part.tolist() for part in TEST), {}),
        (tuple(map(torch.from_numpy, PAIR)), tuple(map(torch.from_numpy, TEST)), {}),
        (FRAME[:40], FRAME[40:], {"target": "label"}),
        (HUB.select(range(40)), HUB.select(range(40, 60)), {"target": "label"}),
        (*SETS, {}),
        ((["a b", "b"] * 20, [0, 1] * 20), (["a b", "b"] * 10, [0, 1] * 10), {"tokenizer": lambda text: [len(text)]}),
    ],
    ids=["arrays", "lists", "tensors", "tables", "Hugging Face", "torch", "texts"],
)
def test_parts_in_a_mapping_were_clients(train: Any, test: Any, options: dict[str, Any]) -> None:
    for names in (("train", "test"), ("Training", "dev")):
        data = adapt(dict(zip(names, (train, test), strict=True)), **options)
        assert (len(data.train.y), len(data.test.y), data.train.group) == (40, 20, None)
    whole = {"train": train, "val": test, "test": test}
    with pytest.warns(FedrayWarning, match="val is left out, because .* are those of test: data.test names another"):
        adapt(whole, **options)
    assert len(adapt(whole, test="val", **options).test.y) == 20
    assert len(adapt({"train": train}, **options).test.y) == 8, "they are drawn"
    run_options: dict[str, Any] = {f"data__{key}": value for key, value in options.items()}
    if "tokenizer" not in options:
        run = fedray.run(SCENARIO, data={"train": train, "test": test}, clients__number=4, **run_options)
        assert run.study.scenario["data"]["partition"]["name"] == "iid"


def test_tables_of_parts_were_clients(tmp_path: Path) -> None:
    for i, names in enumerate((("train.csv", "test.csv"), ("Train.parquet", "TEST.csv"), ("training.csv", "dev.csv"))):
        folder = write_files(tmp_path / str(i), *names)
        for data in open_both(folder, "table", target="label"):
            assert (len(data.train.y), len(data.test.y), data.train.group) == (60, 60, None)
    folder = write_files(tmp_path, "train.csv", "val.csv", "test.csv")
    with pytest.warns(FedrayWarning, match="data: val is left out, because the test rows are those of test"):
        open_both(folder, "table", target="label")
    open_both(folder, "table", target="label", test="val")
    assert read_scenario({"data": {"name": "table", "path": str(folder), "target": "label"}}).clients.number == 100
    packed = write_files(tmp_path / "packed", "train-00000-of-00001.parquet", "test-00000-of-00001.parquet")
    assert len(adapt(packed, target="label").test.y) == 60


def test_splits_that_nobody_read_were_left_out_in_silence() -> None:
    few = HUB.select(range(20))
    with pytest.warns(FedrayWarning, match="data: dev, more are left out: data.split and data.test name splits"):
        data = adapt(datasets.DatasetDict(Training=HUB, Test=few, dev=few, more=few), target="label")
    assert (len(data.train.y), len(data.test.y)) == (60, 20)
    adapt(datasets.DatasetDict(train=HUB, test=few, dev=few), target="label", test="dev")


@pytest.mark.parametrize("names", [("Train", "Test"), ("TRAIN", "val")])
def test_folders_of_parts_were_classes(tmp_path: Path, names: tuple[str, str]) -> None:
    folder = write_files(tmp_path, *list_pictures(*(f"{part}/{kind}" for part in names for kind in ("cat", "dog"))))
    for data in open_both(folder):
        assert (data.class_names, len(data.train.y), len(data.test.y)) == (("cat", "dog"), 12, 12)
        assert np.isin(data.test.x[:, 0, 0, 0], np.arange(12, 24)).all()
    write_files(tmp_path, *list_pictures("validation/cat", "more/cat"))
    with pytest.warns(FedrayWarning, match=f"more, validation are left out, because the test rows are .* {names[1]}"):
        open_both(folder)
    assert [len(data.test.y) for data in open_both(folder, test="validation")] == [6, 6]


@pytest.mark.parametrize("inner", [("cat", "dog"), ("train/cat", "train/dog", "test/cat", "test/dog")])
def test_folders_of_sites_were_classes(tmp_path: Path, inner: tuple[str, ...]) -> None:
    folder = write_files(tmp_path, *list_pictures(*(f"site{i}/{at}" for i in (1, 2, 3) for at in inner)))
    with pytest.warns(FedrayWarning, match="data: site1, site2, site3 are clients with the classes cat, dog"):
        both = open_both(folder)
    for data in both:
        assert data.class_names == ("cat", "dog") and set(data.columns["client"]) == {"site1", "site2", "site3"}
        assert data.train.group is not None and set(data.train.group) == {0, 1, 2}
        if len(inner) > 2:
            assert data.test.group is not None and np.bincount(data.test.group).tolist() == [12, 12, 12]


def test_the_folder_around_the_folder_of_a_client_was_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = {name: write_files(tmp_path / name, *list_pictures("cat", "dog")) for name in ("Rome", "Oslo")}
    walk = Mock(wraps=list_files)
    monkeypatch.setattr("fedray.data.forms.pictures.list_files", walk)
    with pytest.warns(FedrayWarning, match="Oslo, Rome are clients with the classes cat, dog"):
        assert set(adapt(sites).columns["client"]) == {"Rome", "Oslo"}
    assert {call.args[0].parent for call in walk.call_args_list} == set(sites.values()), "folders of the classes alone"


def test_the_folder_of_the_test_part_was_a_class_too(tmp_path: Path) -> None:
    folder = write_files(tmp_path, *list_pictures("cat", "dog", "held/cat", "held/dog"))
    for data in open_both(folder, test="held"):
        assert (data.class_names, len(data.train.y), len(data.test.y)) == (("cat", "dog"), 12, 12)


def test_empty_folders_and_hidden_ones_were_classes(tmp_path: Path) -> None:
    hidden = [*list_pictures("cat/.old", ".cache/old"), "dog/.hidden.png", "cat/.DS_Store", "__MACOSX/cat/._1.png"]
    folder = write_files(tmp_path, *list_pictures("cat", "dog", "cat/more"), "bird/", *hidden)
    for data in open_both(folder):
        assert (data.class_names, len(data.train.y) + len(data.test.y)) == (("cat", "dog"), 18)
    wards = write_files(tmp_path / "wards", "Rome.csv", "Oslo.csv", "._Rome.csv", ".old/Bonn.csv")
    for data in open_both(wards, "table", target="label"):
        assert set(data.columns["client"]) == {"Rome", "Oslo"}
