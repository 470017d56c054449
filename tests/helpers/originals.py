"""Small files in the formats of the original data sets."""

import gzip
import io
import json
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Literal

import numpy as np


def idx(path: Path, values: np.ndarray) -> None:
    head = struct.pack(">HBB", 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape)
    with gzip.open(path, "wb") as file:
        file.write(head + values.astype(np.uint8).tobytes())


def fake_mnist(root: Path, rows: int = 30) -> Path:
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for part, n in (("train", rows), ("t10k", 10)):
        idx(raw / f"{part}-images-idx3-ubyte.gz", draw.integers(0, 256, (n, 28, 28)))
        idx(raw / f"{part}-labels-idx1-ubyte.gz", np.arange(n) % 10)
    return raw


def batch(n: int, labels: str) -> bytes:
    draw = np.random.default_rng(n)
    return pickle.dumps({"data": draw.integers(0, 256, (n, 3072), np.uint8), labels: [i % 10 for i in range(n)]})


def cifar_files(kind: str) -> dict[str, bytes]:
    if kind == "cifar100":
        meta = pickle.dumps({"fine_label_names": [str(i) for i in range(100)]})
        parts = {"train": batch(20, "fine_labels"), "test": batch(7, "fine_labels"), "meta": meta}
        return {f"cifar-100-python/{name}": content for name, content in parts.items()}
    meta = pickle.dumps({"label_names": list("abcdefghij")})
    files = {f"data_batch_{i}": batch(4 + i, "labels") for i in range(1, 6)} | {"test_batch": batch(5, "labels")}
    return {f"cifar-10-batches-py/{name}": content for name, content in (files | {"batches.meta": meta}).items()}


def pack(path: Path, files: dict[str, bytes], mode: Literal["w:gz", "w:xz"]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def leaf(root: Path) -> None:
    for part, n in (("train", 6), ("test", 2)):
        folder = root / "femnist" / "data" / part
        folder.mkdir(parents=True)
        for shard, users in enumerate((["b"], ["c", "a"])):
            data = {u: {"x": [[i / 255] * 784 for i in range(n)], "y": [i % 62 for i in range(n)]} for u in users}
            content = json.dumps({"users": users, "num_samples": [n] * len(users), "user_data": data}).encode()
            if shard:
                (folder / f"{shard}.json.gz").write_bytes(gzip.compress(content))
            else:
                (folder / f"{shard}.json").write_bytes(content)


def fake_uci(root: Path) -> Path:
    folder = root / "UCI" / "UCI_Datasets" / "tiny" / "data"
    folder.mkdir(parents=True)
    values = np.column_stack([np.arange(10.0), np.ones(10), np.arange(10.0) * 3])
    np.savetxt(folder / "data.txt", values)
    files = {"index_features": [0, 1], "index_target": [2], "n_splits": [2]}
    for k in range(2):
        files |= {f"index_train_{k}": [i for i in range(10) if i % 2 == k], f"index_test_{k}": [1 - k, 3 - k]}
    for name, numbers in files.items():
        np.savetxt(folder / f"{name}.txt", np.array(numbers, float))
    return folder
