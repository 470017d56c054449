"""The command `fedray traces`: device traces of others as `clients.trace`.

Example:
    >>> sorted(traces_group.commands)
    ['fedscale', 'mobiperf']
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from fedray.cli import options

_out = click.option("--out", **options.as_path, required=True, help="The trace, .csv or .parquet.")
_clients = click.option("--clients", type=click.IntRange(1), help="How many clients are taken (default: all).")


@click.group(name="traces")
def traces_group() -> None:
    """Convert device traces of FedScale and MobiPerf to a file for clients.trace."""


@traces_group.command(name="fedscale")
@click.argument("capacity", **options.as_path)
@click.argument("behaviour", **options.as_path, required=False)
@_out
@_clients
def fedscale_command(capacity: Path, behaviour: Path | None, out: Path, clients: int | None) -> None:
    """Convert FedScale's client_device_capacity, and its client_behave_trace if it is given.

    The files are pickles; they are read as data, and nothing in them is run.
    """
    from fedray.simulation.trace_files import convert_fedscale, read_objects

    kept = None if behaviour is None else read_objects(behaviour)
    _write(convert_fedscale(read_objects(capacity), kept, clients), out)


@traces_group.command(name="mobiperf")
@click.argument("files", **options.as_path, nargs=-1, required=True)
@_out
@_clients
def mobiperf_command(files: tuple[Path, ...], out: Path, clients: int | None) -> None:
    """Convert MobiPerf's JSON files: bandwidths and latencies that change over time."""
    from fedray.simulation.trace_files import convert_mobiperf, read_objects

    found = [read_objects(path) for path in files]
    records = [record for one in found for record in (one if isinstance(one, list) else [one])]
    _write(convert_mobiperf(records, clients), out)


def _write(rows: Mapping[str, Any], out: Path) -> None:
    """Writes a trace by the ending of its name."""
    import pandas as pd

    from fedray.core.errors import BadInput
    from fedray.files.plain import make_parent, write_atomically

    if out.suffix not in (".csv", ".parquet"):
        raise BadInput(f"--out {out}: a trace is a table: give a name that ends with .csv or .parquet")
    frame = pd.DataFrame(dict(rows))
    make_parent(out)
    text = (
        frame.to_csv(index=False, float_format="%.9g").encode()
        if out.suffix == ".csv"
        else frame.to_parquet(index=False)
    )
    write_atomically(out, text)
    click.echo(f"{out}: {frame['client'].nunique():,} clients, {len(frame):,} rows, columns {', '.join(frame)}")
