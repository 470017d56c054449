"""Makes a `Study` (the objects that a run needs: data, network, devices, method) from the keys of a scenario."""
