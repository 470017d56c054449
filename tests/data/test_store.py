"""The store: what is read back is what was written, by any number of processes, whatever happens on the way."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import originals
import pytest
import torch
from real_files import skipping_without_files

from fedray.data import store
from fedray.data.store import load_data
from fedray.data.types import Dataset, Split, classification


@pytest.mark.parametrize(
    "split",
    [
        Split(np.arange(24, dtype=np.uint8).reshape(2, 3, 2, 2), np.array([1, 0]), np.array([5, 5])),
        Split(np.ones((3, 2), np.float32), np.full((3, 1), 0.1, np.float32)),
        Split(np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3)), np.array([1, 0])),
        Split(np.empty((0, 4), np.float32), np.empty(0, np.int64)),
    ],
)
def test_a_split_survives_the_store(tmp_path: Path, split: Split) -> None:
    path = tmp_path / "a.store"
    given = {key: values for key, values in split._asdict().items() if values is not None}
    given["site"] = np.array([f"s\u00e9{i}" for i in range(len(split.y))], dtype=str)
    store.write_store(path, given, {"classes": 2})
    back, notes = store.map_store(path)
    assert back.keys() == given.keys() and notes == {"classes": 2}
    for key, values in given.items():
        assert back[key].dtype == values.dtype
        assert np.array_equal(back[key], values)


def test_stored_arrays_are_views_of_the_file_and_the_file_cannot_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.store"
    mask = os.umask(0o077)
    store.write_store(path, {"x": np.zeros((4, 2), np.float32)}, {})
    os.umask(mask)
    assert not path.stat().st_mode & 0o077, "the user's umask holds"
    before = path.read_bytes()
    x = torch.from_numpy(store.map_store(path)[0]["x"])
    x += 1  # private to this process
    assert path.read_bytes() == before
    assert not store.map_store(path)[0]["x"].any()


def test_a_stored_data_set_is_the_loaded_one_and_the_source_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    originals.fake_mnist(tmp_path)
    loaded, first = load_data("mnist", tmp_path), store.open_dataset("mnist", tmp_path)
    monkeypatch.setattr("fedray.data.store.load_data", None)
    second = store.open_dataset("mnist", tmp_path)
    for data in (first, second):
        for part in ("train", "test"):
            for one, two in zip(getattr(loaded, part), getattr(data, part), strict=True):
                assert (one is None and two is None) or np.array_equal(one, two)
        assert data.class_names == loaded.class_names
        assert np.array_equal(data.scale, loaded.scale)
    assert len(list(cache.iterdir())) == 1, "only the finished file stays"


def test_a_changed_source_is_read_again(tmp_path: Path) -> None:
    raw = originals.fake_mnist(tmp_path)
    store.open_dataset("mnist", tmp_path)
    shutil.rmtree(raw.parent)
    originals.fake_mnist(tmp_path, rows=50)
    assert len(store.open_dataset("mnist", tmp_path).train.y) == 50


@pytest.mark.parametrize("harm", [lambda b: b[: len(b) // 2], lambda _: b"", lambda b: b.replace(b"|u1", b"|u7")])
def test_a_damaged_store_is_made_again(tmp_path: Path, cache: Path, harm: Callable[[bytes], bytes]) -> None:
    originals.fake_mnist(tmp_path)
    whole = store.open_dataset("mnist", tmp_path).train.x.copy()
    path = next(cache.glob("*.store"))
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(harm(content))
    assert np.array_equal(store.open_dataset("mnist", tmp_path).train.x, whole)


def test_stored_files_that_nobody_uses_make_room_for_others(tmp_path: Path, cache: Path) -> None:
    originals.fake_mnist(tmp_path)
    long_ago = time.time() - (store.UNUSED_DAYS + 1) * 24 * 3600
    used, others = store.open_dataset("mnist", tmp_path), [cache / "notes.txt"]
    before, rows = set(cache.glob("*.store")), used.train.x.copy()
    unused = [cache / "table-0123456789abcdef.store"]
    for file in [*unused, *others, *before]:
        file.touch()
        os.utime(file, (long_ago, long_ago))
    store.open_dataset("mnist", tmp_path)
    assert all(file.exists() for file in unused), "nothing was written"
    store.keep_dataset("made", [1], lambda: used)
    assert not any(file.exists() for file in unused)
    assert before <= set(cache.glob("*.store")), "these were used just now"
    assert all(file.exists() for file in others), "they are not fedray's"
    assert np.array_equal(used.train.x, rows)


def test_two_writers_at_once_are_safe(cache: Path) -> None:
    """Whoever is slower replaces the file by the same rows."""
    x = np.arange(300 * 784, dtype=np.uint8).reshape(300, 28, 28)
    data = classification("made", Split(x, np.arange(300) % 10), Split(x, np.arange(300) % 10), tuple("0123456789"))

    def load() -> Dataset:
        store.keep_dataset("made", [1], lambda: data)
        return data

    assert np.array_equal(store.keep_dataset("made", [1], load).train.x, data.train.x)
    assert [path.name[:5] for path in cache.iterdir()] == ["made-"]


def test_small_sets_need_no_store(cache: Path) -> None:
    assert len(store.open_dataset("sine", None, {"clients": 5}).train.y) == 10
    assert not cache.exists()


def open_real(name: str, options: dict[str, Any] | None = None) -> Dataset:
    """A data set of real files; a skip where they are not here."""
    with skipping_without_files():
        return store.open_dataset(name, None, options or {})


def test_the_real_mnist_is_the_published_one() -> None:
    mnist = open_real("mnist")
    assert np.bincount(mnist.train.y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.allclose([mnist.shift.item() / 255, mnist.scale.item() / 255], [0.1307, 0.3081], atol=1e-4)


def test_the_real_small_sets_are_the_published_ones() -> None:
    boston, printers = open_real("uci/bostonHousing"), open_real("printers")
    assert boston.train.x.shape == (506, 13) and [len(boston.folds[0][i]) for i in range(2)] == [455, 51]
    assert len(open_real("uci/naval-propulsion-plant").train.x[0]) == 16
    assert (printers.train.x.shape, len(printers.test.x)) == ((66 * 15, 7), 90)


@pytest.mark.slow
def test_the_real_femnist_is_the_published_sample() -> None:
    femnist = open_real("femnist")
    assert femnist.train.group is not None
    assert (len(femnist.train.y), len(femnist.test.y), len(np.unique(femnist.train.group))) == (14708, 1685, 105)


def test_the_real_plays_have_their_roles() -> None:
    group = open_real("shakespeare", {"stride": 80}).train.group
    assert group is not None
    assert len(np.unique(group)) > 50


def test_the_complete_works_have_leafs_roles() -> None:
    with skipping_without_files():
        folder = store.find_shakespeare_folder(None, "complete")
    roles = store._parse_complete(next(folder.glob("*.txt*")))
    assert len(roles) == 1145
    assert len({role.rsplit("_", 1)[0] for role in roles}) == 36
