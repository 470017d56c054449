"""Data sets: small files in the original formats, toys, unions, and what is said of missing or damaged files."""

import gzip
from pathlib import Path

import numpy as np
import originals
import pandas as pd
import pytest
from sklearn import datasets

import fedray
from fedray.core.types import IntArray
from fedray.data import store
from fedray.data.store import load_data
from fedray.data.synthetic import join_datasets
from fedray.data.types import Split, classification, pixel_moments


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torchvision takes our small files, whose checksums are not those of the originals."""
    from torchvision.datasets import cifar, svhn

    monkeypatch.setattr(cifar, "check_integrity", lambda *_: True)
    monkeypatch.setattr(svhn, "check_integrity", lambda *_: True)
    monkeypatch.setattr(svhn, "calculate_md5", lambda *_: "", raising=False)


def groups(split: Split) -> IntArray:
    """The natural client of each row, of a split that has them."""
    assert split.group is not None
    return split.group


def test_mnist_is_read_from_gz_and_nothing_is_written_beside_it(tmp_path: Path, cache: Path) -> None:
    raw = originals.fake_mnist(tmp_path)
    before = sorted(raw.iterdir())
    data = load_data("mnist", tmp_path)
    assert data.train.x.shape == (30, 1, 28, 28) and data.train.x.dtype == np.uint8
    assert data.test.y.tolist() == list(range(10)) and data.class_names[3] == "3"
    assert abs(data.shift.item() - data.train.x.mean()) < 1e-3
    assert sorted(raw.iterdir()) == before and not list(cache.iterdir())
    for path in before:
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert np.array_equal(load_data("mnist", tmp_path).train.x, data.train.x), "unpacked"


@pytest.mark.parametrize("packing", ["folder", "gz", "parts"])
@pytest.mark.usefixtures("trusting")
def test_cifar10_is_read_from_every_packing(tmp_path: Path, packing: str) -> None:
    files, folder = originals.cifar_files("cifar10"), tmp_path / "CIFAR10"
    if packing == "folder":
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    elif packing == "gz":
        originals.pack(folder / "cifar-10-python.tar.gz", files, "w:gz")
    else:
        for i in range(3):
            originals.pack(folder / f"cifar-10-python.part{i + 1}.tar.xz", dict(list(files.items())[i::3]), "w:xz")
    data = load_data("cifar10", tmp_path)
    assert (data.train.x.shape, data.test.x.shape) == ((35, 3, 32, 32), (5, 3, 32, 32))
    assert data.shift.shape == (1, 3, 1, 1) and data.class_names == tuple("abcdefghij")


@pytest.mark.usefixtures("trusting")
def test_cifar100_and_svhn_are_read(tmp_path: Path) -> None:
    from scipy.io import savemat

    originals.pack(tmp_path / "cifar-100-python.tar.gz", originals.cifar_files("cifar100"), "w:gz")
    assert load_data("cifar100", tmp_path).classes == 100
    (tmp_path / "SVHN").mkdir()
    for part, n in (("train", 12), ("test", 3)):
        x = np.random.default_rng(n).integers(0, 256, (32, 32, 3, n), np.uint8)
        savemat(tmp_path / "SVHN" / f"{part}_32x32.mat", {"X": x, "y": np.arange(n)[:, None] % 10 + 1})
    data = load_data("svhn", tmp_path)
    assert data.train.x.shape == (12, 3, 32, 32) and data.test.y.tolist() == [1, 2, 3]


def test_femnist_reads_leaf_json_with_one_group_a_writer(tmp_path: Path) -> None:
    originals.leaf(tmp_path)
    data = load_data("femnist", tmp_path)
    assert groups(data.train).tolist() == [0] * 6 + [1] * 6 + [2] * 6
    assert groups(data.test).tolist() == [0, 0, 1, 1, 2, 2]
    assert data.train.x[:, 0, 0, 0].tolist() == list(range(6)) * 3
    assert data.classes == 62


def test_shakespeare_windows_never_cross_a_role_or_the_split(tmp_path: Path) -> None:
    folder = tmp_path / "shakespeare" / "tinyshakespeare"
    folder.mkdir(parents=True)
    speech = "".join(chr(ord("a") + i % 26) for i in range(600))
    (folder / "input.txt").write_text(f"Second Lord:\n{speech}\n\nFirst Lord:\n{speech.upper()}\n\nPage:\nAy.\n")
    for stride in (1, 80):
        data = load_data("shakespeare", tmp_path, source="tiny", stride=stride)
        assert (data.kind, data.input_shape, data.outputs) == ("tokens", (80,), 80)
        assert np.unique(groups(data.train)).tolist() == [0, 1]
        assert len(data.train.y) == 2 * len(range(0, 480 - 80, stride))
        assert len(data.test.y) == 2 * len(range(0, 120 - 80, stride))
        whole = store.encode(speech.upper())
        for k, row in enumerate(data.train.x[groups(data.train) == 0]):
            assert np.array_equal(row, whole[k * stride : k * stride + 80])
            assert data.train.y[k] == whole[k * stride + 80]
        assert np.array_equal(data.test.x[0], whole[480:560])


def test_encoding_is_leafs_alphabet() -> None:
    assert len(store.ALPHABET) == 80 == len(set(store.ALPHABET))
    assert store.encode("caf\u00e9 \u2018s\u2019 \n\t x").tolist() == [store.ALPHABET.index(c) for c in "cafe 's' x"]
    assert store.encode("\u4e2d").tolist() == [store.ALPHABET.index(" ")]
    assert len(store.encode("")) == 0


def test_printers_predict_vibration_from_speed_and_printer(tmp_path: Path) -> None:
    folder = tmp_path / "printer_vibration"
    folder.mkdir()
    for printer in (1, 2):
        for speed in (10, 30, 40):
            rows = "".join(f"{speed + i},3.0,4.0\n" for i in range(3))
            (folder / f"FL_Dataset_Printer{printer}_Speed{speed}.csv").write_text(rows)
    data = load_data("printers", tmp_path)
    assert data.train.x.shape == (12, 3) and data.train.x[:, 1:].sum() == 12 and data.classes == 0
    assert data.test.x[:, 0].tolist() == [30.0] * 6 and np.all(data.train.y == 5)
    assert data.shift[0].tolist() == [25, 0, 0] and data.scale[0, 1:].tolist() == [1, 1]
    assert np.array_equal(groups(data.train), data.train.x[:, 1:].argmax(axis=1))
    assert load_data("printers", tmp_path, speed="measured").test.x[:3, 0].tolist() == [30.0, 31.0, 32.0]


def test_uci_folds_are_standardised_by_their_own_training_rows(tmp_path: Path) -> None:
    originals.fake_uci(tmp_path)
    data = load_data("uci/tiny", tmp_path)
    assert len(data.folds) == 2 and data.folds[1][1].tolist() == [0, 2]
    assert data.shift[:, 0].tolist() == [4.0, 5.0] and data.y_shift[:, 0].tolist() == [12.0, 15.0]
    assert data.scale[:, 1].tolist() == [1.0, 1.0], "a constant column must not be divided by zero"


@pytest.mark.parametrize("name", ["sine", "interval", "cubic"])
def test_toys_follow_their_mean(name: str) -> None:
    data = load_data(name, clients=400, samples=50)

    def mean(x: np.ndarray) -> np.ndarray:
        return x**3 if name == "cubic" else np.sin(2 * np.pi * x)

    error = data.train.y - mean(data.train.x)
    assert np.bincount(groups(data.train)).tolist() == [50] * 400
    assert abs(error.mean()) < 0.1
    assert np.allclose(data.test.y, mean(data.test.x), atol=1e-3)
    if name == "cubic":
        assert abs(error.std() - 3) < 0.1
        assert np.abs(data.train.x).max() <= 4
        assert data.test.x[-1, 0] == 6
        assert not load_data("cubic", standardise=False).shift.any()
        return
    assert abs(error.std() - np.sqrt(0.04 + 0.04 * np.mean(np.sin(2 * np.pi * data.train.x) ** 2))) < 0.01
    assert not data.shift.any()
    assert (data.y_scale == 1).all()
    assert (data.test.x[0], data.test.x[-1]) == (-1, 1)
    assert (np.abs(data.train.x).min() >= 0.5) == (name == "interval")


def test_the_tumors_are_those_of_scikit_learn_and_malignant_is_class_1() -> None:
    x, benign = datasets.load_breast_cancer(return_X_y=True)
    data = load_data("breast_cancer")
    rows = np.concatenate([data.train.x, data.test.x]), np.concatenate([data.train.y, data.test.y])
    shipped = x.astype(np.float32)
    here, there = (np.lexsort(table.T) for table in (rows[0], shipped))
    assert np.array_equal(rows[0][here], shipped[there])
    assert np.array_equal(rows[1][here], 1 - benign[there])
    assert data.class_names[1] == "malignant"


def test_toys_and_digits_are_the_same_every_time() -> None:
    for name in ("sine", "interval", "cubic", "digits"):
        one, two = load_data(name), load_data(name)
        assert np.array_equal(one.train.x, two.train.x)
        assert np.array_equal(one.test.y, two.test.y)
    assert not np.array_equal(load_data("sine").train.x, load_data("sine", seed=1).train.x)
    digits = load_data("digits")
    counts = np.bincount(digits.train.y) / (np.bincount(digits.train.y) + np.bincount(digits.test.y))
    assert np.all(np.abs(counts - 0.8) < 0.01)
    assert digits.train.x.max() == 16


def test_a_table_takes_text_as_classes_and_floats_as_targets(tmp_path: Path) -> None:
    a, sites = np.arange(40), [f"s{i % 4}" for i in range(40)]
    frame = pd.DataFrame({"a": a / 7, "b": a % 5, "c": a, "kind": ["no", "yes"] * 20, "site": sites})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    csv, parquet = str(tmp_path / "t.csv"), str(tmp_path / "t.parquet")
    for path in (csv, parquet):
        data = load_data("table", path=path, target="kind", group="site", features=["a", "b"])
        assert data.class_names == ("no", "yes") and (len(data.train.x), len(data.test.x)) == (32, 8)
        assert np.unique(groups(data.train)).tolist() == [0, 1, 2, 3]
        assert data.columns["site"].tolist() == [f"s{g}" for g in groups(data.train)]
    data = load_data("table", path=csv, target="a", features=["b"], test=parquet)
    assert (data.classes, data.train.y.shape, data.test.y.shape) == (0, (40, 1), (40, 1))
    assert load_data("table", path=csv, target=["a", "b"], features=["c"]).outputs == 2


def test_statistics_of_bytes_and_of_floats_agree() -> None:
    x = np.random.default_rng(0).integers(0, 256, (20, 3, 4, 5), dtype=np.uint8)
    for one, two in zip(pixel_moments(x), pixel_moments(x.astype(np.float32)), strict=True):
        assert one.shape == (3, 1, 1)
        assert np.allclose(one, two)


# -- Several data sets as one: their rows in order, a domain for each, and classes shared or apart


def test_a_client_of_a_union_has_one_of_its_sets() -> None:
    digits = load_data("digits")
    dim, rest = (Split(255 - s.x, s.y) for s in (digits.train, digits.test))
    dark = classification("dark", dim, rest, digits.class_names)
    both = join_datasets([digits, dark])
    keys = {"rounds": 0, "runtime": "inline", "report": False, "clients": 5, "model": "linear", "method": "fedavg"}
    study = fedray.run({**keys, "data": {"partition": "domain"}}, data=both).study
    for client in range(5):
        rows = study.shards.fetch(np.array([0]), np.array([client])).rows[0].numpy()
        assert len(set(both.columns["domain"][rows])) == 1
    assert both.classes == 10 and join_datasets([digits, dark], apart=True).classes == 20
