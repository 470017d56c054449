"""Reads a sweep file, which has a base scenario, the space of values to search, and the objectives.

Example:
    >>> from fedray.tuning.sweep import read_sweep
    >>> keys = {"method": {"models": 3}, "stop": {"metric": "hold_out_nll"}}
    >>> sweep = read_sweep({"scenario": keys, "space": {"local.lr": [0.1, 0.3]}, "objectives": ["accuracy"]})
    >>> sweep.scenario({"local.lr": 0.3}).evaluate.every  # every round, which the stop looks at
    1
    >>> read_sweep({"scenario": {"stop": {"metric": "nll"}}, "space": {"local.lr": [0.1]}, "objectives": "nll"})
    Traceback (most recent call last):
    fedray.core.errors.BadInput: stop.metric = nll is read on the test set, which a sweep leaves alone: write ...
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from fedray.core import options as opt
from fedray.core.errors import BadInput, quote_value, warn_user
from fedray.core.scores import cut_split
from fedray.scenario import nested
from fedray.scenario.loader import import_first, read_scenario, refuse_scenario, spell_imports, spell_sections, to_plain
from fedray.scenario.nested import Tree, expand, flatten, merge_keys, to_plain_values
from fedray.scenario.rows import changes_nothing, find_idle_keys, find_rule_metrics, is_dump
from fedray.scenario.schema import Scenario, make_section
from fedray.scenario.shipped import answers_clients_apart, find_scenario_file
from fedray.tuning import space
from fedray.tuning.space import HELD_OUT_PREFIX, Parameter, SweepObjective, Values, anything

# ---------------------------------------------------------------------------------------------------------------------
# The objects that a sweep file becomes, and the scenario of a trial.


@dataclass(frozen=True)
class SamplerKeys:
    """The section `sampler` of a sweep file.

    Attributes:
        name: "tpe", "random", "grid" or "nsga2".
        seed: The seed of the sampler's random numbers.
        startup: The number of random trials before TPE learns from values.
        population: The size of the population of NSGA-II.
    """

    name: str = opt.key("tpe", opt.one_of("tpe", "random", "grid", "nsga2"))
    seed: int = opt.key(0, opt.whole(0, 2**31), opt.Needs(".name", ("tpe", "random", "nsga2")))
    startup: int = opt.key(10, opt.whole(1, 10**6), opt.Needs(".name", ("tpe",)))
    population: int = opt.key(20, opt.whole(2, 10**4), opt.Needs(".name", ("nsga2",)))


@dataclass(frozen=True)
class PrunerKeys:
    """The section `pruner` of a sweep file.

    Attributes:
        name: "none", "median", "hyperband" or "asha".
        startup: The number of finished trials before the median pruner stops a trial.
        warmup: The number of decisions that the pruner skips in every trial. `Sweep.count_rounds_between_decisions`
            returns how many rounds lie between two decisions.
        reduction: With hyperband and asha, about one in `reduction` of the compared trials continues.
    """

    name: str = opt.key("none", opt.one_of("none", "median", "hyperband", "asha"))
    startup: int = opt.key(5, opt.whole(1, 10**6), opt.Needs(".name", ("median",)))
    warmup: int = opt.key(1, opt.whole(0, 10**6), opt.Needs(".name", ("median", "hyperband", "asha")))
    reduction: int = opt.key(3, opt.whole(2, 100), opt.Needs(".name", ("hyperband", "asha")))


@dataclass(frozen=True)
class TrialKeys:
    """The section `trial` of a sweep file.

    Attributes:
        actors: The number of client actors that each trial uses on a cluster. With 0 each trial trains in its own
            process.
    """

    actors: int = opt.key(0, opt.whole(1, 1000))


@dataclass(frozen=True)
class SweepKeys:
    """A sweep file.

    Attributes:
        name: The name of the study.
        scenario: The base scenario: a path, the name of a scenario that comes with fedray, or keys.
        overrides: Keys that replace those of the base scenario.
        space: The parameters to search, each a scenario key with its values.
        objectives: One objective or a list of objectives.
        sampler: The section `sampler`, which says how values are proposed.
        pruner: The section `pruner`, which says which trials are stopped early.
        trials: The total number of trials. None means the whole grid with the sampler `grid`, and 20 otherwise.
        jobs: The number of workers that train at the same time.
        trial: The section `trial`.
    """

    name: str | None = opt.key(None, opt.maybe(opt.label))
    scenario: Any = opt.key(None, anything)
    overrides: dict[str, Any] = field(default_factory=dict)
    space: Any = opt.key(None, anything)
    objectives: Any = opt.key(None, anything)
    sampler: SamplerKeys = opt.section(SamplerKeys, example={"name": "tpe"}, what="sampler")
    pruner: PrunerKeys = opt.section(PrunerKeys, example={"name": "median"}, what="pruner")
    trials: int | None = opt.key(None, opt.maybe(opt.whole(1, 10**6)))
    jobs: int = opt.key(1, opt.whole(1, 10**4))
    trial: TrialKeys = opt.section(TrialKeys, example={"actors": 4}, what="trial")


@dataclass(frozen=True)
class Sweep:
    """A checked sweep file.

    Attributes:
        name: The name of the study in its storage.
        base: The keys of the base scenario, with the sweep's overrides. Each trial adds its own defaults.
        space: The parameters to search.
        objectives: The numbers to optimize.
        keys: The keys of the sweep file.
        source: The keys of the sweep file and of its base scenario. The directory of the sweep stores them.
    """

    name: str
    base: Tree
    space: tuple[Parameter, ...]
    objectives: tuple[SweepObjective, ...]
    keys: SweepKeys
    source: Tree

    def scenario(self, chosen: Values) -> Scenario:
        """Returns the scenario of a trial.

        If an objective has a budget or a target, models are evaluated in every round, even if the base scenario sets
        `evaluate.every` or `evaluate.every_seconds`. A score from many rounds before the end of the budget would be too
        old.

        Otherwise, the trial keeps the `evaluate.every` of the base scenario. If the base scenario does not set this
        key, and a rule or a callback may end the training early, models are evaluated in every round. In all other
        trials models are evaluated every K rounds, where K is `method.models`.
        """
        found = read_scenario(self.base, space.to_overrides(self.space, chosen), explicit=False)
        if any(one.metric.startswith(f"{HELD_OUT_PREFIX}personal") for one in self.objectives):
            found = replace(found, evaluate=replace(found.evaluate, personal=True))
        if any(one.limit is not None for one in self.objectives):  # the value needs every round
            return replace(found, evaluate=replace(found.evaluate, every=1, every_seconds=None))
        if list_end_metrics(found) or found.callbacks or "every" in self.base.get("evaluate", {}):
            return found
        return replace(found, evaluate=replace(found.evaluate, every=found.method.models))

    def count_rounds_between_decisions(self) -> int:
        """Returns the number of rounds between two decisions of the pruner, which is the same in all trials.

        The result is the largest K (`method.models`) of all trials, because a method with K models may need K rounds
        until each client has trained each model. It is larger if models are evaluated less often (`evaluate.every`).
        """
        each = map(self.scenario, _list_corners(self))
        return max(max(found.method.models, found.evaluate.every) for found in each)

    def list_shared_keys(self, scenario: Scenario) -> tuple[str, ...]:
        """Returns the keys of `predict` that do not influence the training.

        Trials that differ only in these keys share one training. A key influences the training if a target, a budget or
        an early end depends on a score that the key changes.
        """
        if scenario.callbacks:
            return ()
        metrics = [objective.metric for objective in self.objectives if objective.limit is not None]
        used = {key for metric in [*metrics, *list_end_metrics(scenario)] for key in space.list_keys_of_score(metric)}
        return tuple(key for key in space.INFERENCE if key not in used)


def list_end_metrics(scenario: Scenario) -> list[str]:
    """Lists the scores that may end a run before its last round.

    Example:
        >>> list_end_metrics(read_scenario({"stop": {"metric": "nll"}}))
        ['nll']
    """
    return [rule.metric for rule in (scenario.stop, scenario.evaluate.stop_at) if rule is not None]


# ---------------------------------------------------------------------------------------------------------------------
# Checks of the keys of a sweep against each other, and of the scenarios of its trials.

NOISY = ("crps", "coverage", "width", "sharpness")  # and nll: scores that the noise of the observations changes
MOST_TRIED = 300  # combinations of ends in which an acting key is searched for


def check_sweep(sweep: Sweep) -> None:
    """Checks scenarios with the extreme values of the space. Raises `BadInput` for the first contradiction of keys."""
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
        if kind == "tier" and not base.evaluate.by_tier:
            raise BadInput(f"{needs} needs scores of tiers: write overrides: {{evaluate.by_tier: true}}")
        if base.evaluate.ood is None and (kind == "ood" or (kind == "tier" and "_ood_" in objective.metric)):
            raise BadInput(f"{needs} needs unknown inputs: write overrides: {{evaluate.ood: noise}}, or a data set")
    if sweep.keys.pruner.name != "none":
        if len(sweep.objectives) > 1:
            raise BadInput(f"pruner.name = {sweep.keys.pruner.name} needs one objective: use none, or drop objectives")
        if sweep.objectives[0].kind != "final":
            name = sweep.objectives[0].name
            raise BadInput(f"pruner.name = {sweep.keys.pruner.name} cannot compare {name} on the way: use none")
    for parameter in sweep.space:
        if sweep.keys.sampler.name == "grid":
            parameter.grid()
        elif parameter.points is not None:
            raise BadInput(
                f"space.{parameter.key}.points = {parameter.points} is for sampler: grid: leave it out, or give step"
            )
    trials = [base]
    for parameter, chosen in space.enumerate_corners(sweep.space):
        try:
            trials.append(sweep.scenario(chosen))
            _check_trial(trials[-1])
            for key in ("hold_out", "test_clients"):  # set by a choice for the whole section `data`
                own, common = getattr(trials[-1].data, key), getattr(base.data, key)
                if own != common:
                    raise BadInput(
                        f"data.{key} = {quote_value(own)}, but {quote_value(common)} in the scenario: trials would be "
                        "compared on different data: leave it out of the space"
                    )
        except BadInput as wrong:
            raise BadInput(f"space.{parameter.key}: {wrong}") from None
    _refuse_unread(sweep, trials)
    _refuse_idle(sweep)


def _check_trial(scenario: Scenario) -> None:
    """Refuses keys that a trial cannot have: a grid of learning rates, and rules that use the test set."""
    if scenario.local.lr_grid:
        raise BadInput("local.lr_grid is for `fedray run`: leave it out, and give space.local.lr the candidates")
    for key, metric in find_rule_metrics(scenario).items():
        if not cut_split(metric)[0]:  # of test samples
            raise BadInput(
                f"{key} = {metric} is read on the test set, which a sweep leaves alone: write {HELD_OUT_PREFIX}{metric}"
            )


def _refuse_unread(sweep: Sweep, trials: list[Scenario]) -> None:
    """Refuses a space in which no key can change any objective. Warns of single keys that cannot."""
    names = ", ".join(objective.name for objective in sweep.objectives)
    keys, unread = _list_unread_keys(sweep, trials, sweep.objectives)
    idle = [
        f"space.{key} cannot act on {names}: leave it out, or add {space.INFERENCE[key.split('.')[1]]}"
        for key in unread
    ]
    if len(idle) == len(keys):
        raise BadInput(idle[0])
    for text in idle:
        warn_user(f"{text}; its value in the best trial means nothing")


def list_idle_parameters(sweep: Sweep) -> tuple[frozenset[str], ...]:
    """Returns, for each objective, the keys of the parameters that cannot change its value."""
    trials = [sweep.scenario({}), *(sweep.scenario(chosen) for _, chosen in space.enumerate_corners(sweep.space))]
    unread = [set(_list_unread_keys(sweep, trials, [objective])[1]) for objective in sweep.objectives]
    return tuple(frozenset(p.key for p in sweep.space if one.issuperset(_list_searched_keys(p))) for one in unread)


def _list_unread_keys(
    sweep: Sweep, trials: list[Scenario], objectives: Sequence[SweepObjective]
) -> tuple[list[str], list[str]]:
    """Lists the searched keys, and those of them that change no objective and end no training.

    `trials` are the scenarios with the extreme values of the space.
    """
    keys = list(dict.fromkeys(key for parameter in sweep.space for key in _list_searched_keys(parameter)))
    if any(scenario.callbacks for scenario in trials):  # callbacks see all scores, and may end a training
        return keys, []
    ends = [metric for scenario in trials for metric in list_end_metrics(scenario)]
    return keys, space.list_idle_keys(keys, objectives, ends)


def warn_of_missing_noise(sweep: Sweep) -> None:
    """Warns if an objective of a regression includes the observation noise only in trials with a single model.

    The predicted variance is the spread of the models. A single model has no spread, and its variance is the variance
    of the residuals (`report/compare.py`).
    """
    scores = {one.name: one.metric.removeprefix(HELD_OUT_PREFIX).removeprefix("personal_") for one in sweep.objectives}
    noisy = [name for name, score in scores.items() if score == "nll" or score.startswith(NOISY)]
    corners = [(one, chosen) for one, chosen in space.enumerate_corners(sweep.space) if "method" in one.column]
    ends = [sweep.scenario(chosen) for _, chosen in corners]
    silent = [end for end in ends if end.predict.noise == "none" and end.model.objective != "gaussian_nll"]
    if noisy and len({end.method.models > 1 for end in silent}) == 2:
        warn_user(
            f"objectives: the noise of the observations is part of {', '.join(noisy)} only in trials with one model: "
            "choose nll_residual, or write overrides: {predict.noise: residual}"
        )


def _list_searched_keys(parameter: Parameter) -> list[str]:
    """Lists the keys that a parameter sets. There are several for a whole section, or for keys that change together."""
    choices = (space.to_overrides([parameter], {parameter.key: end}) for end in parameter.ends())
    return list(dict.fromkeys(key for choice in choices for key in flatten(expand(choice))))


def _refuse_idle(sweep: Sweep) -> None:
    """Refuses keys of the space that have no effect in any trial, and warns of such keys in the base scenario."""
    base = sweep.scenario({})
    names = [objective.metric.removeprefix(HELD_OUT_PREFIX) for objective in sweep.objectives]
    for name in ("accuracy", "rmse"):
        if name in names and f"personal_{name}" not in names and answers_clients_apart(to_plain(base)):
            warn_user(
                f"objectives: {name} is of a common answer, but clients of {base.method.name} answer by themselves: "
                f"write personal_{name}"
            )
    idle: dict[str, str] = {}  # key -> why
    acting: set[str] = set()
    corners = _list_corners(sweep)
    ends = itertools.islice(itertools.product(*(parameter.ends() for parameter in sweep.space)), MOST_TRIED)
    together = (space.keep_active(sweep.space, values) for values in ends)
    for tried, chosen in enumerate(itertools.chain(corners, together)):
        if tried >= len(corners) and not idle:
            break
        given = merge_keys(sweep.base, expand(space.to_overrides(sweep.space, chosen)))
        try:
            found = {one.key: one.why for one in find_idle_keys(given, sweep.scenario(chosen))}
        except BadInput:  # a combination that no scenario allows
            continue
        acting |= {key for key, value in flatten(given).items() if key not in found and not changes_nothing(key, value)}
        idle = {key: why for key, why in {**found, **idle}.items() if key not in acting}
    for parameter in sweep.space:
        for key in parameter.keys:
            if key in idle:
                raise BadInput(f"space.{key} cannot act, because {idle[key]}: leave it out")
    if idle and not is_dump(sweep.base, to_plain(sweep.scenario({}))):
        warn_user("; ".join(f"{key} cannot act in any trial, because {why}" for key, why in idle.items()))


def _list_corners(sweep: Sweep) -> list[Values]:
    """Lists the values of trials with which the space is checked.

    The first trial sets no parameter. Each other trial sets one parameter to an extreme value. It also sets the
    parameters that the `when` of this parameter names.
    """
    return [{}, *(chosen for _, chosen in space.enumerate_corners(sweep.space))]


def drop_idle_overrides(base: Tree, overrides: Values) -> dict[str, Any]:
    """Returns the overrides of a trial that have an effect. `fedray.run` would refuse the other overrides.

    If no scenario allows the overrides, returns all of them.

    Example:
        >>> drop_idle_overrides({}, {"method.models": 1, "predict.gamma": 0.1})
        {'method.models': 1}
    """
    try:
        found = find_idle_keys(expand(overrides), read_scenario(base, overrides, explicit=False))
    except BadInput:
        found = []
    return {key: value for key, value in overrides.items() if key not in {one.key for one in found}}


# ---------------------------------------------------------------------------------------------------------------------
# Reads sweep files in strict YAML. Every mistake raises `BadInput` with one line that has key, value and remedy.

HOLD_OUT = 0.2
TRIALS = 20


def read_sweep(source: str | Path | Mapping[str, Any], *, imports: bool = True) -> Sweep:
    """Reads a sweep from a file or a dict.

    Args:
        source: The path of a sweep file, the name of a sweep that comes with fedray, or the keys of a sweep.
        imports: Whether the modules that the scenario names (`import`) are imported, which runs their code.

    Raises:
        BadInput: A key is unknown, a value is impossible, or the space holds values that no scenario allows.

    Example:
        >>> sweep = read_sweep({"scenario": {"rounds": 3}, "space": {"local.lr": [0.1, 0.3]}, "objectives": "accuracy"})
        >>> sweep.scenario({"local.lr": 0.3}).local.lr
        0.3
    """
    where = find_scenario_file(str(source), "sweep") if isinstance(source, str | Path) else None
    tree = nested.load_yaml(where) if where is not None else source
    if not isinstance(tree, Mapping):
        raise BadInput(f"the sweep = {quote_value(tree)} is not a mapping: write keys as 'trials: 20'")
    refuse_scenario(str(where or "this"), tree)
    plain = {key: value for key, value in to_plain_values(tree).items() if value is not None}
    for key in ("sampler", "pruner"):
        if isinstance(plain.get(key), str):
            plain[key] = {"name": plain[key]}
    given = make_section(opt.Section(SweepKeys, what="a sweep"), plain)
    base = _base(given, where.parent if where is not None else Path(), imports)
    objectives = read_objectives(given.objectives)
    name = given.name or (where.stem if where is not None else "sweep")
    source_tree = {**to_plain_values(tree), "name": name, "scenario": base}  # `name` becomes the study's name
    source_tree.pop("overrides", None)
    sweep = Sweep(name, base, space.read_space(given.space), objectives, given, source_tree)
    for path, chosen in (("sampler", given.sampler), ("pruner", given.pruner)):
        needs = {one.name: one.metadata["key"].needs for one in fields(chosen)}
        read = [key for key, need in needs.items() if need is not None and chosen.name in need.values]
        for key in plain.get(path, {}):
            if key not in ("name", *read):
                has = f"which reads {' and '.join(read)}" if read else "which reads no other key"
                raise BadInput(f"{path}.{key} cannot act, because {path}.name is {chosen.name}, {has}: leave it out")
    check_sweep(sweep)
    return sweep


def _base(given: SweepKeys, folder: Path, imports: bool) -> Tree:
    """Reads the keys of the base scenario without defaults, because defaults depend on the values of a trial."""
    wanted = given.scenario
    if isinstance(wanted, str):
        path = find_scenario_file(wanted, folder=folder)
        wanted, folder = nested.load_yaml(path), path.absolute().parent
    if not isinstance(wanted, Mapping):
        raise BadInput(
            f"scenario = {quote_value(wanted)} is not a scenario: give a file's path, relative to the sweep, "
            "or its keys"
        )
    keys = spell_imports(spell_sections(to_plain_values(wanted)), folder)
    changes = expand(spell_sections(given.overrides))
    if imports:
        import_first(keys)
    tree = merge_keys(merge_keys({"data": {"hold_out": HOLD_OUT}}, keys), changes)
    return {key: value for key, value in tree.items() if key not in ("table", "published")}


def read_objectives(given: Any) -> tuple[SweepObjective, ...]:
    """Reads the objectives of a sweep file, which has one objective or a list of objectives.

    Raises:
        BadInput: There is no objective, an objective is wrong, or an objective is named twice.
    """
    entries = [given] if isinstance(given, str | Mapping) else given
    if not isinstance(entries, list) or not entries:
        raise BadInput("objectives is missing or empty: give a list such as [accuracy]")
    found = tuple(space.read_objective(f"objectives[{i}]", entry) for i, entry in enumerate(entries))
    names = [objective.name for objective in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadInput(f"objectives holds {twice} twice: remove one of the two")
    return found
