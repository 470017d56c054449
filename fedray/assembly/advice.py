"""Warnings about a study before it trains; none of them stops the run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedray.assembly.boosting import fits_learners
from fedray.assembly.clients import invited_per_tier, warn_of_left_tiers
from fedray.assembly.fens import warn_of_no_proxy_rows
from fedray.assembly.methods import warn_of_limits
from fedray.assembly.posterior_samples import warn_of_equal_samples
from fedray.assembly.registry import UserObjects
from fedray.core.errors import BadInput, warn_user
from fedray.core.method import Phase
from fedray.core.types import EVALUATED_CLIENTS, IntArray
from fedray.data.types import Dataset
from fedray.scenario.methods import method_spec_of
from fedray.scenario.names import is_own
from fedray.scenario.schema import Scenario
from fedray.simulation.rounds import WITHHELD, list_choosing_keys
from fedray.simulation.study import Study
from fedray.training.block import count_steps
from fedray.training.windows import steps_in_windows

# ---------------------------------------------------------------------------------------------------------------------
# Fewer steps than a method is made of: pFedBayes's turns, FedPA's samples, the fit of β-Predictive Bayes.

_SENDS_PRIOR = "and a client that does sends the global Gaussian back as it came"
_TAKES_FEWER = "such a client takes a sample a step"
_WAY = 0.5  # where a fit of beta begins, and how far 0 and 1 are from there
_MOST = 1 << 20  # clients that are looked at; of a larger population the first ones


def warn_of_few_steps(study: Study) -> None:
    """Warns where clients make fewer steps than their upload waits for, and servers than a fit needs.

    Args:
        study: what will run.
    """
    if study.scenario["method"].get("beta") == "fit":
        _tell_fit(study, study.scenario["method"])
    windows = study.method.phase.local.windows
    if method_spec_of(study.method.name).mean_field == "prior":
        _tell("method.personal_steps", study.scenario["method"]["personal_steps"], _steps(study), _SENDS_PRIOR)
    elif windows is not None:
        key = "method.samples" if "samples" in study.scenario["method"] else "Windows.number"
        text = f"behind the share of {windows.mixing:g} that is passed over; {_TAKES_FEWER}"
        _tell(key, windows.number, steps_in_windows(_steps(study), windows), text)


def _tell_fit(study: Study, keys: Mapping[str, Any]) -> None:
    """Warns where beta cannot come from 0.5 to 0 or 1: a step of Adam is about as long as its rate."""
    rows = min(len(study.shards.server(world)[1]) for world in range(study.worlds))
    steps = keys["beta_epochs"] * -(-rows // keys["beta_batch"])
    if steps * keys["beta_lr"] < _WAY:
        rate = keys["beta_lr"]
        warn_user(
            f"method.beta = fit makes {steps} steps of {rate:g} on the {rows:,} rows of the server, and comes no "
            f"farther than {steps * rate:.2g} from {_WAY}: raise method.beta_lr or method.beta_epochs"
        )


def _tell(key: str, wanted: int, steps: IntArray, then: str) -> None:
    """Warns of clients with fewer steps than wanted, and of what they do `then`."""
    if who := tell_short(steps, wanted):
        remedy = "lower it, or raise local.steps or local.epochs"
        warn_user(f"{key} = {wanted}, but {who} fewer steps in a round {then}: {remedy}")


def tell_short(steps: IntArray, wanted: int) -> str:
    """Which clients make fewer steps than wanted, with the verb; empty where none does.

    Args:
        steps: of each client, `[N]`; who makes none does not train, and is not meant.
        wanted: how many are needed.

    Example:
        Four clients with 1, 3, 5 and 0 steps, of whom four are asked.

        >>> tell_short(np.array([1, 3, 5, 0]), 4)
        '2 clients (the first is 0) make'
    """
    trains = steps > 0
    (few,) = np.nonzero(trains & (steps < wanted))
    if not len(few):
        return ""
    if len(few) == trains.sum() > 1:
        return "every client makes"
    return f"client {few[0]} makes" if len(few) == 1 else f"{len(few):,} clients (the first is {few[0]}) make"


def _steps(study: Study) -> IntArray:
    """The fewest steps of each client in any world in which it trains, `[N]`; 0 where it never does."""
    client = np.arange(min(study.clients.number, _MOST))
    least = np.full_like(client, np.iinfo(np.int64).max)
    for world in range(study.worlds):
        steps = count_steps(study.shards.sizes(np.full_like(client, world), client), study.method.phase.local)
        least = np.minimum(least, np.where(steps > 0, steps, least))
    return np.where(least == np.iinfo(np.int64).max, 0, least)


# ---------------------------------------------------------------------------------------------------------------------
# Warns of classes that the test rows have and no client's training rows.

MOST_COUNTS = 10**7  # of clients and classes, 80 MB; beyond it, all rows count as somebody's


def warn_of_unseen_classes(study: Study) -> None:
    """Warns of classes of test rows that no client has.

    Of several worlds the first one that has such classes is described.

    Args:
        study: What will run. Generated clients are not looked at.
    """
    data = study.shards.data
    if data.population is not None or not study.classes:
        return
    for world in range(study.worlds):
        counts, tested = _count_rows(study, world), _read_tested(study, world)
        if not counts.sum():
            return
        unseen = find_unseen(counts, tested)
        if len(unseen):
            warn_user(_describe_unseen(data, unseen, tested))
            return


def find_unseen(counts: IntArray, tested: IntArray) -> IntArray:
    """Classes that test rows have and training rows have not.

    Args:
        counts: Training rows of each class, `[C]`.
        tested: Classes of the test rows, `[n]`.

    Example:
        >>> counts, tested = np.array([[3, 1, 0], [2, 0, 0]]), np.array([0, 0, 1, 2])
        >>> find_unseen(counts.sum(axis=0), tested).tolist()
        [2]
    """
    return np.flatnonzero((np.bincount(tested, minlength=len(counts)) > 0) & (counts == 0))


def _describe_unseen(data: Dataset, unseen: IntArray, tested: IntArray) -> str:
    """What it means that nobody can learn some classes."""
    names = ", ".join(data.class_names[c] for c in unseen[:5].tolist()) + (", ..." if len(unseen) > 5 else "")
    them = "it" if len(unseen) == 1 else "them"
    which = f"class {names}, which has" if len(unseen) == 1 else f"classes {names} ({len(unseen)} classes), which have"
    number = int(np.isin(tested, unseen).sum())
    if np.isin(data.train.y, unseen).any():
        remedy = "deal such rows to clients (data.partition, data.hold_out)"
    else:
        remedy = f"give training rows of {them}, or leave {them} out of the test rows"
    return (
        f"data {data.name}: no client has a training row of {which} {number:,} of {len(tested):,} test rows: no model "
        f"can learn {them}, and accuracy can hardly exceed {1 - number / len(tested):.4g}: {remedy}"
    )


def _count_rows(study: Study, world: int) -> IntArray:
    """Training rows of each class that clients of a world have, `[C]`; of very many clients, those of the data set."""
    number = study.clients.number
    if number > EVALUATED_CLIENTS or number * study.classes > MOST_COUNTS:
        return np.bincount(study.shards.data.train.y, minlength=study.classes)
    counts: IntArray = study.shards.label_counts(world).sum(axis=0)
    return counts


def _read_tested(study: Study, world: int) -> IntArray:
    """Classes of the test rows of a world, `[n]`."""
    data = study.shards.data
    if data.folds:
        return data.train.y[data.folds[int(study.folds[world])][1]]
    labels: IntArray = study.shards.test(world)[1].numpy()
    return labels


# ---------------------------------------------------------------------------------------------------------------------
# Warns of models that nobody will train, because a run has too few jobs.

MOST_ROUNDS = 1000  # that are planned ahead


def warn_of_untrained_models(scenario: Scenario, study: Study) -> None:
    """Warns where a run is sure to leave models untrained; nothing is said where only the run itself can tell.

    Schedules that read no state are asked for the jobs of the rounds. Of others, and of training without rounds, the
    jobs are counted. Schedules and methods of the user's own are not asked.

    Args:
        scenario: The scenario.
        study: The same as plain objects.
    """
    method, phase = study.method, study.method.phase
    own = scenario.method.object or scenario.schedule.object or is_own("method", scenario.method.name)
    if own or is_own("schedule", scenario.schedule.kind) or phase.fitting is not None:
        return
    models, left = phase.models, 0
    if study.parts:
        models, left = _count_in_parts(scenario, study)
    elif method.prepare is None and (_reads_state(scenario, phase) or study.asynchronous is not None):
        left = int(max(0, models - _count_jobs(scenario, study)))
    elif method.prepare is None:
        left = int(count_untrained(study, study.rounds).max())
    if left and scenario.rounds:
        rounds = "1 round" if scenario.rounds == 1 else f"{scenario.rounds} rounds"
        remedies = "raise rounds, participation.per_round or models_per_round of clients.tiers, or lower method.models"
        if method.one_model_per_client:
            remedies = "raise rounds or participation.per_round"
        if study.asynchronous is not None:
            remedies = "raise rounds, or lower method.models"
        warn_user(f"nobody trains {left} of {models} models in {rounds}, and they stay as they were drawn: {remedies}")


def count_untrained(study: Study, rounds: int) -> IntArray:
    """Models of each world that the schedule gives to nobody with training rows, `[worlds]`.

    They are none where more rounds would have to be planned than `MOST_ROUNDS`.

    Args:
        study: Its schedule reads no state.
        rounds: Of the study.

    Example:
        >>> from fedray.assembly.study import build_study
        >>> from fedray.scenario.loader import read_scenario
        >>> keys = {"rounds": 2, "clients": 10, "participation": {"per_round": 1}, "method": {"models": 5}}
        >>> count_untrained(build_study(read_scenario(keys)), rounds=2).tolist()
        [3]
    """
    phase = study.method.phase
    trained = np.zeros((study.worlds, phase.models), dtype=bool)
    for t in range(min(rounds, MOST_ROUNDS)):
        plan = phase.schedule(t, None)
        plan = plan.take(study.shards.sizes(plan.world, plan.client) > 0)
        trained[plan.world, plan.model] = True
        if trained.all():
            break
    left: IntArray = (~trained).sum(axis=1) * (rounds <= MOST_ROUNDS)
    return left


def _count_in_parts(scenario: Scenario, study: Study) -> tuple[int, int]:
    """Models of a stack that clients train together, and how many of them nobody trains, in the worst world."""
    parts = [p for p in study.parts if p.combine is None and p.voter is None and p.trained_before is None]
    models = sum(part.folds * part.models for part in parts)
    distilled = scenario.method.options.get("distil_steps", 0) > 0  # networks learn from those that clients train
    if not parts or distilled or _reads_state(scenario, study.method.phase):
        return models, 0
    each = [count_untrained(p.study, p.ends - p.begins).reshape(study.worlds, p.folds).sum(axis=1) for p in parts]
    return models, int(sum(each).max())


def _reads_state(scenario: Scenario, phase: Phase) -> bool:
    """Whether who trains what depends on losses of earlier rounds."""
    return scenario.schedule.kind == "adaptive" or phase.remember is not None or phase.choose is not None


def _count_jobs(scenario: Scenario, study: Study) -> float:
    """Jobs of a whole run at most, one after another; infinitely many where that depends on virtual time."""
    rule, models = study.asynchronous, study.method.phase.models
    if rule is not None:  # in each step one model takes uploads, or every one that has some
        return math.inf if rule.mode == "semi" else study.rounds
    tiers = zip(study.clients.tiers, invited_per_tier(scenario, study.clients), strict=True)
    return study.rounds * sum(number * (tier.models_per_round or models) for tier, number in tiers)


# ---------------------------------------------------------------------------------------------------------------------
# Warnings about a study before it trains; none of them stops the run.

OF_CLIENTS = ("column", "domain")  # partitions by a column that says whose a row is, or where it comes from


def warn_of_study(scenario: Scenario, study: Study) -> None:
    """Warns of everything that a study does less, or more, than its author may think.

    Args:
        scenario: what was asked for.
        study: what will train.
    """
    warn_of_strange_test_rows(study)
    warn_of_test_choices(study)
    warn_of_limits(study)
    warn_of_few_steps(study)
    warn_of_equal_samples(study)
    warn_of_no_proxy_rows(study)
    warn_of_left_tiers(scenario, study.clients)
    warn_of_partition_input(scenario, study)
    warn_of_unseen_classes(study)
    warn_of_untrained_models(scenario, study)


def warn_of_partition_input(scenario: Scenario, study: Study) -> None:
    """Warns of a column that says whose a row is and is an input too, unless `data.features` names it.

    Each client then has one value of that input, and a model can read from it whose row it answers.
    """
    partition, data = scenario.data.partition, study.shards.data
    if partition.name not in OF_CLIENTS or scenario.data.options.get("features") is not None:
        return
    column = partition.options.get("column", "domain")
    if data.table.get(column, ()) != ():
        warn_user(
            f"data.partition.column = {column} says whose a row is and is an input too: name the inputs in "
            f"data.features without {column}, or with it if the models may know it"
        )


def warn_of_test_choices(study: Study) -> None:
    """Warns where a round is to be chosen by the test rows, and says where withheld rows choose in their place."""
    for key, name in list_choosing_keys(study.evaluation).items():
        if name.startswith(WITHHELD):
            continue
        if study.hold_out:
            warn_user(f"{key} = {name} is read on the withheld rows (data.hold_out), as {WITHHELD}{name}")
        else:
            warn_user(
                f"{key} = {name} is read on the test rows, so that the score of the round that it chooses is too good: "
                "set data.hold_out = 0.1, say, and withheld rows choose"
            )


def warn_of_strange_test_rows(study: Study) -> None:
    """Warns where known clients are to be scored by test rows of their own, and no test row is of one of them."""
    method, known = study.method, range(min(study.clients.number, EVALUATED_CLIENTS))
    asked = study.evaluation.gamma is not None or method.one_model_per_client
    if not (asked or method.phase.is_personal or method.phase.mixture):
        return
    own = (study.shards.client_test(world, client) for world in range(study.worlds) for client in known)
    if all(rows is not None and not len(rows) for rows in own):
        score = "personal_accuracy" if study.classes else "personal_rmse"
        warn_user(
            f"no test row is of a client that trains, so that known clients are not scored and there is no {score}: "
            "give test rows of these clients, too"
        )


# ---------------------------------------------------------------------------------------------------------------------
# Inputs that networks get as they are, and not standardized (`data.standardize: false`).


def leave_inputs(scenario: Scenario, data: Dataset, own: UserObjects) -> Dataset:
    """The data set, whose inputs stay as they are where the scenario says so.

    Args:
        scenario: has the key.
        data: the clients'.
        own: the user's objects, which may have a method in place of the scenario's.

    Raises:
        BadInput: the key cannot act.

    Example:
        >>> from fedray.data.catalogue import load_data
        >>> from fedray.scenario.loader import read_scenario
        >>> raw = read_scenario({"data": {"standardize": False}})
        >>> leave_inputs(raw, load_data("digits"), UserObjects()).standardized
        False
    """
    if scenario.data.standardize:
        return data
    plain = not data.shift.any() and bool((data.scale == 1).all())
    name = scenario.method.name
    reasons = {
        f"{data.name} has tokens": data.kind == "tokens",
        f"float32 does not tell the inputs of {data.name} apart as they are": data.origin is not None,
        f"the inputs of {data.name} are not standardized anyway": plain,
        f"clients of {name} fit trees, to which the scale of an input is all the same": fits_learners(scenario, own),
    }
    for why, is_so in reasons.items():
        if is_so:
            raise BadInput(f"data.standardize = false cannot act, because {why}: leave it out")
    return data._replace(standardized=False)
