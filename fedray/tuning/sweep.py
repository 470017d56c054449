"""A sweep as plain objects: the scenario it begins with, the space, the objectives, and the scenario of a trial.

Example:
    >>> from fedray.tuning.sweep_file import read_sweep
    >>> keys = {"method": {"models": 3}, "stop": {"metric": "hold_out_nll"}}
    >>> sweep = read_sweep({"scenario": keys, "space": {"local.lr": [0.1, 0.3]}, "objectives": ["accuracy"]})
    >>> sweep.scenario({"local.lr": 0.3}).evaluate.every  # every round, which the stop looks at
    1
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedray.scenario.loader import read_scenario
from fedray.scenario.nested import Tree
from fedray.scenario.schema import Scenario
from fedray.tuning.objectives import INFERENCE, SweepObjective, find_inference_keys
from fedray.tuning.parameter import Parameter, Values
from fedray.tuning.space import to_overrides


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
    actors: int
    source: Tree

    def scenario(self, chosen: Values) -> Scenario:
        """The scenario of a trial.

        Where the base does not say how often models are evaluated, it is once an age (K rounds), unless the training
        may end early. Where an objective has a budget or a target it is every round, whatever the base says: a score at
        a budget is not that of an evaluation long before.
        """
        found = read_scenario(self.base, to_overrides(self.space, chosen), explicit=False)
        if any(objective.is_personal for objective in self.objectives):
            found = replace(found, evaluate=replace(found.evaluate, personal=True))
        if any(objective.needs_history for objective in self.objectives):
            return replace(found, evaluate=replace(found.evaluate, every=1))
        if may_end_early(found) or "every" in self.base.get("evaluate", {}):
            return found
        return replace(found, evaluate=replace(found.evaluate, every=found.method.models))

    def find_inference_keys(self, scenario: Scenario) -> tuple[str, ...]:
        """Keys of `predict` that the training of a trial does not depend on: it answers all their values.

        A key that decides the course of the training (through a target, a budget or an early end) is not among them.

        Args:
            scenario: the trial's.
        """
        if scenario.callbacks:
            return ()
        metrics = [objective.metric for objective in self.objectives if objective.needs_history]
        used = {key for metric in [*metrics, *list_end_metrics(scenario)] for key in find_inference_keys(metric)}
        return tuple(key for key in INFERENCE if key not in used)


def list_end_metrics(scenario: Scenario) -> list[str]:
    """The scores that may end a run before its last round.

    Example:
        >>> list_end_metrics(read_scenario({"stop": {"metric": "nll"}}))
        ['nll']
    """
    return [rule.metric for rule in (scenario.stop, scenario.evaluate.stop_at) if rule is not None]


def may_end_early(scenario: Scenario) -> bool:
    """Whether a score or a callback may end a run before its last round."""
    return bool(list_end_metrics(scenario) or scenario.callbacks)
