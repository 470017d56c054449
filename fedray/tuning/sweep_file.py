"""Sweep files: strict YAML becomes a `Sweep`. Whatever is wrong raises `BadInput` with one line: key, value, remedy.

Example:
    >>> sweep = read_sweep({"scenario": {"rounds": 3}, "space": {"local.lr": [0.1, 0.3]}, "objectives": "accuracy"})
    >>> sweep.scenario({"local.lr": 0.3}).local.lr
    0.3
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedray.core.errors import BadInput, warn_user
from fedray.core.text import quote_value, suggest_nearest
from fedray.scenario import yaml_text
from fedray.scenario.loader import read_scenario, refuse_scenario, spell_sections
from fedray.scenario.nested import Tree, expand, merge_keys, to_plain_values
from fedray.scenario.schema import Scenario
from fedray.scenario.shipped import find_scenario_file
from fedray.scenario.validators import Check, label, maybe, one_of, whole
from fedray.tuning.objectives import (
    HELD_OUT_PREFIX,
    INFERENCE,
    SweepObjective,
    explain_idle_keys,
    find_inference_keys,
    read_objective,
)
from fedray.tuning.space import Parameter, Values, enumerate_corners, read_space, to_overrides

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
    "together": (None, maybe(whole(1, 64))),
    "trial": (None, _ANY),
}
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


@dataclass(frozen=True)
class SamplerKeys:
    """The section `sampler` of a sweep file.

    Attributes:
        name: "tpe", "random", "grid" or "nsga2".
        seed: of its random numbers.
        startup: random trials before TPE learns.
        population: of NSGA-II.
    """

    name: str
    seed: int
    startup: int
    population: int


@dataclass(frozen=True)
class PrunerKeys:
    """The section `pruner` of a sweep file.

    Attributes:
        name: "none", "median", "hyperband" or "asha".
        startup: finished trials before the median counts.
        warmup: ages that every trial gets.
        reduction: one of how many trials goes on (hyperband, asha).
    """

    name: str
    startup: int
    warmup: int
    reduction: int


@dataclass(frozen=True)
class Sweep:
    """A sweep file, checked.

    Attributes:
        name: of the study in its storage.
        base: the scenario's own keys with the sweep's overrides; defaults are filled in for each trial.
        space: the parameters.
        objectives: what is optimized.
        sampler: how values are proposed.
        pruner: which trials are stopped early.
        trials: how many in all; None means the whole grid, or 20.
        jobs: workers at a time.
        together: trials that each worker trains side by side; None: see `tune.count_joint_trials`.
        actors: client actors of a cluster that each trial spans; 0: each trains in its own process.
        source: the file with its base scenario inside, for the output directory.
    """

    name: str
    base: Tree
    space: tuple[Parameter, ...]
    objectives: tuple[SweepObjective, ...]
    sampler: SamplerKeys
    pruner: PrunerKeys
    trials: int | None
    jobs: int
    together: int | None
    actors: int
    source: Tree

    def scenario(self, chosen: Values) -> Scenario:
        """The scenario of a trial.

        Where the base does not say how often models are evaluated, it is once an age (K rounds), unless an objective
        needs the whole history.
        """
        found = read_scenario(self.base, to_overrides(self.space, chosen), explicit=False)
        if any(objective.is_personal for objective in self.objectives):
            found = replace(found, evaluate=replace(found.evaluate, personal=True))
        if "every" in self.base.get("evaluate", {}) or any(objective.needs_history for objective in self.objectives):
            return found
        return replace(found, evaluate=replace(found.evaluate, every=found.method.models))

    @property
    def inference(self) -> tuple[str, ...]:
        """Keys of `predict` that no training depends on: one training answers all their values.

        A key that changes the history of a training (through a target, a budget or an early stop) is not among them.
        """
        metrics = [objective.metric for objective in self.objectives if objective.needs_history]
        used = {key for metric in [*metrics, self.stop_metric] for key in find_inference_keys(metric)}
        return tuple(key for key in INFERENCE if key not in used)

    @property
    def stop_metric(self) -> str:
        """The score that ends a training early; empty without one."""
        stop = (self.base.get("evaluate") or {}).get("stop_at") or {}
        return str(stop.get("metric", ""))


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
    sampler = SamplerKeys(**_section("sampler", _named(given["sampler"]), SAMPLER))
    pruner = PrunerKeys(**_section("pruner", _named(given["pruner"]), PRUNER))
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
        together=given["together"],
        actors=_section("trial", {} if given["trial"] is None else given["trial"], TRIAL)["actors"],
        source=source_tree,
    )
    _check(sweep)
    return sweep


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _section(path: str, given: Any, table: KeyTable) -> dict[str, Any]:
    """The keys of a section, checked, defaults filled in."""
    prefix = f"{path}." if path else ""
    if not isinstance(given, Mapping):
        what = "a name or a mapping" if "name" in table else "a mapping"
        raise BadInput(f"{path} = {quote_value(given)} is not {what}: write {{{next(iter(table))}: ...}}")
    for key, value in given.items():
        if key not in table:
            remedy = suggest_nearest(str(key), table, f"it has {', '.join(table)}", prefix=prefix)
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
    tree = merge_keys({"data": {"hold_out": HOLD_OUT}}, spell_sections(to_plain_values(wanted)))
    tree = merge_keys(tree, expand(spell_sections(to_plain_values(own))))
    return {key: value for key, value in tree.items() if key not in ("table", "published")}


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


def _check(sweep: Sweep) -> None:
    """Contradictions between keys, and every end of the space in the base scenario."""
    base = sweep.scenario({})
    if base.data.hold_out == 0:
        raise BadInput("data.hold_out = 0, but a sweep reads held-out data: drop it (0.2 is taken), or give a share")
    if base.local.lr_grid:
        raise BadInput("local.lr_grid is for `fedray run`: leave it out, and give space.local.lr the candidates")
    for key in ("stop_at", "target"):
        target = getattr(base.evaluate, key)
        if target is not None and not target.metric.startswith(HELD_OUT_PREFIX):
            raise BadInput(
                f"evaluate.{key}.metric = {target.metric} is read on the test set, which a sweep leaves alone: "
                f"write {HELD_OUT_PREFIX}{target.metric}"
            )
    has_sets = base.predict.conformal is not None or any(p.key.startswith("predict.conformal") for p in sweep.space)
    for objective in sweep.objectives:
        kind, needs = objective.metric.removeprefix(HELD_OUT_PREFIX).partition("_")[0], f"objectives: {objective.name}"
        if kind == "conformal" and not has_sets:
            raise BadInput(f"{needs} needs sets: write overrides: {{predict.conformal.alpha: 0.1}}")
        if kind == "ood" and base.evaluate.ood is None:
            raise BadInput(f"{needs} needs unknown inputs: write overrides: {{evaluate.ood: noise}}, or a data set")
    first = sweep.objectives[0]
    if sweep.pruner.name != "none" and len(sweep.objectives) > 1:
        raise BadInput(f"pruner.name = {sweep.pruner.name} needs one objective: use none, or drop objectives")
    if sweep.pruner.name != "none" and first.kind != "final":
        raise BadInput(f"pruner.name = {sweep.pruner.name} cannot compare {first.name} on the way: use none")
    _check_idle(sweep)
    if sweep.sampler.name == "grid":
        for parameter in sweep.space:
            parameter.grid()
    for parameter, chosen in enumerate_corners(sweep.space):
        try:
            sweep.scenario(chosen)
        except BadInput as wrong:
            raise BadInput(f"space.{parameter.key}: {wrong}") from None


def _check_idle(sweep: Sweep) -> None:
    """Refuses a space of which no key acts on an objective; where some do, it warns of the others."""
    ends = [sweep.stop_metric] if sweep.stop_metric else []
    idle = explain_idle_keys([p.key for p in sweep.space], sweep.objectives, ends)
    if len(idle) == len(sweep.space):
        raise BadInput(idle[0])
    for text in idle:
        warn_user(f"{text}; its value in the best trial means nothing")
