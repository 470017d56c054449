"""Pictures have the numbers of their files, whatever they are of and whatever comes first, or are refused."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image
from small import scenario
from small_data import Pairs

import fedray
from fedray.core.errors import FedrayWarning
from fedray.data import Dataset, adapt
from fedray.data.types import Array

DRAW = np.random.default_rng(0)
DEEP = np.concatenate([DRAW.integers(500, 1500, (20, 8, 8)), DRAW.integers(2500, 3500, (20, 8, 8))])
LABELS = np.arange(40) // 20
SCENARIO: dict[str, Any] = {
    "rounds": 10, "method": {"name": "fedavg"}, "clients": {"number": 4}, "report": False, "local": {"lr": 0.1},
}  # fmt: skip


def make_hub(pictures: list[Any], labels: Array) -> Any:
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    return datasets.Dataset.from_dict({"image": pictures, "label": labels}, features=features)


def write_folder(home: Path, pictures: list[Any], labels: Array, ending: str = ".png") -> Path:
    """A folder with a folder for each class; a picture is a PIL image, or the bytes of a file."""
    for i, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
        file = home / "ab"[label] / f"{i:03}{ending}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(picture) if isinstance(picture, bytes) else picture.save(file)
    return home


def read_all(data: Dataset) -> Array:
    """Training and test rows in the order of the rows that were given."""
    rows = np.concatenate([data.train.x, data.test.x])
    order = np.concatenate([data.columns["row"], np.setdiff1d(np.arange(len(rows)), data.columns["row"])])
    return rows[np.argsort(order)]


def encode(picture: Any, kind: str, **how: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **how)
    return file.getvalue()


@pytest.mark.parametrize(
    ("ending", "pack"),
    [
        (".png", lambda a: Image.fromarray(a.astype(np.uint16))),
        (".tif", lambda a: Image.fromarray(a.astype(np.uint16))),
        (".tif", lambda a: Image.fromarray(a.astype(np.int32))),
        (".tiff", lambda a: Image.fromarray(a.astype(np.float32))),
        (".pgm", lambda a: b"P5 8 8 65535\n" + a.astype(">u2").tobytes()),
    ],
    ids=["png 16", "tif 16", "tif 32", "tif real", "pgm 16"],
)
def test_pictures_of_more_than_8_bits_were_white(tmp_path: Path, ending: str, pack: Callable[[Array], Any]) -> None:
    folder = write_folder(tmp_path / "deep", [pack(levels) for levels in DEEP], LABELS, ending)
    data = adapt(folder)
    assert np.array_equal(read_all(data)[:, 0], DEEP) and data.train.x.dtype == np.float32
    small = adapt(folder, size=4)
    assert small.train.x.shape[1:] == (1, 4, 4) and 500 <= small.train.x.min() < small.train.x.max() < 3500
    if ending == ".png":
        named = fedray.run(scenario(SCENARIO, {"data": {"name": "folder", "path": str(folder)}}))
        array = fedray.run(scenario(SCENARIO), data=(DEEP, LABELS))
        assert named.metrics["accuracy"] == 1.0 and named.summary["model_hash"] == array.summary["model_hash"]


def test_the_order_of_names_decided_whether_gray_and_color_fit(tmp_path: Path) -> None:
    gray = [Image.fromarray((levels // 16).astype(np.uint8)) for levels in DEEP]
    color = [
        Image.fromarray(np.stack([np.asarray(one), 255 - np.asarray(one), np.asarray(one)], axis=-1)) for one in gray
    ]
    found = []
    for order in (1, -1):
        mixed = [gray[i] if order * (i - 19.5) < 0 else color[i] for i in range(40)]
        forms = (write_folder(tmp_path / str(order), mixed, LABELS), make_hub(mixed, LABELS), Pairs(mixed, LABELS))
        for thing in forms:
            with pytest.warns(FedrayWarning):
                rows = read_all(adapt(thing))
            assert rows.shape == (40, 3, 8, 8)
            found.append([np.array_equal(row[0], row[1]) for row in rows])
    assert found == [[True] * 20 + [False] * 20] * 3 + [[False] * 20 + [True] * 20] * 3
    parts = datasets.DatasetDict(train=make_hub(color, LABELS), test=make_hub(gray, LABELS))
    with pytest.warns(FedrayWarning):
        assert adapt(parts).test.x.shape == (40, 3, 8, 8)


def test_transparency_was_left_out_in_silence(tmp_path: Path) -> None:
    shapes = np.zeros((40, 8, 8, 4), np.uint8)
    shapes[..., 3] = DEEP // 16
    drawn, opaque = [Image.fromarray(one) for one in shapes], np.copy(shapes)
    assert np.array_equal(read_all(adapt(write_folder(tmp_path / "shapes", drawn, LABELS)))[:, 3], shapes[..., 3])
    gray = [one.convert("LA") for one in drawn]
    assert np.array_equal(read_all(adapt(make_hub(gray, LABELS)))[:, 3], shapes[..., 3])
    opaque[..., 3], opaque[..., 0] = 255, DEEP // 16
    colored = [Image.fromarray(one) for one in opaque]
    assert read_all(adapt(make_hub(colored, LABELS))).shape[1] == 3, "nothing is transparent"
    palette = [one.convert("RGB").quantize(16) for one in colored]
    assert read_all(adapt(write_folder(tmp_path / "palette", palette, LABELS))).shape[1] == 3
    with pytest.warns(FedrayWarning):
        mixed = read_all(adapt(Pairs(colored[:20] + drawn[20:], LABELS)))
    assert (mixed[:20, 3] == 255).all() and np.array_equal(mixed[20:, 3], shapes[20:, ..., 3])


def test_the_orientation_in_exif_was_ignored(tmp_path: Path) -> None:
    upright = np.arange(48, dtype=np.uint8).reshape(6, 8) * 5
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    lying = Image.fromarray(np.rot90(upright))
    files = [encode(Image.fromarray(upright), "PNG"), encode(lying, "PNG", exif=exif)] * 20
    folder = write_folder(tmp_path / "turned", files, LABELS)
    hub = make_hub([{"bytes": file, "path": None} for file in files], LABELS)
    opened = Pairs([Image.open(io.BytesIO(file)) for file in files], LABELS)
    for thing in (folder, hub, opened):
        assert (read_all(adapt(thing)) == upright).all()


def test_pictures_of_many_levels_are_made_alike_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As large data sets are, which do not stay in memory."""
    monkeypatch.setattr("fedray.data.forms.pictures.PIECE_BYTES", 100)
    monkeypatch.setattr("fedray.data.files.LARGE_BYTES", 1000)
    monkeypatch.setattr("fedray.data.files.PIECE_BYTES", 200)
    monkeypatch.setattr("fedray.data.types.LARGE_BYTES", 1000)
    far = DEEP + 1_000_000_000
    whole = [Image.fromarray(levels.astype(np.int32)) for levels in far]
    data = adapt(write_folder(tmp_path / "far", whole, LABELS, ".tif"))
    assert data.origin is not None and np.array_equal(read_all(data) + data.origin, far[:, None])
    gray = [Image.fromarray((levels // 16).astype(np.uint8)) for levels in DEEP]
    with pytest.warns(FedrayWarning):
        rows = read_all(adapt(make_hub([*gray[:39], gray[39].convert("RGB")], LABELS)))
    assert np.array_equal(rows[:, 2], DEEP // 16)
