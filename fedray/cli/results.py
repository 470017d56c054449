"""The commands about finished runs: `fedray report`, `fedray plot` and `fedray export`."""

from __future__ import annotations

import io
from pathlib import Path

import click

from fedray.cli import options
from fedray.core.errors import BadInput
from fedray.experiments.phases import log
from fedray.files.checksums import has_file
from fedray.files.plain import confirm_writable, make_parent, write_atomically
from fedray.own_code.user_modules import import_modules
from fedray.process.quickly import import_quickly


@click.command(name="report")
@click.argument("folders", nargs=-1, required=True, **options.as_path)
@click.option("--out", **options.as_path, help="The HTML file to write (default: report.html in the first folder).")
def report_command(folders: tuple[Path, ...], out: Path | None) -> None:
    """Write the HTML report of the run in a folder, or one report that compares the runs of several.

    Among several, YAML files are passed over: a table leaves `cells/NAME.yaml` beside `cells/NAME`.
    """
    folders = tuple(one for one in folders if not (one.suffix == ".yaml" and one.is_file())) or folders
    for folder in folders:
        if not has_file(folder, "scenario.yaml"):  # said before anything heavy is imported
            raise BadInput(
                f"report {folder}: no scenario.yaml there: give run directories, as `fedray run` writes them"
            )
    target = out or folders[0] / "report.html"
    confirm_writable("--out", target.parent)
    log.info("drawing the report")
    with import_quickly():
        from fedray.report.write import write_report

    write_report(list(folders), target)
    click.echo(str(target))


@click.command(name="export")
@click.argument("folder", **options.as_path)
@click.option("--out", **options.as_path, help="Where the files go (default: FOLDER/export).")
@options.modules
def export_command(folder: Path, out: Path | None, modules: tuple[str, ...]) -> None:
    """Write each model of a run to a safetensors file that PyTorch can load without fedray.

    The networks take standardized inputs: models.json beside them says how, names the classes, and says with which
    weights the models answer.
    """
    from fedray.storage.places import require_run_directory

    require_run_directory(folder)
    confirm_writable("--out", out or folder)
    import_modules(modules)
    with import_quickly():
        from fedray.api import load

    for path in load(folder).export(out):
        click.echo(str(path))


@click.command(name="plot")
@click.argument("folder", type=options.path)
@click.argument("name", required=False)
@click.option("--out", type=options.path, help="A .png, .svg or .pdf file (default: FOLDER/NAME.png).")
@click.option("--dpi", type=click.IntRange(20, 600), default=110, show_default=True, help="Pixels per inch of a PNG.")
def plot_command(folder: Path, name: str | None, out: Path | None, dpi: int) -> None:
    """Draw one picture of the report: accuracy or rmse (the default), bytes, time, drift, or any score of a run."""
    if out is not None and out.suffix not in (".png", ".svg", ".pdf"):
        raise BadInput(f"--out {out}: the picture is a .png, .svg or .pdf file: give a name that ends so")
    from fedray.storage.places import require_run_directory

    require_run_directory(folder)
    confirm_writable("--out", folder if out is None else out.parent)
    with import_quickly():
        from fedray.api import load
        from fedray.report.read import read_run

    name = name or read_run(folder).metric
    target = out or folder / f"{name}.png"
    picture = io.BytesIO()
    load(folder).plot(name).savefig(picture, format=target.suffix[1:], dpi=dpi, bbox_inches="tight")
    make_parent(target)
    write_atomically(target, picture.getvalue())
    click.echo(str(target))
