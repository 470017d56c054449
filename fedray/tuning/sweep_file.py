"""Sweep files: strict YAML becomes a `Sweep`. Whatever is wrong raises `BadInput` with one line: key, value, remedy.

Example:
    >>> sweep = read_sweep({"scenario": {"rounds": 3}, "space": {"local.lr": [0.1, 0.3]}, "objectives": "accuracy"})
    >>> sweep.scenario({"local.lr": 0.3}).local.lr
    0.3
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedray.core.errors import BadInput, warn_user
from fedray.core.text import quote_value, suggest_nearest
from fedray.scenario import yaml_text
from fedray.scenario.explicit import is_dump
from fedray.scenario.kept import is_of_sweep, renames_method
from fedray.scenario.loader import explain_kept_keys, read_scenario, refuse_scenario, to_plain
from fedray.scenario.missing_values import refuse_unknown_nulls
from fedray.scenario.nested import Tree, expand, merge_keys, to_plain_values
from fedray.scenario.shipped import find_scenario_file
from fedray.scenario.spelling import spell_sections
from fedray.scenario.validators import Check, label, maybe, one_of, whole
from fedray.tuning.objectives import SweepObjective, read_objective
from fedray.tuning.space import read_space
from fedray.tuning.sweep import PrunerKeys, SamplerKeys, Sweep
from fedray.tuning.sweep_rules import check_sweep

HOLD_OUT = 0.2
SAMPLERS = ("tpe", "random", "grid", "nsga2")
PRUNERS = ("none", "median", "hyperband", "asha")
TRIALS = 20
MOST_ACTORS = 1000  # of one trial
_ANY: Check = lambda value: value  # noqa: E731 (checked by whoever knows the kind)
KeyTable = Mapping[str, tuple[Any, Check]]  # key -> default and check
SWEEP: KeyTable = {
    "name": (None, maybe(label)),
    "scenario": (None, _ANY),
    "overrides": (None, _ANY),
    "space": (None, _ANY),
    "objectives": (None, _ANY),
    "sampler": ("tpe", _ANY),
    "pruner": ("none", _ANY),
    "trials": (None, maybe(whole(1, 10**6))),
    "jobs": (1, whole(1, 10**4)),
    "trial": (None, _ANY),
}
GONE = {"together": "trials train one after another in each of `jobs` processes: leave it out"}
SAMPLER: KeyTable = {
    "name": ("tpe", one_of(*SAMPLERS)),
    "seed": (0, whole(0, 2**31)),
    "startup": (10, whole(1, 10**6)),
    "population": (20, whole(2, 10**4)),
}
PRUNER: KeyTable = {
    "name": ("none", one_of(*PRUNERS)),
    "startup": (5, whole(1, 10**6)),
    "warmup": (1, whole(0, 10**6)),
    "reduction": (3, whole(2, 100)),
}
TRIAL: KeyTable = {"actors": (0, whole(1, MOST_ACTORS))}
READ = {  # keys of a sampler or pruner, by its name
    "tpe": ("seed", "startup"),
    "random": ("seed",),
    "nsga2": ("seed", "population"),
    "median": ("startup", "warmup"),
    "hyperband": ("warmup", "reduction"),
    "asha": ("warmup", "reduction"),
}


def read_sweep(source: str | Path | Mapping[str, Any]) -> Sweep:
    """The sweep of a file or a dict.

    Raises:
        BadInput: a key is unknown, a value cannot be, or the space leaves what scenarios allow.
    """
    where = find_scenario_file(str(source), "sweep") if isinstance(source, str | Path) else None
    tree = yaml_text.load_yaml(where) if where is not None else source
    if not isinstance(tree, Mapping):
        raise BadInput(f"the sweep = {quote_value(tree)} is not a mapping: write keys as 'trials: 20'")
    refuse_scenario(str(where or "this"), tree)
    given = _section("", to_plain_values(tree), SWEEP)
    base = _base(given, where.parent if where is not None else Path())
    objectives = read_objectives(given["objectives"])
    sampler = SamplerKeys(**_named_section("sampler", given["sampler"], SAMPLER))
    pruner = PrunerKeys(**_named_section("pruner", given["pruner"], PRUNER))
    name = given["name"] or (where.stem if where is not None else "sweep")
    source_tree = {**to_plain_values(tree), "name": name, "scenario": base}  # the name is the study's in its storage
    source_tree.pop("overrides", None)
    sweep = Sweep(
        name=name,
        base=base,
        space=read_space(given["space"]),
        objectives=objectives,
        sampler=sampler,
        pruner=pruner,
        trials=given["trials"],
        jobs=given["jobs"],
        actors=_section("trial", {} if given["trial"] is None else given["trial"], TRIAL)["actors"],
        source=source_tree,
    )
    check_sweep(sweep)
    return sweep


def _named_section(path: str, given: Any, table: KeyTable) -> dict[str, Any]:
    """The keys of a section that may be one name; refuses those that what it names does not read."""
    keys = {"name": given} if isinstance(given, str) else given
    found = _section(path, keys, table)
    read = READ.get(found["name"], ())
    for key in keys:
        if key not in ("name", *read):
            has = f"which reads {' and '.join(read)}" if read else "which reads no other key"
            raise BadInput(f"{path}.{key} cannot act, because {path}.name is {found['name']}, {has}: leave it out")
    return found


def _section(path: str, given: Any, table: KeyTable) -> dict[str, Any]:
    """The keys of a section, checked, defaults filled in."""
    prefix = f"{path}." if path else ""
    if not isinstance(given, Mapping):
        what = "a name or a mapping" if "name" in table else "a mapping"
        raise BadInput(f"{path} = {quote_value(given)} is not {what}: write {{{next(iter(table))}: ...}}")
    for key, value in given.items():
        if key not in table:
            nearest = suggest_nearest(str(key), table, f"it has {', '.join(table)}", prefix=prefix)
            remedy = GONE.get(f"{prefix}{key}", nearest)
            raise BadInput(f"{prefix}{key} is not a key of {path or 'a sweep'}: {remedy}")
        try:
            table[key][1](value)
        except ValueError as wrong:
            raise BadInput(f"{prefix}{key} = {quote_value(value)} {wrong}") from None
    return {key: check(given[key]) if key in given else default for key, (default, check) in table.items()}


def _base(given: Mapping[str, Any], folder: Path) -> Tree:
    """The base scenario's own keys: defaults come later, since they follow from what the space chooses."""
    wanted = given["scenario"]
    if isinstance(wanted, str):
        wanted = yaml_text.load_yaml(find_scenario_file(wanted, folder=folder))
    if not isinstance(wanted, Mapping):
        raise BadInput(
            f"scenario = {quote_value(wanted)} is not a scenario: give a file's path, relative to the sweep, "
            "or its keys"
        )
    own = given["overrides"] or {}
    if not isinstance(own, Mapping):
        raise BadInput(f"overrides = {quote_value(own)} is not a mapping: write {{rounds: 20}}")
    keys, changes = spell_sections(to_plain_values(wanted)), expand(spell_sections(to_plain_values(own)))
    refuse_unknown_nulls([keys, changes])
    tree = merge_keys(merge_keys({"data": {"hold_out": HOLD_OUT}}, keys), changes)
    _warn_of_kept_keys(keys, changes, tree, of_sweep=is_of_sweep(folder / str(given["scenario"])[:200]))
    return {key: value for key, value in tree.items() if key not in ("table", "published")}


def _warn_of_kept_keys(keys: Tree, changes: Tree, tree: Tree, *, of_sweep: bool) -> None:
    """Warns of what a scenario keeps for another method that `overrides` give it."""
    if not renames_method(keys, changes):
        return
    try:
        before, now = (read_scenario(each, explicit=False) for each in (keys, tree))
    except BadInput:  # said where the trials are read
        return
    if line := explain_kept_keys(keys, changes, now, whole=of_sweep or is_dump(keys, to_plain(before))):
        warn_user(line)


def read_objectives(given: Any) -> tuple[SweepObjective, ...]:
    """The objectives of a sweep file: one, or a list of them.

    Raises:
        BadInput: there is none, one is wrong, or one is named twice.
    """
    entries = [given] if isinstance(given, str | Mapping) else given
    if not isinstance(entries, list) or not entries:
        raise BadInput("objectives is missing or empty: give a list such as [accuracy]")
    found = tuple(read_objective(f"objectives[{i}]", entry) for i, entry in enumerate(entries))
    names = [objective.name for objective in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadInput(f"objectives holds {twice} twice: remove one of the two")
    return found
