"""Readers of the forms in which people have their data; each returns a `Dataset`."""
