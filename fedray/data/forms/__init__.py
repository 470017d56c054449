"""Reads data in the forms in which people have them; every reader returns a `Dataset`."""
