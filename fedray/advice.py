"""Warns of settings whose effect on a run the user may not expect. No warning stops a run.

A rule is a function that takes a scenario and its study (the objects of the run). It yields pairs of a finding and its
remedy.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedray.assembly.clients import participants_per_tier
from fedray.core.errors import FedrayWarning, warn_user
from fedray.core.scores import cut_split
from fedray.core.types import EVALUATED_CLIENTS, EVALUATED_ROWS
from fedray.data.partition import BY_VALUE
from fedray.data.shards import StoredShards
from fedray.models.network_checks import MIXES, find_mixing
from fedray.scenario.names import is_own, method_spec_of
from fedray.scenario.schema import Scenario
from fedray.simulation.rounds import WITHHELD, list_choosing_keys
from fedray.simulation.study import Study, choose_study_engine
from fedray.training.choice import SLOWER

if TYPE_CHECKING:  # checks of a scenario need no session
    from fedray.runtime.session import Snapshot, Watch

MOST_COUNTS = 10**7  # clients x classes (80 MB); above this limit samples are not counted per client
MOST_ROUNDS = 1000  # no rule plans the jobs of more rounds
Advice = Iterator[tuple[str, str]]  # a finding and its remedy; the remedy may be empty
Rule = Callable[[Scenario, Study], Advice]

# ---------------------------------------------------------------------------------------------------------------------
# Test samples.


def find_untested_clients(scenario: Scenario, study: Study) -> Advice:
    """Warns if clients should be scored on their own test samples, but no client has test samples."""
    known = range(min(study.clients.number, EVALUATED_CLIENTS))
    asked = study.evaluation.gamma is not None or study.method.one_model_per_client
    if not (asked or study.method.phase.is_personal or study.method.phase.weighs):
        return
    own = (study.shards.client_test(world, client) for world in range(study.worlds) for client in known)
    if all(rows is not None and not len(rows) for rows in own):
        score = "personal_accuracy" if study.classes else "personal_rmse"
        yield (
            f"no test row is of a client that trains, so that known clients are not scored and there is no {score}",
            f"read hold_out_{score}"
            if study.hold_out
            else "give test rows of these clients, too"
            if scenario.data.test_clients is None
            else "set data.hold_out = 0.1, say, and withheld rows score them",
        )


def find_test_choices(_scenario: Scenario, study: Study) -> Advice:
    """Warns if scores on test samples decide which round is the last or the best.

    If samples are withheld from training (`data.hold_out`), the scores on these samples decide instead. The warning
    then only says so.
    """
    for key, name in list_choosing_keys(study.evaluation).items():
        if cut_split(name)[0]:  # not of test samples
            continue
        if study.hold_out:
            told = f"as {WITHHELD}{name} (on the test rows only if those lack this score)"
            yield f"{key} = {name} is read on the withheld rows (data.hold_out), {told}", ""
        else:
            yield (
                f"{key} = {name} is read on the test rows, so that the score of the round that it chooses is too good",
                "set data.hold_out = 0.1, say, and withheld rows choose",
            )


def find_unaltered_test_rows(_scenario: Scenario, study: Study) -> Advice:
    """Warns if the partition alters the training samples of groups of clients, but not the test samples."""
    if study.tests_other_rows:
        yield (
            "data.partition changes the rows of groups of clients, but not the test rows by which known clients are "
            "scored",
            "set data.partition.copies = true, or read their held-out scores (data.hold_out)",
        )


def find_copied_rows(scenario: Scenario, _study: Study) -> Advice:
    """Warns if samples are withheld from training, but other groups of clients train on copies of them."""
    data = scenario.data
    aside = [key for key, given in (("hold_out", data.hold_out), ("test_clients", data.test_clients)) if given]
    if aside and data.partition.options.get("copies"):
        yield (
            f"data.partition.copies = true, so that rows of data.{aside[0]} also train, as copies in other groups, and "
            "their scores may be too good",
            f"leave out data.{aside[0]} and read the scores of the test rows",
        )


def find_unseen_classes(_scenario: Scenario, study: Study) -> Advice:
    """Warns if test samples have classes that no client has.

    The message names only the first seed and fold with such classes. Generated data are not checked.
    """
    data, number = study.shards.data, study.clients.number
    if data.population is not None or not study.classes:
        return
    for world in range(study.worlds):
        if number > EVALUATED_CLIENTS or number * study.classes > MOST_COUNTS:
            counts = np.bincount(data.train.y, minlength=study.classes)
        else:
            counts = study.shards.label_counts(world).sum(axis=0)
        fold = data.folds[study.shards.data_folds[world]] if data.folds else None
        tested = study.shards.test(world)[1].numpy() if fold is None else data.train.y[fold[1]]
        unseen = np.flatnonzero((np.bincount(tested, minlength=len(counts)) > 0) & (counts == 0))
        if counts.sum() and len(unseen):
            names = ", ".join(data.class_names[c] for c in unseen[:5].tolist()) + (", ..." if len(unseen) > 5 else "")
            lost = int(np.isin(tested, unseen).sum())
            yield (
                f"data {data.name}: no client has a training row of {len(unseen)} classes ({names}), which have "
                f"{lost:,} of {len(tested):,} test rows: accuracy can hardly exceed {1 - lost / len(tested):.4g}",
                "deal such rows to clients (data.partition, data.hold_out), or leave them out of the test rows",
            )
            return


def find_small_clients(scenario: Scenario, study: Study) -> Advice:
    """Warns if `data.partition.min_rows` leaves out clients. The message says how many clients and samples."""
    keys, shards = scenario.data.partition, study.shards
    least, whole = keys.options.get("min_rows"), keys.name in BY_VALUE and keys.object is None
    if least is None or not whole or not isinstance(shards, StoredShards):
        return
    values = shards.data.columns[keys.options["column"]] if keys.name == "column" else shards.data.train.group
    size = np.unique(np.asarray(values), return_counts=True)[1]
    if (left := size[size < least]).size:
        yield (
            f"data.partition.min_rows = {least} leaves out {len(left):,} of {len(size):,} clients, with "
            f"{left.sum():,} of {size.sum():,} training rows",
            "",
        )


def find_partition_input(scenario: Scenario, study: Study) -> Advice:
    """Warns if the column that names each sample's client is also an input.

    A model could recognize the client by this input. If `data.features` is set, this is not checked.
    """
    keys = scenario.data
    if keys.partition.name not in ("column", "domain") or keys.options.get("features") is not None:
        return
    column = keys.partition.options.get("column", "domain")
    if study.shards.data.table.get(column, ()) != ():
        yield (
            f"data.partition.column = {column} says whose a row is and is an input too",
            "name it in data.exclude, or in data.features with the other inputs if the models may know it",
        )


# ---------------------------------------------------------------------------------------------------------------------
# Networks, tiers and models.


def find_network_problems(_scenario: Scenario, study: Study) -> Advice:
    """Warns of a network that trains slowly.

    Also warns of a network whose prediction for a sample depends on the rest of the batch.
    """
    for one in study.trained:
        if find_mixing(one.net, one.example, training=False) == MIXES:
            yield (
                f"model.name = {one.net.name}: its answer to a row depends on the rows beside it, in evaluation too: "
                f"its scores are those of pieces of at most {EVALUATED_ROWS} rows in the order of the test set",
                "use running statistics, or layer normalization",
            )
        engine = choose_study_engine(one)
        if SLOWER in engine.why:
            yield f"model.name = {one.net.name}: {engine.name}: {engine.why}", ""


def find_left_tiers(scenario: Scenario, study: Study) -> Advice:
    """Warns if no client of a tier ever takes part.

    A tier is a group of clients. If rounds have few participants, a small tier may be left out of every round. A tier
    that has jobs in round 0 of a user's own method is not named, because the method chooses the clients by itself.
    """
    keys = scenario.participation
    if keys.mode != "sync" or keys.selection.name == "round_robin" or method_spec_of(scenario.method.name).walks:
        return
    places = participants_per_tier(scenario, study.clients)
    tiers = zip(study.clients.tiers, places, strict=True)
    left = [i for i, (tier, number) in enumerate(tiers) if tier.number and not number]
    own = scenario.method.object or is_own("method", scenario.method.name)
    there = study.clients.tier_of(study.method.phase.schedule(0, None).client) if left and own else ()
    if names := [study.clients.tiers[i].name for i in left if i not in there]:
        yield (
            f"no client of tier {', '.join(names)} ever takes part: rounds of {sum(places)} deal their places to the "
            "tiers by size (largest remainder)",
            "raise participation.per_round, or make the tiers more equal",
        )


def find_untrained_models(scenario: Scenario, study: Study) -> Advice:
    """Warns if no client will train some of the models.

    Schedules that depend on the training, and a user's own schedules and methods, are not checked.
    """
    method, phase = study.method, study.method.phase
    own = scenario.method.object or scenario.schedule.object or is_own("method", scenario.method.name)
    if own or is_own("schedule", scenario.schedule.kind) or study.parts or study.asynchronous is not None:
        return
    reads_state = scenario.schedule.kind == "adaptive" or phase.remember is not None or phase.choose is not None
    few = 0 < study.rounds <= MOST_ROUNDS
    if phase.work is not None or method.prepare is not None or reads_state or not few:
        return
    trained = np.zeros((study.worlds, phase.models), dtype=bool)
    for t in range(study.rounds):
        plan = phase.schedule(t, None)
        plan = plan.take(study.shards.sizes(plan.world, plan.client) > 0)
        trained[plan.world, plan.model] = True
        if trained.all():
            return
    yield (
        f"nobody trains {(~trained).sum(axis=1).max()} of {phase.models} models in {study.rounds} rounds, and they "
        "stay as they were drawn",
        "raise rounds, participation.per_round or models_per_round of clients.tiers, or lower method.models",
    )


def find_few_uploads(scenario: Scenario, study: Study) -> Advice:
    """Warns if a model gets fewer uploads in round 0 than a robust server needs to leave out bad ones.

    Training without rounds is not checked.
    """
    keys, phase = scenario.server, study.method.phase
    needed = {"median": 3, "trimmed_mean": 2 * keys.trim + 1, "krum": 2 * keys.byzantine + 3}
    least = needed.get(keys.robust.removeprefix("multi_"))
    if least is None or phase.work is not None or study.parts or study.asynchronous is not None:
        return
    plan = phase.schedule(0, None)
    few = int(np.unique(plan.world * phase.models + plan.model, return_counts=True)[1].min(initial=least))
    if few < least:
        yield (
            f"server.robust = {keys.robust} leaves out bad uploads of {least} or more; a model has {few} in round 0",
            "raise participation.per_round, or lower method.models, server.trim or server.byzantine",
        )


ONE_SIDED = ("f1", "precision", "recall", "jaccard", "average_precision")  # scorers about one of two classes
PLAIN_CLASSES = ({"0", "1"}, {"False", "True"}, {"no", "yes"})  # the second class is what one would call positive


def find_unnamed_positive(scenario: Scenario, study: Study) -> Advice:
    """Warns if scores are about one of two classes, and nobody said about which."""
    names, keys = study.shards.data.class_names, scenario.evaluate
    scores = [name for name in keys.metrics or () if name in ONE_SIDED]
    if scores and study.classes == 2 and keys.positive is None and {*names} not in PLAIN_CLASSES:
        yield f"the positive class of {', '.join(scores)} is {names[1]}", f"evaluate.positive: {names[0]} changes this"


# ---------------------------------------------------------------------------------------------------------------------
# The rules, in the order of their warnings.

RULES: tuple[Rule, ...] = (
    find_untested_clients,
    find_test_choices,
    find_unaltered_test_rows,
    find_copied_rows,
    find_network_problems,
    find_left_tiers,
    find_partition_input,
    find_small_clients,
    find_unseen_classes,
    find_untrained_models,
    find_few_uploads,
    find_unnamed_positive,
)


def warn_of_study(scenario: Scenario, study: Study, rules: Sequence[Rule] = RULES) -> None:
    """Applies the rules to a scenario and its study (the objects of the run), and warns of each finding."""
    for rule in rules:
        for text, remedy in rule(scenario, study):
            warn_user(f"{text}: {remedy}" if remedy else text)


# ---------------------------------------------------------------------------------------------------------------------
# Warnings of failed clients, of models that nobody trained, and of scores without a mean.


def warn_of_failures(watch: "Watch") -> "Watch":
    """Returns a function that passes snapshots of a run to `watch`, and warns once if a snapshot has failed jobs.

    Example:
        >>> seen = []
        >>> watch = warn_of_failures(seen.append)
        >>> watch({"round": 3, "failed": 0})
        >>> seen
        [{'round': 3, 'failed': 0}]
    """
    warned = False

    def look(snapshot: "Snapshot") -> None:
        nonlocal warned
        if snapshot["failed"] and not warned:
            warned = True
            warn_user(
                f"by round {snapshot['round']} {snapshot['failed']} jobs failed and were left out (on_client_error: "
                "skip): see status and error in clients.parquet",
                FedrayWarning,
            )
        watch(snapshot)

    return look


def warn_of_losses(summary: Mapping[str, Any]) -> None:
    """Warns of models that no client trained, and of scores whose mean in the last evaluation is not finite.

    `summary` is the content of `summary.json`.

    Example:
        >>> warn_of_losses({"metrics": {"accuracy": {"mean": 0.9, "sd": None, "n": 1}}})
    """
    if lost := summary.get("untrained_models"):
        warn_user(
            f"models that took no upload in the run, and stay as they were drawn: {lost}: their clients were all lost, "
            "away or without rows (status in clients.parquet says which): raise rounds or participation.deadline, or "
            "lower participation.dropout",
            FedrayWarning,
        )
    if drawn := summary.get("drawn_models"):
        warn_user(
            f"models that answer as they were drawn, because no client was asked to train them, or sent them: {drawn}: "
            "raise rounds or participation.per_round, lower method.models if clients choose others, read "
            "personal_accuracy if all layers stay with the clients, or "
            "give these models the weight 0 in the Answer of the method (of method.networks: answers: false)",
            FedrayWarning,
        )
    means = {name: found["mean"] for name, found in summary["metrics"].items()}
    if no_mean := [name for name, mean in means.items() if mean is None or not math.isfinite(mean)]:
        warn_user(
            "no mean in summary.json, because a replicate or fold ended with nan or an infinite value: "
            f"{', '.join(no_mean)}: see rounds.parquet",
            FedrayWarning,
        )
