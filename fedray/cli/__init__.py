"""Defines the command line. `fedray.cli.commands.main` is the program."""
