"""`partition.parquet` of a run directory: which rows each client has, for any tool, and for `data.partition.file`.

The rows of stored data sets are written; clients that are generated have none, and so has a partition of more than 50
million rows: its scenario and its seed deal it again. The manifest says which it is (`study.partition`).

Example:
    >>> from fedray.assembly.study import build_study
    >>> from fedray.scenario.loader import read_scenario
    >>> study = build_study(read_scenario({"data": {"name": "synthetic"}, "clients": {"number": 10}}))
    >>> describe_partition(study)
    'generated: the rows of a client follow from data.seed, the seed and its number (scenario.yaml)'
"""

from __future__ import annotations

import errno
from pathlib import Path

from fedray.core.errors import Damaged
from fedray.data.partition_file import FILE_NAME, MOST_ROWS, pack_partition
from fedray.data.stored import StoredShards
from fedray.files import plain
from fedray.files.sealed import tell_apart
from fedray.simulation.study import Study


def describe_partition(study: Study) -> str:
    """Where it is written who holds which rows."""
    shards = study.shards
    if not isinstance(shards, StoredShards):
        return "generated: the rows of a client follow from data.seed, the seed and its number (scenario.yaml)"
    rows = sum(len(cut.rows) for cut in shards.dealt.owned)
    if rows > MOST_ROWS:
        return f"not written ({rows:,} rows): it follows from data.partition and the seed (scenario.yaml)"
    return FILE_NAME


def write_partition(out: Path, study: Study) -> None:
    """Writes who holds which rows of every world, unless the file is there and the same.

    Args:
        out: The run directory.
        study: What is trained.

    Raises:
        BadInput: The file is there, and this user may not read it.
    """
    shards = study.shards
    if describe_partition(study) != FILE_NAME or not isinstance(shards, StoredShards):
        return
    clusters = [shards.clusters(world) for world in range(study.worlds)]
    data = pack_partition(shards.data, shards.dealt, [int(fold) for fold in study.folds], clusters)
    path = out / FILE_NAME
    if _read_present(path) != data:
        plain.write_atomically(path, data)


def _read_present(path: Path) -> bytes | None:
    """The bytes of the file that is there; None where none is, or something else that is to be replaced.

    Raises:
        BadInput: This user may not read it.
        FedrayError: It cannot be read for another reason, such as a fault of the disk.
    """
    try:
        return plain.read_file(path)
    except OSError as error:
        told = tell_apart(path, error, "")
        if isinstance(told, Damaged) or error.errno == errno.EFBIG:
            return None
        raise told from None
