"""The command line."""

from fedray.cli.commands import main

__all__ = ["main"]
