"""What the keys of a sweep say about each other, and about the scenarios of its trials.

Example:
    >>> from fedray.tuning.sweep_file import read_sweep
    >>> read_sweep({"scenario": {"stop": {"metric": "nll"}}, "space": {"local.lr": [0.1]}, "objectives": "nll"})
    Traceback (most recent call last):
    fedray.core.errors.BadInput: stop.metric = nll is read on the test set, which a sweep leaves alone: write ...
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from fedray.core.errors import BadInput, warn_user
from fedray.scenario.explicit import is_dump
from fedray.scenario.loader import explain_kept_keys, to_plain
from fedray.scenario.nested import expand, flatten, merge_keys
from fedray.scenario.reading import answers_clients_apart
from fedray.scenario.relevance import find_idle_keys, says_nothing
from fedray.scenario.schema import Scenario
from fedray.tuning.objectives import HELD_OUT_PREFIX, explain_idle_keys, list_idle_keys
from fedray.tuning.parameter import Parameter, Values
from fedray.tuning.space import enumerate_corners, is_active, to_overrides
from fedray.tuning.sweep import Sweep, list_end_metrics

MOST_TRIED = 300  # combinations of ends in which a key is looked for that acts


def check_sweep(sweep: Sweep) -> None:
    """Raises `BadInput` for the first contradiction between keys, with every end of the space in the base scenario."""
    base = sweep.scenario({})
    if base.data.hold_out == 0:
        raise BadInput("data.hold_out = 0, but a sweep reads held-out data: drop it (0.2 is taken), or give a share")
    _check_trial(base)
    has_sets = base.predict.conformal is not None or any(
        key.startswith("predict.conformal") for p in sweep.space for key in p.keys
    )
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
    for parameter in sweep.space:
        if sweep.sampler.name == "grid":
            parameter.grid()
        elif parameter.points is not None:
            raise BadInput(
                f"space.{parameter.key}.points = {parameter.points} is for sampler: grid: leave it out, or give step"
            )
    trials = [base]
    for parameter, chosen in enumerate_corners(sweep.space):
        try:
            trials.append(sweep.scenario(chosen))
            _check_trial(trials[-1])
            if trials[-1].data.hold_out != base.data.hold_out:  # inside a choice of the whole section
                raise BadInput(
                    f"data.hold_out = {trials[-1].data.hold_out:g}, but {base.data.hold_out:g} in the scenario: trials "
                    "would be compared on different data: leave it out of the space"
                )
        except BadInput as wrong:
            raise BadInput(f"space.{parameter.key}: {wrong}") from None
    _refuse_unread(sweep, trials)
    _refuse_idle(sweep)


def _warn_of_common_answer(sweep: Sweep, base: Scenario) -> None:
    """Warns of a score of a common answer, where known clients answer by themselves, and of what methods keep."""
    _warn_of_kept_keys(sweep)
    names = [objective.metric.removeprefix(HELD_OUT_PREFIX) for objective in sweep.objectives]
    for name in ("accuracy", "rmse"):
        if name in names and f"personal_{name}" not in names and answers_clients_apart(to_plain(base)):
            warn_user(
                f"objectives: {name} is of a common answer, but clients of {base.method.name} answer by themselves: "
                f"write personal_{name}"
            )


def _warn_of_kept_keys(sweep: Sweep) -> None:
    """Warns of what the scenario keeps for methods that the space chooses in place of its own."""
    whole, lines = is_dump(sweep.base, to_plain(sweep.scenario({}))), list[str]()
    for parameter, chosen in enumerate_corners(sweep.space):
        if any(key.startswith("method") for key in parameter.keys):
            try:
                changes = expand(to_overrides(sweep.space, chosen))
                lines.append(explain_kept_keys(sweep.base, changes, sweep.scenario(chosen), whole=whole))
            except BadInput:  # a combination that no scenario allows
                continue
    if said := "; ".join(dict.fromkeys(line for line in lines if line)):
        warn_user(said)


def _check_trial(scenario: Scenario) -> None:
    """What a trial cannot have: learning rates that it chooses itself, and rules that read the test set."""
    if scenario.local.lr_grid:
        raise BadInput("local.lr_grid is for `fedray run`: leave it out, and give space.local.lr the candidates")
    stop, evaluate = scenario.stop, scenario.evaluate
    rules = {
        "evaluate.stop_at.metric": evaluate.stop_at and evaluate.stop_at.metric,
        "evaluate.target.metric": evaluate.target and evaluate.target.metric,
        "stop.metric": stop and stop.metric,
        "checkpoint.best": scenario.checkpoint.best,
    }
    for key, metric in rules.items():
        if metric and not metric.startswith(HELD_OUT_PREFIX):
            raise BadInput(
                f"{key} = {metric} is read on the test set, which a sweep leaves alone: write {HELD_OUT_PREFIX}{metric}"
            )


def _refuse_unread(sweep: Sweep, trials: list[Scenario]) -> None:
    """Refuses a space of which no key acts on an objective; where some do, it warns of the others."""
    if any(scenario.callbacks for scenario in trials):  # they see all scores, and may end a training
        return
    ends = [metric for scenario in trials for metric in list_end_metrics(scenario)]
    keys = list(dict.fromkeys(key for parameter in sweep.space for key in _list_searched_keys(parameter)))
    idle = explain_idle_keys(keys, sweep.objectives, ends)
    if len(idle) == len(keys):
        raise BadInput(idle[0])
    for text in idle:
        warn_user(f"{text}; its value in the best trial means nothing")


def list_idle_parameters(sweep: Sweep) -> tuple[frozenset[str], ...]:
    """For each objective the parameters that cannot act on it, by their keys: no picture may say that they matter.

    Args:
        sweep: the sweep.
    """
    base = sweep.scenario({})
    if base.callbacks:
        return tuple(frozenset() for _ in sweep.objectives)
    found = []
    for objective in sweep.objectives:
        keys = [key for parameter in sweep.space for key in _list_searched_keys(parameter)]
        idle = set(list_idle_keys(keys, [objective], list_end_metrics(base)))
        found.append(frozenset(p.key for p in sweep.space if idle.issuperset(_list_searched_keys(p))))
    return tuple(found)


def warn_of_random_search(sweep: Sweep, trials: int) -> None:
    """Warns where a sampler that learns proposes every trial at random, because it begins with as many.

    Args:
        sweep: the sweep.
        trials: how many there will be.
    """
    keys = {"nsga2": ("population", sweep.sampler.population)}
    if "sampler" in sweep.source:  # tpe was asked for
        keys["tpe"] = ("startup", sweep.sampler.startup)
    key, first = keys.get(sweep.sampler.name, ("", 0))
    if trials <= first:
        warn_user(
            f"sampler.name = {sweep.sampler.name} with {trials} trials is random search, because its first {first} are "
            f"random: raise trials, or lower sampler.{key}"
        )
    if sweep.pruner.name == "median" and trials <= sweep.pruner.startup:
        warn_user(
            f"pruner.name = median with {trials} trials prunes none, because the first {sweep.pruner.startup} go to "
            "their end: raise trials, or lower pruner.startup"
        )


def _list_searched_keys(parameter: Parameter) -> list[str]:
    """The keys that a parameter sets: several, where it searches a whole section, or has several."""
    if len(parameter.keys) > 1:
        choices = [to_overrides([parameter], {parameter.key: label}) for label in parameter.labels]
        return list(dict.fromkeys(key for choice in choices for key in flatten(expand(choice))))
    sections = [flatten({parameter.column: choice}) for choice in parameter.choices if isinstance(choice, Mapping)]
    plain = len(sections) < max(1, len(parameter.choices))
    return [*([parameter.column] if plain else []), *(key for section in sections for key in section)]


def _refuse_idle(sweep: Sweep) -> None:
    """Refuses a key of the space that cannot act in any trial, and warns of keys of the scenario that cannot."""
    _warn_of_common_answer(sweep, sweep.scenario({}))
    idle: dict[str, str] = {}  # key -> why
    acting: set[str] = set()
    alone = 1 + sum(len(parameter.ends()) for parameter in sweep.space)
    for tried, chosen in enumerate(_try_values(sweep)):
        if tried >= alone and not idle:
            break
        given = merge_keys(sweep.base, expand(to_overrides(sweep.space, chosen)))
        try:
            found = {one.key: one.why for one in find_idle_keys(given, sweep.scenario(chosen))}
        except BadInput:  # a combination that no scenario allows
            continue
        acting |= {key for key, value in flatten(given).items() if key not in found and not says_nothing(key, value)}
        idle = {key: why for key, why in {**found, **idle}.items() if key not in acting}
    for parameter in sweep.space:
        for key in parameter.keys:
            if key in idle:
                raise BadInput(f"space.{key} cannot act, because {idle[key]}: leave it out")
    if idle and not is_dump(sweep.base, to_plain(sweep.scenario({}))):
        warn_user("; ".join(f"{key} cannot act in any trial, because {why}" for key, why in idle.items()))


def _try_values(sweep: Sweep) -> Iterator[Values]:
    """Nothing, the ends of each parameter, and ends of all of them together."""
    yield {}
    yield from (chosen for _, chosen in enumerate_corners(sweep.space))
    together = itertools.product(*(parameter.ends() for parameter in sweep.space))
    for values in itertools.islice(together, MOST_TRIED):
        chosen: dict[str, object] = {}
        for parameter, value in zip(sweep.space, values, strict=True):
            if is_active(parameter, chosen):
                chosen[parameter.key] = value
        yield chosen
