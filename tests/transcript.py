"""What fedray says and reads at its door: `python tests/transcript.py [WORDS]` prints it, line by line.

    scenario   digest of the resolved keys of every shipped file, of its cells, and of every case of the hashes
    form       digest of one example of every form of own data, or the line that refuses it
    partition  digest of the rows that every partition gives to each client
    object     what a run says of every hostile object of a user's own
    identity   what eight runs record of what they began with

A change that promises the same door prints the same lines before and after; a line that it means to change is shown by
the diff. What bad input is told stands in `tests/wording`. Paths of temporary folders are left out, and digests hold
for one machine:

    python tests/transcript.py > before.txt; git switch other; python tests/transcript.py | diff before.txt -

With `--keys NAME` the resolved keys behind a scenario's digest are printed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent / "helpers"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tools" / "hostile"))

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from method_cases import CASES, SCENARIO, changed, make_case
from own_objects import CASES as OBJECTS
from own_objects import run_objects
from PIL import Image

import fedray
from fedray.data import Dataset, Split, adapt, classification
from fedray.scenario import read_cells, read_scenario, to_plain

Lines = Iterator[tuple[str, str]]
ROOT = Path(__file__).parents[1]
ROWS = 40


def digest(*things: Any) -> str:
    """A digest of arrays by type, shape and bytes, and of all else by its text."""
    found = hashlib.sha256()
    for thing in things:
        if isinstance(thing, np.ndarray) and thing.dtype != object:
            found.update(f"{thing.dtype} {thing.shape}".encode() + np.ascontiguousarray(thing).tobytes())
        else:
            found.update(repr(thing.tolist() if isinstance(thing, np.ndarray) else thing).encode())
    return found.hexdigest()[:16]


# ---------------------------------------------------------------------------------------------------- scenarios


def _resolve(source: Any) -> dict[str, Any]:
    return to_plain(read_scenario(source))


def list_scenarios() -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Every scenario by its name, and what resolves it."""
    for file in sorted((ROOT / "scenarios").rglob("*.yaml")):
        name = str(file.relative_to(ROOT).with_suffix(""))
        yield name, partial(_resolve, file)
        if "\ntable:" in file.read_text():
            for cell in read_cells(read_scenario(file)):
                yield f"{name}#{cell.name}", partial(to_plain, cell.scenario)
    for case in CASES:
        yield f"case {case}", partial(_resolve, make_case(case))


def tell_scenarios(_home: Path) -> Lines:
    """A digest of the resolved keys of each, or the line that refuses them."""
    for name, resolve in list_scenarios():
        try:
            yield name, digest(json.dumps(resolve(), sort_keys=True))
        except fedray.BadInput as error:
            yield name, str(error)


# -------------------------------------------------------------------------------------------------------- forms


def make_rows() -> tuple[Any, Any, pd.DataFrame]:
    """Inputs `[n, 3]`, labels of two classes, and a table of both with a category, a group and a real number."""
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(ROWS, 3)), np.arange(ROWS) % 2
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    frame["kind"], frame["site"] = np.array(["u", "v", "w"])[np.arange(ROWS) % 3], np.arange(ROWS) // 10
    frame["ill"], frame["level"] = np.where(y, "yes", "no"), x @ np.array([1.0, -2.0, 0.5])
    return x, y, frame


