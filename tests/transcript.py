"""What fedray reads at its door and records: `python tests/transcript.py [WORDS]` prints it, line by line.

    scenario   digest of the resolved keys of every shipped file, of its cells, and of every case of the hashes
    partition  digest of the rows that every partition gives to each client
    identity   what eight runs record of what they began with

Digests hold for one machine, and are compared between two commits:

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

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import torch
import yaml
from method_cases import CASES, SCENARIO, changed, make_case

import fedray
from fedray.data import Split, classification
from fedray.scenario.loader import read_cells, read_scenario, to_plain

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


def tell_partitions(home: Path) -> Lines:
    """Digests of whose each row is, and of the models before training, which have seen the inputs.

    The rows are pictures with natural clients, a place and a time.
    """
    draws, n = np.random.default_rng(3), 240
    rows = Split(draws.integers(0, 256, (n, 1, 6, 6), dtype=np.uint8), np.arange(n) % 8, group=np.arange(n) % 6)
    data = classification("placed", rows, Split(rows.x[:40], rows.y[:40]), tuple("abcdefgh"))
    data = data._replace(columns={"place": np.arange(n) % 6, "when": np.arange(n)[::-1].copy()})
    for i, (name, options) in enumerate(PARTITIONS.items()):
        keys = {"data": {"partition": {"name": name, **options}}, "clients": {"number": 6}, "rounds": 1}
        scenario = changed(SCENARIO | {"report": False, "method": {"name": "fedavg"}}, keys)
        scenario["data"] = keys["data"]
        try:
            run = fedray.run(scenario, data=data, out=home / f"partition{i}", progress=False)
        except fedray.BadInput as error:
            yield name, f"refused: {error}"
            continue
        table = pq.read_table(run.path / "partition.parquet").to_pydict()
        yield name, f"{digest(sorted(table.items()))} {run.summary['state_hash'][:16]}"


# ----------------------------------------------------------------------------------------------------- identity


def make_rows() -> tuple[Any, Any, pd.DataFrame]:
    """Inputs `[n, 3]`, labels of two classes, and a table of both with a category, a group and a real number."""
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(ROWS, 3)), np.arange(ROWS) % 2
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    frame["kind"], frame["site"] = np.array(["u", "v", "w"])[np.arange(ROWS) % 3], np.arange(ROWS) // 10
    frame["ill"], frame["level"] = np.where(y, "yes", "no"), x @ np.array([1.0, -2.0, 0.5])
    return x, y, frame


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


def shorten(text: str, home: Path) -> str:
    """A line without the folders of this call and of this machine, and without memory addresses."""
    for place in (home, Path(tempfile.gettempdir()), ROOT):
        text = text.replace(str(place), "{" + ("home" if place == home else place.name) + "}")
    return " ".join(text.split())


SECTIONS: dict[str, Callable[[Path], Lines]] = {
    "scenario": tell_scenarios,
    "partition": tell_partitions,
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
