"""The forms in which people have their data, each read into a `Dataset`."""
