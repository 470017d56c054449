"""The process of a command: children that end with it, signals, a quick start and end."""
