"""Hugging Face data sets of the user's cache are read without the network; what is not there is one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest

from fedray.core.errors import BadInput
from fedray.data.catalogue import load_data

COLUMNS = {"a": np.arange(40.0), "label": [0, 1] * 20}


def fake_cache(home: Path) -> None:
    """What `datasets.load_dataset("someone/thing")` leaves in the cache."""
    folder = home / "someone___thing" / "default" / "0.0.0" / ("ab" * 20)
    datasets.Dataset.from_dict(COLUMNS).save_to_disk(str(home / "saved"))
    rows = datasets.load_from_disk(str(home / "saved"))
    folder.mkdir(parents=True)
    next((home / "saved").glob("*.arrow")).rename(folder / "thing-train.arrow")
    split = {"name": "train", "num_bytes": 0, "num_examples": len(rows), "dataset_name": "thing"}
    about = json.loads((home / "saved" / "dataset_info.json").read_text())
    about |= {"builder_name": "parquet", "dataset_name": "thing", "config_name": "default", "splits": {"train": split}}
    (folder / "dataset_info.json").write_text(json.dumps({**about, "version": {"version_str": "0.0.0"}}))


def test_a_named_data_set_comes_from_the_cache_without_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_cache(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr("socket.getaddrinfo", None)  # nobody asks for an address
    data = load_data("hf", path="someone/thing", target="label")
    assert data.class_names == ("0", "1")
    assert len(data.train.y) + len(data.test.y) == 40
    assert not datasets.config.HF_HUB_OFFLINE, "what it was before"
    with pytest.raises(BadInput, match="data.path = someone/other: no such folder, and no such name in"):
        load_data("hf", path="someone/other", target="label")


def test_a_missing_package_is_one_line_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets.Dataset.from_dict(COLUMNS).save_to_disk(str(tmp_path / "saved"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(BadInput, match=r"data.name = hf needs datasets: `pip install 'fedray\[hf\]'`"):
        load_data("hf", path=str(tmp_path / "saved"), target="label")
