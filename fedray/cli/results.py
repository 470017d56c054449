"""The commands about finished runs: `fedray report` and `fedray export`.

Example:
    >>> report_command.name
    'report'
"""

from __future__ import annotations

from pathlib import Path

import click

from fedray.cli import options
from fedray.core.user_modules import import_modules


@click.command(name="report")
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), help="The HTML file to write (default: report.html in the first folder)."
)
def report_command(folders: tuple[Path, ...], out: Path | None) -> None:
    """Write the HTML report of the run in a folder, or one report that compares the runs of several."""
    from fedray.report.write import write_report

    target = out or folders[0] / "report.html"
    write_report(list(folders), target)
    click.echo(str(target))


@click.command(name="export")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Where the files go (default: FOLDER/export).")
@options.modules
def export_command(folder: Path, out: Path | None, modules: tuple[str, ...]) -> None:
    """Write each model of a run to a safetensors file that PyTorch can load without fedray."""
    import_modules(modules)
    from fedray.api import load

    for path in load(folder).export(out):
        click.echo(str(path))
