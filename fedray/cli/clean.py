"""The command `fedray clean`."""

from __future__ import annotations

import shutil
from pathlib import Path

import click


@click.command(name="clean")
@click.option("--yes", is_flag=True, help="Remove what is listed; without it nothing is changed.")
def clean_command(yes: bool) -> None:
    """List what runs of yours have left among the temporary files, and remove it (--yes).

    That is the runs and sweeps from Python without `out`, whose processes have ended; and folders that fedray made for
    a Ray of its own, whose processes have all ended. A Ray whose driver was killed a moment ago still ends: it is
    waited for, and named if that takes longer than 10 seconds.
    """
    from fedray.core.text import format_bytes
    from fedray.runtime import leftovers

    places = leftovers.session_places()
    abandoned = [folder for folder in leftovers.find_sessions(places) if leftovers.is_abandoned(folder)]
    ending = leftovers.wait_for_ends(abandoned)
    found = [folder for folder in abandoned if folder not in ending]
    for folder in found:
        click.echo(f"{folder}: {format_bytes(leftovers.measure_size([folder]))}{', removed' if yes else ''}")
        if yes:
            leftovers.remove_session(folder)
    for folder in ending:
        click.echo(f"{folder}: its run has ended, but processes of its Ray go on: try again when they have ended")
    runs = _clean_runs(places, yes=yes)
    if not found and not ending and not runs:
        click.echo(f"nothing is left of killed runs, nor of runs without out=, in {', '.join(map(str, places))}")
    elif (found or True in runs) and not yes:
        click.echo("`fedray clean --yes` removes them")


def _clean_runs(places: list[Path], *, yes: bool) -> list[bool]:
    """Lists the folders of runs and sweeps without `out`, and removes those that nobody uses where `yes` says so.

    Returns:
        Of each folder whether it can be removed.
    """
    from fedray.core.text import format_bytes
    from fedray.files import plain
    from fedray.runtime import leftovers

    free = []
    for folder in plain.find_temporary(places):
        free.append(not plain.is_in_use(folder))
        what = f"{format_bytes(leftovers.measure_size([folder]))}, a run or a sweep without out="
        click.echo(f"{folder}: {what}{(', removed' if yes else '') if free[-1] else ', kept: its process goes on'}")
        if yes and free[-1]:
            shutil.rmtree(folder, ignore_errors=True)
    return free
