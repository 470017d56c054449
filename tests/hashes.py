"""The bits of every method: `python tests/hashes.py [WORDS]` prints a line a case.

A line is the name, the model hash, the state hash, and digests of the tables of rounds and of clients and of the arrays
behind the pictures. A change that promises the same results prints the same lines before and after. Hashes hold for one
type of CPU and one version of torch, so they are compared between two commits on one machine and not kept here:

    python tests/hashes.py > before.txt; git switch other; python tests/hashes.py | diff before.txt -
"""

import hashlib
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
os.environ.setdefault("OMP_NUM_THREADS", "1")

sys.path.insert(0, str(Path(__file__).parent / "helpers"))

import numpy as np
import torch
from method_cases import CASES, changed, make_case
from torch.nn import functional

import fedray

WALL = "wall_seconds"  # the column that differs between two runs of one scenario


def _case(name: str, **keys: Any) -> dict[str, Any]:
    """A case of the table with further keys."""
    return changed(make_case(name), keys)


def smooth_cross_entropy(outputs: torch.Tensor, targets: torch.Tensor, _context: object) -> torch.Tensor:
    """A loss in code, of each row."""
    return functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.1)


TIERS = {"strong": {"number": 3, "models_per_round": "all"}, "weak": {"number": 3}}
ON_RAY: dict[str, dict[str, Any]] = {
    "fedavg": _case("fedavg"),
    "fed_ensemble topk": _case("fed_ensemble topk error_feedback"),
    "feddyn": _case("feddyn"),
    "stacking": _case("stacking"),
    "random_walk": _case("random_walk"),
}
MORE: dict[str, dict[str, Any]] = {
    "torch fedavg": _case("fedavg", lanes="torch"),
    "torch fedavg cnn": _case("fedavg cnn", lanes="torch"),
    "torch fedem": _case("fedem", lanes="torch"),
    "torch heterofl": _case("heterofl plain", lanes="torch"),
    "torch ditto": _case("ditto", lanes="torch"),
    "gamma": _case("fed_ensemble", predict={"gamma": 0.1}, evaluate={"clients": "all"}, data={"hold_out": 0.2}),
    "conformal": _case("fed_ensemble", predict={"conformal": {"alpha": 0.4}}, data={"hold_out": 0.4}),
    "conformal gamma": _case(
        "shefl", predict={"gamma": 0.1, "conformal": {"alpha": 0.4, "score": "aps"}}, data={"hold_out": 0.4}
    ),
    "conformal personal": _case("ditto", predict={"conformal": {"alpha": 0.4}}, data={"hold_out": 0.4}),
    "regression": _case("fedag linear", predict={"noise": "residual"}, rounds=2),
    **{f"ray {name}": keys | {"runtime": "ray"} for name, keys in ON_RAY.items()},
}


def _resume(keys: dict[str, Any], out: Path) -> fedray.Run:
    """A run that is made again from the checkpoint in its middle."""
    run = fedray.run(keys, out=out, progress=False)
    rounds = sorted((run.path / "checkpoints").iterdir())
    middle = rounds[len(rounds) // 2 - 1]
    for later in rounds[rounds.index(middle) + 1 :]:
        shutil.rmtree(later)
    for name in ("summary.json", "pictures.npz"):
        (run.path / name).unlink(missing_ok=True)
    return fedray.resume(run.path)


_RESUMED = {
    "resumed buffered": _case("fed_ensemble buffered"),
    "resumed scaffold": _case("scaffold"),
    "resumed feddyn": _case("feddyn_ensemble", rounds=6, compress={"kind": "topk", "error_feedback": True}),
}
_IN_CODE: dict[str, dict[str, Any]] = {  # objects beside the keys of FedAvg
    "code optimizer": {"optimizer": torch.optim.AdamW},
    "code loss": {"loss": smooth_cross_entropy},
    "code both": {"optimizer": torch.optim.RMSprop, "loss": smooth_cross_entropy},
}


def list_cases() -> dict[str, Callable[[Path], fedray.Run]]:
    """Every case by its name: what runs it in a directory."""

    def plain(keys: dict[str, Any], **objects: Any) -> Any:
        return lambda out: fedray.run(keys, out=out, progress=False, **objects)

    found = {name: plain(make_case(name)) for name in CASES}
    found |= {name: plain(keys) for name, keys in MORE.items()}
    found |= {name: partial(_resume, keys) for name, keys in _RESUMED.items()}
    return found | {name: plain(make_case("fedavg"), **objects) for name, objects in _IN_CODE.items()}


def digest_table(table: Any) -> str:
    """A digest of the rows of a table, in an order that does not depend on how they were written."""
    kept = table.drop_columns([name for name in (WALL,) if name in table.column_names])
    rows = sorted(repr(sorted(row.items())) for row in kept.to_pylist())
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]


def digest_pictures(file: Path) -> str:
    """A digest of the arrays behind the pictures, by name."""
    digest = hashlib.sha256()
    with np.load(file, allow_pickle=False) as arrays:
        for name in sorted(arrays):
            array = arrays[name]
            digest.update(f"{name} {array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def main(wanted: list[str]) -> None:
    """Runs the cases whose names contain one of the words given, or all."""
    warnings.simplefilter("ignore")
    for name, run_case in list_cases().items():
        if wanted and not any(word in name for word in wanted):
            continue
        with tempfile.TemporaryDirectory() as folder:
            run = run_case(Path(folder) / "run")
            hashes = [run.summary["model_hash"][:32], run.summary["state_hash"][:32]]
            tables = [digest_table(run.rounds), digest_table(run.clients), digest_pictures(run.path / "pictures.npz")]
        print(name, *hashes, *tables, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
