"""What is wrong with the arguments of a command, in one line with the remedy.

Example:
    >>> explain_usage(click.NoSuchOption("--rounds"))
    '--rounds is no option: keys of a scenario have no dashes: write rounds=VALUE'
"""

from __future__ import annotations

import click

_KEYS = {  # what a command has in place of key=value
    "resume": "a run keeps its keys, and --rounds N makes it longer",
    "tune": "write it below overrides in the sweep file",
}
_FUNCTIONS = {
    "compare": "`fedray report RUN RUN --out FILE`, or fedray.compare in Python",
    "predict": "Run.predict in Python",
}


def explain_usage(error: click.UsageError) -> str:
    """The line.

    Args:
        error: what click found.
    """
    text, command = error.format_message().rstrip("."), error.ctx.command_path if error.ctx else "fedray"
    name = command.rpartition(" ")[2]
    if isinstance(error, click.NoSuchOption) and name not in _KEYS:
        from fedray.scenario.schema import section_fields
        from fedray.scenario.unknown_keys import find_key

        key = find_key(error.option_name.lstrip("-"), section_fields(""))
        if key:
            return f"{error.option_name} is no option: keys of a scenario have no dashes: write {key}=VALUE"
    if "unexpected extra argument" in text and "=" in text and name in _KEYS:
        return f"{text}: {_KEYS[name]}"
    for word, remedy in _FUNCTIONS.items():
        if f"'{word}'" in text and "No such command" in text:
            return f"{text}: use {remedy}"
    return f"{text}: see `{command} --help`"
