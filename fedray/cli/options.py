"""The options that several commands share.

Example:
    >>> @click.command()
    ... @modules
    ... def try_command(modules):
    ...     click.echo(modules)
    >>> try_command.main(["--import", "math", "--import", "json"], standalone_mode=False)
    ('math', 'json')
"""

from __future__ import annotations

from pathlib import Path

import click

out = click.option("--out", type=click.Path(path_type=Path), help="Directory of the run (default: runs/SCENARIO).")
address = click.option("--address", help="A running Ray cluster (default: one is started here for the run).")
modules = click.option("--import", "modules", multiple=True, metavar="MODULE", help="Your own module, imported first.")
