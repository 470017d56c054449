"""From names to objects: a scenario becomes a study."""
