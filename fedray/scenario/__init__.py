"""Reads scenarios, which describe experiments in strict YAML, into frozen dataclasses.

Three functions of `loader` are the entries. `read_scenario` makes a `Scenario` from a file, a text or a dict.
`read_cells` returns the scenario of each cell of a table. `to_plain` returns a scenario as plain values with all
defaults.
"""
