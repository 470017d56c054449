"""`drift.parquet`: one row for each known client, with how unusual its data look to the final ensemble.

Its columns are in `files/columns.py`.

Example:
    >>> from fedray.metrics.drift import score_drift
    >>> drift = score_drift(total=[0.5, np.nan], knowledge=[0.1, np.nan])
    >>> table = make_drift_table(0, 0, np.array([40, 0]), drift)
    >>> table.select(["client", "samples", "knowledge", "anomaly"]).to_pylist()[1]
    {'client': 1, 'samples': 0, 'knowledge': None, 'anomaly': False}
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from fedray.core.errors import FedrayError
from fedray.core.types import IntArray
from fedray.files.checksums import check_final_file
from fedray.files.columns import make_table
from fedray.files.run_files import read_drift_file
from fedray.files.sealed import read_sealed
from fedray.metrics.drift import Drift
from fedray.simulation.study import Study
from fedray.storage.tables import write_parquet

DRIFT_FILE = "drift.parquet"


def make_drift_table(replicate: int, fold: int, samples: IntArray, drift: Drift) -> pa.Table:
    """The rows of one replicate and fold.

    Args:
        replicate: its number.
        fold: its number.
        samples: training samples of each client, `[N]`.
        drift: the drift scores of the N clients.
    """
    clients = np.arange(len(samples))
    place = {"replicate": np.full_like(clients, replicate), "fold": np.full_like(clients, fold), "client": clients}
    return make_table("drift", {**place, "samples": samples, **drift._asdict()})  # NaN, without data: null


def write_drift(out: Path, study: Study, worlds: Sequence[Drift]) -> None:
    """Writes the table.

    Args:
        out: the run directory.
        study: what was trained.
        worlds: the drift scores of the clients in each world.
    """
    tables = []
    for world, drift in enumerate(worlds):
        client = np.arange(len(drift.total))
        samples = study.shards.sizes(np.full_like(client, world), client)
        tables.append(make_drift_table(*study.place(world), samples, drift))
    write_parquet(out / DRIFT_FILE, pa.concat_tables(tables))


def read_drift(out: Path) -> pa.Table:
    """The drift scores of a run directory.

    Raises:
        FedrayError: the run has none.
    """
    path, summary = out / DRIFT_FILE, out / "summary.json"
    check_final_file(out, DRIFT_FILE, read_sealed(summary) if summary.is_file() else {})
    if not path.is_file():
        raise FedrayError(
            f"{out} has no {DRIFT_FILE}: only a finished run with several models and at most 2,000 clients has one"
        )
    return read_drift_file(path)
