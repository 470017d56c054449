"""The command `fedray bench`."""

from __future__ import annotations

from pathlib import Path

import click

from fedray.cli import options
from fedray.core.errors import BadInput


@click.command(name="bench")
@click.option("--quick", is_flag=True, help="Fewer and shorter measurements; takes minutes.")
@click.option("--only", multiple=True, metavar="ROW", help="A row to measure; may be repeated (default: all).")
@click.option("--out", **options.as_path, help="Markdown file to write the table to.")
def bench_command(quick: bool, only: tuple[str, ...], out: Path | None) -> None:
    """Measure how fast fedray trains, beside a plain PyTorch loop."""
    from fedray.bench.rows import run_benchmark
    from fedray.files.plain import write_atomically

    if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):  # said before minutes of measuring
        raise BadInput(f"--out {out}: give a file in a directory that exists")
    table = run_benchmark(only, quick, click.echo)
    if out is not None:
        write_atomically(out, table.encode())
