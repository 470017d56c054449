"""What is done to the files of a run directory to make it a hostile one."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from safetensors.numpy import load_file, save_file

from fedray.files.bounded import SEAL, seal_entries

Harm = Callable[[Path], Any]
SCRIPT = "<script>alert(1)</script>"
LONG = "x" * 10_000_000
PARTS = {"clients": "clients.parquet/part-000000002.parquet", "rounds": "rounds.parquet/part-000000002.parquet"}


class HostileCase(NamedTuple):
    """One hostile directory.

    Attributes:
        harm: changes a run directory.
        file: that at least one command has to name; empty where every command may go on.
    """

    harm: Harm
    file: str


def _write(name: str, content: bytes | str) -> Harm:
    data = content.encode() if isinstance(content, str) else content
    return lambda out: (out / name).write_bytes(data)


def _forget(out: Path) -> None:
    """Nothing says what the run began with; or else any edit is refused."""
    for name in ("identity.json", "manifest.json"):
        (out / name).unlink()


def _yaml(content: bytes | str) -> Harm:
    def harm(out: Path) -> None:
        _forget(out)
        _write("scenario.yaml", content)(out)

    return harm


def _keys(**changes: Any) -> Harm:
    """Sections of the scenario with other values."""

    def harm(out: Path) -> None:
        _forget(out)
        tree = yaml.safe_load((out / "scenario.yaml").read_text())
        for key, value in changes.items():
            tree[key] = {**tree[key], **value} if isinstance(value, dict) else value
        (out / "scenario.yaml").write_text(yaml.safe_dump(tree))

    return harm


def _json(name: str, change: Callable[[dict[str, Any]], Any]) -> Harm:
    def harm(out: Path) -> None:
        tree = json.loads((out / name).read_text())
        (out / name).write_text(json.dumps(change(tree) or tree))

    return harm


def _summary(**changes: Any) -> Harm:
    return _json("summary.json", lambda tree: {**tree, **changes})


def _column(table: str, name: str, make: Callable[[int], Any] | None, compression: str = "snappy") -> Harm:
    """A table with another column in the place of one; None takes it away."""

    def harm(out: Path) -> None:
        path = out / PARTS[table]
        found = pq.read_table(path, partitioning=None)
        if name in found.column_names:
            found = found.drop_columns([name])
        if make is not None:
            found = found.append_column(name, pa.array(make(len(found))))
        pq.write_table(found, path, compression=compression)

    return harm


def _table(table: str, make: Callable[[pa.Table], pa.Table], **options: Any) -> Harm:
    def harm(out: Path) -> None:
        path = out / PARTS[table]
        pq.write_table(make(pq.read_table(path, partitioning=None)), path, **options)

    return harm


def _repeat(table: pa.Table, rows: int) -> pa.Table:
    """The first row, so often that the file is a thousandth of what it unpacks to."""
    return pa.table({name: pa.array([table[name][0].as_py()] * rows, table[name].type) for name in table.column_names})


def _picture(**arrays: Any) -> Harm:
    def harm(out: Path) -> None:
        with np.load(out / "pictures.npz", allow_pickle=False) as file:
            kept = {name: file[name] for name in file.files}
        np.savez_compressed(out / "pictures.npz", **{**kept, **arrays})

    return harm


def _archive_lie(out: Path) -> None:
    """A header that says a terabyte."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": (1 << 18, 1 << 19)})
    with zipfile.ZipFile(out / "pictures.npz", "w") as packed:
        packed.writestr("confusion.npy", buffer.getvalue())


def _tensors(change: Callable[[dict[str, Any]], Any]) -> Harm:
    """Another state in the checkpoint."""

    def harm(out: Path) -> None:
        folder = next(out.glob("checkpoints/round-*"))
        tensors = dict(load_file(folder / "state.safetensors"))
        tensors = change(tensors) or tensors
        save_file(tensors, folder / "state.safetensors")

    return harm


def _totals(**changes: Any) -> Harm:
    return lambda out: _seal_totals(next(out.glob("checkpoints/round-*")), **changes)


def _seal_totals(folder: Path, **changes: Any) -> None:
    kept = {k: v for k, v in json.loads((folder / "progress.json").read_text()).items() if k != SEAL}
    kept |= changes
    (folder / "progress.json").write_text(json.dumps({**kept, SEAL: seal_entries(kept)}))


def _replace(name: str, make: Callable[[Path], Any]) -> Harm:
    """Something else under the name of a file."""

    def harm(out: Path) -> None:
        path = out / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        make(path)

    return harm


def _link(name: str, to: str) -> Harm:
    return _replace(name, lambda path: path.symlink_to(to))


def _directory(name: str) -> Harm:
    return _replace(name, lambda path: path.mkdir())


