"""The command `fedray clean`.

Example:
    >>> clean_command.name
    'clean'
"""

from __future__ import annotations

import click


@click.command(name="clean")
@click.option("--yes", is_flag=True, help="Remove what is listed; without it nothing is changed.")
def clean_command(yes: bool) -> None:
    """List what killed runs of yours have left among the temporary files and in shared memory, and remove it (--yes).

    Only folders that fedray made for a Ray of its own, whose processes have all ended, and their shared memory.
    """
    from fedray.core.text import format_bytes
    from fedray.runtime import leftovers

    places = leftovers.session_places()
    found = [folder for folder in leftovers.find_sessions(places) if leftovers.is_dead(folder)]
    for folder in found:
        memory = leftovers.session_memory(folder)
        size = format_bytes(leftovers.measure_size([folder, *memory]))
        click.echo(f"{folder}: {size}, {len(memory)} files in shared memory{', removed' if yes else ''}")
        if yes:
            leftovers.remove_session(folder)
    if not found:
        click.echo(f"nothing is left of killed runs in {', '.join(map(str, places))}")
    elif not yes:
        click.echo("`fedray clean --yes` removes them")
