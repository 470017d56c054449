"""The commands about what there is: `fedray list`, `fedray scenarios` and `fedray data`."""

from __future__ import annotations

from pathlib import Path

import click

from fedray.cli import options
from fedray.own_code.user_code import import_modules

_NONE = {  # what has names of users only
    "metrics": "none of your own: --import the module that registers them; `fedray list columns` has fedray's",
    "callbacks": "none: --import the module that registers yours",
    "losses": "none of your own: --import the module that registers them",
}


@click.command(name="list")
@click.argument(
    "kind",
    type=click.Choice(
        [
            *("methods", "datasets", "models", "partitions", "selections", "schedules", "optimizers", "losses"),
            *("augmentations", "metrics", "callbacks", "classifiers", "columns"),
        ]
    ),
    required=False,
)
@options.modules
def list_command(kind: str | None, modules: tuple[str, ...]) -> None:
    """List the names that a scenario may use; a method trains K (as you choose), 1 or N (one a client) models.

    With --import the names that your module registers are listed too, with their options. `fedray list columns` shows
    the columns of the tables that runs and sweeps leave, with their units.
    """
    if kind == "columns":
        _print_columns()
        return
    from fedray.methods import METHOD_SPECS
    from fedray.scenario import names
    from fedray.scenario.classifiers import CLASSIFIERS

    import_modules(modules)
    own = {name: text for name, text in names.known_names("method").items() if name not in METHOD_SPECS}
    models = {"any": "K", "one": "1", "clients": "N"}
    tables: dict[str, dict[str, str]] = {
        "methods": {name: f"{models[spec.models]}  {spec.text}" for name, spec in METHOD_SPECS.items()} | own,
        **{kind.listed: names.known_names(kind.word) for kind in names.KINDS.values() if kind.word != "method"},
        "classifiers": {name: text for name, (text, _) in CLASSIFIERS.items()},
    }
    for title, known in tables.items():
        if kind == title or (kind is None and known):
            click.echo(f"{title}:")
            for name, meaning in known.items():
                click.echo(f"  {name:18} {meaning}")
            if not known:
                click.echo(f"  {_NONE[title]}")


def _print_columns() -> None:
    """Prints every column of every table: name, unit, and what it is."""
    from fedray.storage.tables import TABLES_OF, list_table_columns

    for table, columns in list_table_columns().items():
        click.echo(f"{TABLES_OF[table].replace('`', '')}:")
        for name, column in columns.items():
            click.echo(f"  {name:20} {column.unit:30} {column.text.replace('`', '')}")


@click.group(name="data")
def data_group() -> None:
    """Download data sets."""


@data_group.command(name="get")
@click.argument("name")
@click.option("--root", **options.as_path, help="Where files go (default: $FEDRAY_DATA, or a cache).")
def data_get_command(name: str, root: Path | None) -> None:
    """Download a data set by its name; torchvision and the UCI repository have them."""
    from fedray.data.catalogue import download_data

    click.echo(str(download_data(name, root)))


@click.group(name="scenarios", invoke_without_command=True)
@click.pass_context
def scenarios_group(context: click.Context) -> None:
    """List the scenario files and sweeps that come with fedray; `run`, `table`, `check` and `tune` take their names."""
    if context.invoked_subcommand is None:
        from fedray.scenario.shipped import list_shipped

        for name, file in list_shipped().items():
            click.echo(f"{file.command:6} {name:42} {file.what}")


@scenarios_group.command(name="copy")
@click.argument("name", shell_complete=options.complete_file)
@click.option("--out", **options.as_path, help="The new file (default: NAME.yaml in this folder).")
def scenarios_copy_command(name: str, out: Path | None) -> None:
    """Copy a file that comes with fedray, to be changed."""
    from fedray.scenario.shipped import copy_shipped

    wanted = out or Path(f"{Path(name).name}.yaml")
    copy_shipped(name, wanted)
    click.echo(str(wanted))