STATE, TOTALS = "checkpoints/round-000002/state.safetensors", "checkpoints/round-000002/progress.json"
ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
CASES: dict[str, HostileCase] = {
    "yaml: aliases": HostileCase(_yaml(ALIASES), "scenario.yaml"),
    "yaml: an alias in itself": HostileCase(_yaml("a: &a [*a]"), "scenario.yaml"),
    "yaml: 100,000 brackets": HostileCase(_yaml("[" * 100_000), "scenario.yaml"),
    "yaml: 2,000 keys deep": HostileCase(_yaml("{a: " * 2_000 + "1" + "}" * 2_000), "scenario.yaml"),
    "yaml: 10 MB": HostileCase(_yaml(f"rounds: {LONG}"), "scenario.yaml"),
    "yaml: a tag that runs code": HostileCase(_yaml("a: !!python/object/apply:os.mkdir [mark]"), "scenario.yaml"),
    "yaml: no such character": HostileCase(_yaml('name: "\\UFFFFFFFF"'), "scenario.yaml"),
    "yaml: !!bool x": HostileCase(_yaml("rounds: !!bool x"), "scenario.yaml"),
    "yaml: UTF-16": HostileCase(_yaml("rounds: 3".encode("utf-16")), "scenario.yaml"),
    "yaml: Latin-1": HostileCase(_yaml("rounds: \xe9".encode("latin-1")), "scenario.yaml"),
    "yaml: null characters": HostileCase(_yaml(bytes(1000)), "scenario.yaml"),
    "yaml: empty": HostileCase(_yaml(""), "scenario.yaml"),
    "yaml: a list": HostileCase(_yaml("[1, 2]"), "scenario.yaml"),
    "yaml: a link to a device": HostileCase(_link("scenario.yaml", "/dev/zero"), "scenario.yaml"),
    "yaml: a pipe": HostileCase(_replace("scenario.yaml", os.mkfifo), ""),
    "yaml: a directory": HostileCase(_directory("scenario.yaml"), "scenario.yaml"),
    "yaml: a billion clients": HostileCase(_keys(clients={"number": 10**9}), "clients.number"),
    "yaml: keys that no scenario has": HostileCase(_keys(evil=1), "evil"),
    "yaml: a script as data": HostileCase(_keys(data={"name": SCRIPT}), "data.name"),
    "identity: a newer format": HostileCase(
        _json("identity.json", lambda tree: {**tree, "format": 9}), "identity.json"
    ),
    "identity: wrong types": HostileCase(_json("identity.json", lambda tree: {**tree, "data": 3}), "identity.json"),
    "identity: a list": HostileCase(_write("identity.json", "[]"), "identity.json"),
    "manifest: 100,000 brackets": HostileCase(_write("manifest.json", "[" * 100_000), "manifest.json"),
    "manifest: a script": HostileCase(_write("manifest.json", json.dumps({SCRIPT: SCRIPT})), ""),
    "manifest: half a character": HostileCase(_write("manifest.json", '{"a": "\\ud800"}'), ""),
    "summary: empty": HostileCase(_write("summary.json", ""), "summary.json"),
    "summary: NaN": HostileCase(_write("summary.json", '{"rounds": NaN}'), "summary.json"),
    "summary: a script as method": HostileCase(_summary(method=SCRIPT), ""),
    "summary: a script as metric": HostileCase(_summary(metrics={SCRIPT: {"mean": 0.5, "sd": None, "n": 1}}), ""),
    "summary: control characters": HostileCase(_summary(method="\x00\x1b[2J\x07"), ""),
    "summary: a directory": HostileCase(_directory("summary.json"), "summary.json"),
    "summary: a link that leads nowhere": HostileCase(_link("summary.json", "/nowhere"), "summary.json"),
    "jobs: a model of 10^9": HostileCase(_column("clients", "model", lambda n: [10**9] * n), PARTS["clients"]),
    "jobs: a client of 2^62": HostileCase(_column("clients", "client", lambda n: [2**62] * n), PARTS["clients"]),
    "jobs: a client of 10^8": HostileCase(_column("clients", "client", lambda n: [10**8] * n), ""),
    "jobs: 999,999 models": HostileCase(_column("clients", "model", lambda n: [999_999] * n), ""),
    "jobs: negative ids": HostileCase(_column("clients", "model", lambda n: [-1] * n), PARTS["clients"]),
    "jobs: ids that are text": HostileCase(_column("clients", "client", lambda n: ["a"] * n), PARTS["clients"]),
    "jobs: ids with a fraction": HostileCase(_column("clients", "round", lambda n: [0.5] * n), PARTS["clients"]),
    "jobs: empty ids": HostileCase(_column("clients", "replicate", lambda n: [None] * n), PARTS["clients"]),
    "jobs: seconds are NaN": HostileCase(_column("clients", "sim_seconds", lambda n: [float("nan")] * n), ""),
    "jobs: seconds are infinite": HostileCase(_column("clients", "sim_seconds", lambda n: [float("inf")] * n), ""),
    "jobs: negative bytes": HostileCase(_column("clients", "up_bytes", lambda n: [-(2**60)] * n), PARTS["clients"]),
    "jobs: no model": HostileCase(_column("clients", "model", None), PARTS["clients"]),
    "jobs: a script as tier": HostileCase(
        _column("clients", "tier", lambda n: [SCRIPT + str(i % 2) for i in range(n)]), ""
    ),
    "jobs: control characters": HostileCase(
        _column("clients", "tier", lambda n: [f"\x00\x1b{i % 2}" for i in range(n)]), ""
    ),
    "jobs: a column more": HostileCase(_column("clients", "evil", lambda n: [LONG] * n, "zstd"), ""),
    "jobs: 30 million equal rows": HostileCase(
        _table("clients", lambda found: _repeat(found.select(["replicate"]), 30_000_000)), PARTS["clients"]
    ),
    "jobs: 10 MB of text in a million rows": HostileCase(
        _column("clients", "error", lambda n: pa.DictionaryArray.from_arrays(pa.array([0] * n), [LONG[:99]]), "zstd"),
        "",
    ),
    "jobs: no Parquet": HostileCase(_write(PARTS["clients"], "PAR1PAR1"), PARTS["clients"]),
    "jobs: a huge footer": HostileCase(
        _write(PARTS["clients"], b"PAR1" + struct.pack("<I", 2**31 - 1) + b"PAR1"), PARTS["clients"]
    ),
    "jobs: no directory": HostileCase(_replace("clients.parquet", lambda path: path.touch()), "clients.parquet"),
    "jobs: a link to a directory": HostileCase(_link("clients.parquet", "/tmp"), "clients.parquet"),
    "rounds: no round": HostileCase(_column("rounds", "round", None), PARTS["rounds"]),
    "rounds: accuracy is 10^308": HostileCase(_column("rounds", "accuracy", lambda n: [1e308] * n), ""),
    "rounds: accuracy is NaN": HostileCase(_column("rounds", "accuracy", lambda n: [float("nan")] * n), ""),
    "rounds: a column more": HostileCase(_column("rounds", SCRIPT, lambda n: [1.0] * n), ""),
    "rounds: 3,000 columns more": HostileCase(
        _table("rounds", lambda found: pa.table({f"c{i}": found["round"] for i in range(3_000)})), PARTS["rounds"]
    ),
    "rounds: a link": HostileCase(_link(PARTS["rounds"], "/etc/passwd"), PARTS["rounds"]),
    "drift: no column": HostileCase(
        lambda out: pq.write_table(pa.table({"a": [1]}), out / "drift.parquet"), "drift.parquet"
    ),
    "pictures: a pickle": HostileCase(_picture(confusion=np.array([{"a": 1}], object)), "pictures.npz"),
    "pictures: only a pickle": HostileCase(_write("pictures.npz", pickle.dumps([1])), "pictures.npz"),
    "pictures: a terabyte": HostileCase(_archive_lie, "pictures.npz"),
    "pictures: 4,000 classes": HostileCase(_picture(confusion=np.ones((4000, 4000), np.uint8)), ""),
    "pictures: empty arrays": HostileCase(_picture(loss_plane=np.ones((0, 0)), predictive=np.ones((0, 4))), ""),
    "pictures: NaN": HostileCase(_picture(alpha=np.full((6, 5), np.nan), loss_plane=np.full((9, 9), np.inf)), ""),
    "pictures: 10^300": HostileCase(
        _picture(label_counts=np.full((6, 10), 1e300), client_scores=np.full(6, -1e300)), ""
    ),
    "pictures: a script as class": HostileCase(_picture(class_names=np.array([SCRIPT] * 10)), ""),
    "pictures: edges of a million nodes": HostileCase(_picture(graph_edges=np.array([[0, 10**6], [1, 2]])), ""),
    "pictures: negative edges": HostileCase(_picture(graph_edges=np.array([[-1, 2]])), "pictures.npz"),
    "pictures: another graph": HostileCase(_picture(graph_edges=np.array([[0, 1]])), ""),
    "state: other models": HostileCase(_tensors(lambda t: {**t, "models": np.ones((3, 7), np.float32)}), "checkpoint"),
    "state: more models": HostileCase(_tensors(lambda t: {**t, "models": np.ones((9, 610), np.float32)}), "checkpoint"),
    "state: whole numbers": HostileCase(_tensors(lambda t: {**t, "models": np.ones((5, 610), np.int64)}), "checkpoint"),
    "state: no models": HostileCase(_tensors(lambda t: {"counters": t["counters"]}), "state.safetensors"),
    "state: other counters": HostileCase(
        _tensors(lambda t: {**t, "counters": np.ones((2, 3), np.int64)}), "checkpoint"
    ),
    "state: a header of 2^60 bytes": HostileCase(_write(STATE, struct.pack("<Q", 2**60) + b"{}"), "state.safetensors"),
    "state: a pickle": HostileCase(_write(STATE, pickle.dumps([1])), "state.safetensors"),
    "state: a directory": HostileCase(_directory(STATE), "state.safetensors"),
    "totals: deep": HostileCase(_write(TOTALS, '{"a": ' * 100_000), "progress.json"),
    "totals: bytes are text": HostileCase(_totals(up_bytes=["many"]), "progress.json"),
    "totals: seconds are no numbers": HostileCase(_totals(sim_seconds=[1.5]), "progress.json"),
    "totals: more worlds": HostileCase(_totals(up_bytes=[1, 2, 3]), "progress.json"),
    "totals: metrics are text": HostileCase(_totals(metrics="good"), "progress.json"),
}
