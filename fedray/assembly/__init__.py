"""Makes a `Study` of plain objects from the names and keys of a scenario."""
