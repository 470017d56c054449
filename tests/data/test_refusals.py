"""What is said about missing or damaged files, wrong names and wrong options: one line with the remedy."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import originals
import pandas as pd
import pytest

from fedray.core.errors import BadInput, FedrayError
from fedray.data import catalogue
from fedray.data.adaptation import adapt
from fedray.data.catalogue import load_data
from fedray.scenario import read_scenario


@pytest.mark.parametrize(
    "name", [n for n in catalogue.DATA_NAMES if n not in ("digits", "sine", "interval", "cubic", "synthetic")]
)
def test_missing_files_are_one_line_with_a_remedy(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput) as error:
        load_data(name, tmp_path)
    message = str(error.value)
    assert "\n" not in message
    said = str(tmp_path) in message and "FEDRAY_DATA" in message and "data.root" in message
    assert said or name in ("table", "folder", "hf", "union")


def test_damaged_files_are_one_line_that_names_them(tmp_path: Path) -> None:
    raw = originals.fake_mnist(tmp_path)
    images = raw / "train-images-idx3-ubyte.gz"
    whole = images.read_bytes()
    for content in (
        whole[:-500],
        b"not gzip",
        gzip.compress(b"\0\0\x08\x03" + b"\0" * 12),
        whole[:60] + b"!!" + whole[62:],
    ):
        images.write_bytes(content)
        with pytest.raises(BadInput, match="damaged") as error:
            load_data("mnist", tmp_path)
        assert "\n" not in str(error.value)
        assert "MNIST" in str(error.value)
    folder = originals.fake_uci(tmp_path)
    (folder / "index_test_1.txt").write_text("77\n")
    with pytest.raises(BadInput, match=r"index_test_1.txt is damaged"):
        load_data("uci/tiny", tmp_path)
    (folder / "data.txt").write_text("1 2 nan\n")
    with pytest.raises(BadInput, match=r"data.txt is damaged"):
        load_data("uci/tiny", tmp_path)
    originals.leaf(tmp_path)
    (tmp_path / "femnist" / "data" / "train" / "0.json").write_text('{"users": [')
    with pytest.raises(BadInput, match=r"0.json is damaged"):
        load_data("femnist", tmp_path)


def test_a_damaged_cifar_archive_is_not_unpickled(tmp_path: Path) -> None:
    originals.pack(tmp_path / "CIFAR10" / "cifar-10-python.tar.gz", originals.cifar_files("cifar10"), "w:gz")
    with pytest.raises(BadInput, match="damaged"):
        load_data("cifar10", tmp_path)  # torchvision compares checksums first


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("minst", {}, "did you mean mnist?"),
        ("uci/../x", {}, "write uci/ and the name of a folder"),
        ("synthetic", {"per_client": 11}, "data.per_client = 11, but data.classes is 10: lower it"),
    ],
)
def test_wrong_requests_name_their_key(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as error:
        load_data(name, **options)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"name": "shakespeare", "strid": 80}, "data.strid .*did you mean .*stride"),
        ({"name": "shakespeare", "source": "bard"}, "data.source = 'bard' is not one of mit_plays, tiny, complete"),
        ({"name": "shakespeare", "train": 1}, "data.train = 1 is out of range"),
        ({"name": "printers", "speed": "fast"}, "data.speed = 'fast' is not one of nominal, measured"),
        ({"name": "sine", "clients": 0}, "data.clients = 0 is out of range"),
        ({"name": "sine", "samples": "many"}, "data.samples = 'many' is not a whole number"),
        ({"name": "synthetic", "spread": -1}, "data.spread = -1 is out of range"),
        ({"name": "folder", "path": "x", "task": "regression"}, "data.task"),
        ({"name": "hf", "path": "x", "missing": "median"}, "data.missing = 'median' is not one of refuse, mean, drop"),
    ],
)
def test_wrong_options_are_refused_by_the_scenario(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        read_scenario({"data": keys})


def test_fetch_says_what_cannot_be_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import urllib.request
    from urllib.error import URLError

    def offline(*_: object, **__: object) -> NoReturn:
        raise URLError("no network")

    with pytest.raises(BadInput, match="cannot be downloaded"):
        catalogue.download_data("femnist", tmp_path)
    with pytest.raises(BadInput, match="no such data set"):
        catalogue.download_data("nothing", tmp_path)
    monkeypatch.setattr(urllib.request, "urlopen", offline)
    with pytest.raises(FedrayError, match=r"data get uci/yacht: the download into .* failed \(.*no network"):
        catalogue.download_data("uci/yacht", tmp_path)
    assert not list((tmp_path / "UCI").rglob("*.txt"))


def test_files_that_are_no_tables_are_told_which_are(tmp_path: Path) -> None:
    np.savez(tmp_path / "z.npz", x=np.zeros(3))
    with pytest.raises(BadInput, match=r"z.npz: .npz files are no tables: load it, and give its arrays, data=\(x, y\)"):
        adapt(tmp_path / "z.npz")
    (tmp_path / "z.bin").write_bytes(bytes(range(256)))
    with pytest.raises(BadInput, match=r"z.bin is no table that is read: give CSV \(.csv, .* Parquet .* and Feather"):
        adapt(tmp_path / "z.bin")


def test_a_semicolon_was_taken_for_a_part_of_a_name(tmp_path: Path) -> None:
    file, frame = (
        tmp_path / "t.csv",
        pd.DataFrame({"a": np.arange(40) / 7, "b": [*range(20)] * 2, "kind": ["no", "yes"] * 20}),
    )
    for mark in (";", "\t", "|"):
        frame.to_csv(file, index=False, sep=mark)
        data = adapt(file, target="kind")
        assert data.features == ("a", "b") and data.class_names == ("no", "yes")
    frame.to_csv(file, index=False, sep=";", decimal=",")
    with pytest.raises(BadInput, match=r"column a has numbers with commas: convert it once, .* sep=';', decimal=','"):
        adapt(file, target="kind")
