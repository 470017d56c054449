"""What fedray reads at its door and records: `python tests/transcript.py [WORDS]` prints it, line by line.

    scenario   digest of the resolved keys of every shipped file, of its cells, and of every case of the hashes
    partition  digest of the rows that every partition gives to each client

Digests hold for one machine, and are compared between two commits:

    python tests/transcript.py > before.txt; git switch other; python tests/transcript.py | diff before.txt -
"""

import hashlib
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent / "helpers"))

import numpy as np
import pyarrow.parquet as pq
from method_cases import CASES, SCENARIO, changed, make_case

import fedray
from fedray.data import Split, classification
from fedray.scenario.loader import read_cells, read_scenario, to_plain

Lines = Iterator[tuple[str, str]]
ROOT = Path(__file__).parents[1]


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


def list_scenarios() -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Every scenario by its name, and what resolves it."""
    for file in sorted((ROOT / "scenarios").rglob("*.yaml")):
        name = str(file.relative_to(ROOT).with_suffix(""))
        yield name, lambda file=file: to_plain(read_scenario(file))  # type: ignore[misc]
        if "\ntable:" in file.read_text():
            for cell in read_cells(read_scenario(file)):
                yield f"{name}#{cell.name}", partial(to_plain, cell.scenario)
    for case in CASES:
        yield f"case {case}", lambda case=case: to_plain(read_scenario(make_case(case)))  # type: ignore[misc]


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


SECTIONS: dict[str, Callable[[Path], Lines]] = {"scenario": tell_scenarios, "partition": tell_partitions}


def main(wanted: list[str]) -> None:
    """Prints the sections that are named, or all."""
    for section, tell in SECTIONS.items():
        if wanted and section not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, said in tell(Path(folder)):
                print(section, name, "|", said, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