class Pairs(torch.utils.data.Dataset[Any]):
    """Rows as a data set of torch."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        x, y, _ = make_rows()
        return torch.from_numpy(x[i].astype(np.float32)), int(y[i])


def write_pictures(folder: Path, names: list[str]) -> Path:
    """A folder with a folder of small pictures for each name."""
    draws = np.random.default_rng(1)
    for name in names:
        (folder / name).mkdir(parents=True)
        for i in range(10):
            Image.fromarray(draws.integers(0, 256, (6, 6), dtype=np.uint8)).save(folder / name / f"{i}.png")
    return folder


def list_forms(home: Path) -> dict[str, Callable[[], Dataset]]:
    """One example of every form, and what reads it."""
    x, y, frame = make_rows()
    table = pa.Table.from_pandas(frame, preserve_index=False)
    frame.to_csv(home / "table.csv", index=False)
    frame.to_csv(home / "table.csv.gz", index=False)
    frame.to_csv(home / "table.tsv", index=False, sep="\t")
    frame.to_csv(home / "semicolons.csv", index=False, sep=";")
    frame.to_parquet(home / "table.parquet", index=False)
    frame.to_feather(home / "table.feather")
    (home / "tables").mkdir()
    for site, rows in frame.groupby("site"):
        rows.drop(columns="site").to_csv(home / "tables" / f"site{site}.csv", index=False)
    classes = write_pictures(home / "classes", ["cat", "dog"])
    parts = home / "parts"
    for part in ("train", "test"):
        write_pictures(parts / part, ["cat", "dog"])
    by_site = {f"site{site}": rows.drop(columns="site") for site, rows in frame.groupby("site")}
    gaps = frame.assign(a=frame["a"].where(frame["a"] < 1))
    texts = ["to be or not", "that is the question"] * (ROWS // 2)
    half = (x[:30], y[:30]), (x[30:], y[30:])
    images = np.random.default_rng(2).integers(0, 256, (ROWS, 5, 5, 3), dtype=np.uint8)
    forms: dict[str, tuple[Any, dict[str, Any]]] = {
        "pair of arrays": ((x, y), {}),
        "pair of tensors": ((torch.from_numpy(x), torch.from_numpy(y)), {}),
        "pair of lists": ((x.tolist(), y.tolist()), {}),
        "pair with names as labels": ((x, frame["ill"].to_numpy()), {}),
        "pair with one-hot labels": ((x, np.eye(2)[y]), {}),
        "pair with real targets": ((x, frame["level"].to_numpy()), {}),
        "pair with whole targets": ((x, y * 3), {"task": "regression"}),
        "pair of a frame and a series": ((frame[["a", "b"]], frame["ill"]), {}),
        "pair of pictures, channels last": ((images, y), {}),
        "pair with gaps, mean": ((gaps[["a", "b"]].to_numpy(), y), {"missing": "mean"}),
        "pair with gaps, refused": ((gaps[["a", "b"]].to_numpy(), y), {}),
        "two pairs": (half, {}),
        "pair and test": (half[0], {"test": half[1]}),
        "pair and a share": ((x, y), {"test_fraction": 0.4}),
        "texts": ((texts, y), {"tokenizer": lambda text: [ord(c) % 7 for c in text], "length": 12}),
        "pandas frame": (frame, {"target": "ill"}),
        "pandas frame, regression": (frame, {"target": "level", "input": ["a", "b", "kind"]}),
        "pandas frame by group": (frame, {"target": "ill", "group": "site"}),
        "pandas frame, gaps dropped": (gaps, {"target": "ill", "missing": "drop"}),
        "pandas frame without target": (frame, {}),
        "two frames": ((frame.iloc[:30], frame.iloc[30:]), {"target": "ill"}),
        "pyarrow table": (table, {"target": "ill"}),
        "CSV": (home / "table.csv", {"target": "ill"}),
        "CSV, packed": (home / "table.csv.gz", {"target": "ill"}),
        "CSV with semicolons": (home / "semicolons.csv", {"target": "ill"}),
        "TSV": (home / "table.tsv", {"target": "ill"}),
        "Parquet": (home / "table.parquet", {"target": "ill"}),
        "Feather": (home / "table.feather", {"target": "ill"}),
        "folder of tables": (home / "tables", {"target": "ill"}),
        "folder of classes": (classes, {}),
        "folder of classes, scaled": (classes, {"size": 4}),
        "folder of parts": (parts, {"test": "test"}),
        "clients of frames": (by_site, {"target": "ill"}),
        "clients of pairs": ({"one": half[0], "two": half[1]}, {}),
        "torch data set": (Pairs(), {}),
        "two torch data sets": ((Pairs(), Pairs()), {}),
        "numbers": (x, {}),
        "text": ("digits", {}),
        "nothing": (None, {}),
    }
    try:
        import datasets
    except ImportError:
        pass
    else:
        rows = datasets.Dataset.from_pandas(frame, preserve_index=False)
        forms["Hugging Face"] = rows, {"target": "ill", "input": ["a", "b", "kind"]}
        split = datasets.DatasetDict({"train": rows.select(range(30)), "test": rows.select(range(30, ROWS))})
        forms["Hugging Face, parts"] = split, {"target": "ill", "input": ["a", "b"]}
    return {name: partial(adapt, thing, **keys) for name, (thing, keys) in forms.items()}


def tell_data(data: Dataset) -> str:
    """What a data set holds: kinds and shapes in words, the rest as a digest."""
    parts = [(part.x, part.y, part.group) for part in (data.train, data.test)]
    words = f"{data.class_names} {data.features} {data.train.x.dtype}{list(data.train.x.shape)}"
    columns, scales = sorted(data.columns), (data.shift, data.scale, data.y_shift, data.y_scale)
    return f"{words} {digest(*parts[0], *parts[1], *scales, columns, *(data.columns[name] for name in columns))}"


def tell_forms(home: Path) -> Lines:
    """What each form is read as, and what is said of it."""
    for name, read in list_forms(home).items():
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                found = tell_data(read())
            except fedray.BadInput as error:
                found = f"refused: {error}"
        yield name, " | ".join([found, *(str(one.message) for one in said)])


# --------------------------------------------------------------------------------------------------- partitions

PARTITIONS: dict[str, dict[str, Any]] = {
    "iid": {},
    "iid flipped": {"name": "iid", "flipped": 0.5},
    "iid noisy": {"name": "iid", "noisy": 0.5},
    "iid rotation": {"name": "iid", "rotation": 4},
    "iid permute_labels": {"name": "iid", "permute_labels": 2},
    "shards": {"shards": 2},
    "classes": {"classes": 2},
    "dirichlet": {"alpha": 0.5},
    "dirichlet_clients": {"alpha": 0.5},
    "lognormal": {},
    "power_law": {},
    "exponential": {},
    "sizes": {"sizes": [70, 60, 50, 30, 18, 12]},
    "natural": {},
    "column": {"column": "place"},
    "domain": {"column": "place"},
    "time": {"column": "when"},
}


def make_placed() -> Dataset:
    """Pictures with natural clients, a place and a time."""
    draws, n = np.random.default_rng(3), 240
    rows = Split(draws.integers(0, 256, (n, 1, 6, 6), dtype=np.uint8), np.arange(n) % 8, group=np.arange(n) % 6)
    data = classification("placed", rows, Split(rows.x[:40], rows.y[:40]), tuple("abcdefgh"))
    return data._replace(columns={"place": np.arange(n) % 6, "when": np.arange(n)[::-1].copy()})


def tell_partitions(home: Path) -> Lines:
    """Digests of whose each row is, and of the models before training, which have seen the inputs."""
    for i, (name, options) in enumerate(PARTITIONS.items()):
        keys = {"data": {"partition": {"name": name, **options}}, "clients": {"number": 6}, "rounds": 1}
        scenario = changed(SCENARIO | {"report": False, "method": {"name": "fedavg"}}, keys)
        scenario["data"] = keys["data"]
        try:
            run = fedray.run(scenario, data=make_placed(), out=home / f"partition{i}", progress=False)
        except fedray.BadInput as error:
            yield name, f"refused: {error}"
            continue
        table = pq.read_table(run.path / "partition.parquet").to_pydict()
        yield name, f"{digest(sorted(table.items()))} {run.summary['state_hash'][:16]}"


# ------------------------------------------------------------------------------------------------------ objects


def shorten(text: str, home: Path) -> str:
    """A line without the folders of this call and of this machine, and without memory addresses."""
    for place in (home, Path(tempfile.gettempdir()), ROOT):
        text = text.replace(str(place), "{" + ("home" if place == home else place.name) + "}")
    return " ".join(text.split())


def tell_objects(home: Path) -> Lines:
    """What a run says of each object; `works` where it runs to its end."""
    for i, case in enumerate(OBJECTS):
        try:
            run_objects(case, home / f"object{i}")
        except fedray.FedrayError as error:
            said = f"{type(error).__name__}: {error}"
        except BaseException as error:
            said = f"{type(error).__name__} (a traceback): {error}"
        else:
            said = "works"
        yield case.name, shorten(said.replace(f"object{i}", "object"), home)


# ----------------------------------------------------------------------------------------------------- identity


def weigh_classes(outputs: torch.Tensor, targets: torch.Tensor, _context: object) -> torch.Tensor:
    """A loss that reads a tensor outside."""
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="none") * WEIGHTS[targets]


WEIGHTS = torch.tensor([1.0, 2.0])


def list_runs() -> dict[str, tuple[Mapping[str, Any], dict[str, Any]]]:
    """Eight runs: their keys, and the objects of one's own that they have."""
    x, y, frame = make_rows()
    small: dict[str, Any] = {"rounds": 1, "runtime": "inline", "report": False, "clients": {"number": 4}}
    named = small | {"method": {"name": "fedavg"}}
    return {
        "digits": (make_case("fedavg"), {}),
        "shefl": (make_case("shefl"), {}),
        "arrays": (named, {"data": (x.astype(np.float32), y)}),
        "frame": (named, {"data": frame, "data__target": "ill"}),
        "loss": (named, {"data": (x.astype(np.float32), y), "loss": weigh_classes}),
        "optimizer": (named, {"optimizer": torch.optim.AdamW}),
        "metric": (named, {"metrics": {"mine": lambda scored: float(scored.prediction.mean())}}),
        "selection": (
            named | {"participation": {"per_round": 2}},
            {"selection": lambda known, number, _draws, _options: known.client[:number]},
        ),
    }


def tell_identities(home: Path) -> Lines:
    """What each run records, key by key; long values as digests."""
    for name, (keys, objects) in list_runs().items():
        run = fedray.run(keys, out=home / f"identity {name}", progress=False, **objects)
        found = json.loads((run.path / "identity.json").read_text())
        for key, value in sorted(found.items()):
            text = json.dumps(value, sort_keys=True)
            yield f"{name} {key}", text if len(text) < 100 else digest(text)


SECTIONS: dict[str, Callable[[Path], Lines]] = {
    "scenario": tell_scenarios,
    "form": tell_forms,
    "partition": tell_partitions,
    "object": tell_objects,
    "identity": tell_identities,
}


def main(wanted: list[str]) -> None:
    """Prints the sections that are named, or all."""
    if wanted[:1] == ["--keys"]:
        print(yaml.safe_dump(dict(list_scenarios())[wanted[1]]()))
        return
    for section, tell in SECTIONS.items():
        if wanted and section not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, said in tell(Path(folder)):
                print(section, name, "|", shorten(said, Path(folder)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
