"""Advice about settings that do less, or more, than their author may think: before a run and after it.

Nothing here stops a run, and nothing imports it but what prints it. A rule reads the facts of a study and yields what
it has to say, with what to do about it: each is one line.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from fedray.assembly.clients import invited_per_tier, participants_per_tier
from fedray.assembly.pieces import count_distinct_samples
from fedray.core import rng
from fedray.core.errors import FedrayWarning, warn_user
from fedray.core.method import Local, Phase
from fedray.core.spec import MethodSpec
from fedray.core.types import EVALUATED_CLIENTS, EVALUATED_ROWS, IntArray, Net
from fedray.data.shards import Shards
from fedray.data.stacking import FeatureShards, ProxyShards
from fedray.features.windows import Windows, steps_in_windows
from fedray.models.trial import MIXES, find_mixing
from fedray.runtime.failures import LONE_ROW, is_lone_row
from fedray.scenario.methods import method_spec_of
from fedray.scenario.names import is_own
from fedray.scenario.schema import Scenario
from fedray.simulation.rounds import WITHHELD, list_choosing_keys
from fedray.simulation.study import Study, choose_study_engine
from fedray.training.block import count_steps
from fedray.training.choice import SLOWER

if TYPE_CHECKING:  # a check of a scenario opens no run directory
    from fedray.runtime.session import Snapshot, Watch

MOST_LOOKED = 1 << 20  # clients that are looked at; of a larger population the first ones
MOST_COUNTS = 10**7  # of clients and classes, 80 MB; beyond it, all rows count as somebody's
MOST_ROUNDS = 1000  # that are planned ahead
Advice = Iterator[tuple[str, str]]  # a text, and the remedy; empty: there is none


class Facts:
    """What rules ask of a study, each computed once, and only where a rule asks.

    Attributes:
        scenario: what was asked for.
        study: what will train.
    """

    def __init__(self, scenario: Scenario, study: Study) -> None:
        self.scenario, self.study = scenario, study

    @property
    def keys(self) -> Mapping[str, Any]:
        """The section of the method."""
        keys: Mapping[str, Any] = self.study.scenario["method"]
        return keys

    @property
    def spec(self) -> MethodSpec:
        """What is known of the method."""
        return method_spec_of(self.study.method.name)

    @cached_property
    def client(self) -> IntArray:
        """Ids of the clients that are looked at, `[N]`."""
        return np.arange(min(self.study.clients.number, MOST_LOOKED))

    def sizes(self, shards: Shards | None = None) -> Iterator[IntArray]:
        """Training rows of each client, `[N]`, world by world.

        Args:
            shards: whose rows; None: those of the study.
        """
        for world in range(self.study.worlds):
            yield (shards or self.study.shards).sizes(np.full_like(self.client, world), self.client)

    @cached_property
    def steps(self) -> IntArray:
        """The fewest steps of each client in any world in which it trains, `[N]`; 0 where it never does."""
        least = np.full_like(self.client, np.iinfo(np.int64).max)
        for size in self.sizes():
            steps = count_steps(size, self.study.method.phase.local)
            least = np.minimum(least, np.where(steps > 0, steps, least))
        return np.where(least == np.iinfo(np.int64).max, 0, least)

    def label_counts(self, world: int) -> IntArray:
        """Training rows of each class that clients of a world have, `[C]`; of very many clients, those of the data."""
        number, study = self.study.clients.number, self.study
        if number > EVALUATED_CLIENTS or number * study.classes > MOST_COUNTS:
            return np.bincount(study.shards.data.train.y, minlength=study.classes)
        counts: IntArray = study.shards.label_counts(world).sum(axis=0)
        return counts

    def tested_labels(self, world: int) -> IntArray:
        """Classes of the test rows of a world, `[n]`."""
        data = self.study.shards.data
        if data.folds:
            return data.train.y[data.folds[int(self.study.folds[world])][1]]
        labels: IntArray = self.study.shards.test(world)[1].numpy()
        return labels


# ---------------------------------------------------------------------------------------------------------------------
# Rows for testing.


def find_strange_test_rows(facts: Facts) -> Advice:
    """Known clients are to be scored by test rows of their own, and no test row is of one of them."""
    study, known = facts.study, range(min(facts.study.clients.number, EVALUATED_CLIENTS))
    asked = study.evaluation.gamma is not None or study.method.one_model_per_client
    if not (asked or study.method.phase.is_personal or study.method.phase.weighs):
        return
    own = (study.shards.client_test(world, client) for world in range(study.worlds) for client in known)
    if all(rows is not None and not len(rows) for rows in own):
        score = "personal_accuracy" if study.classes else "personal_rmse"
        yield (
            f"no test row is of a client that trains, so that known clients are not scored and there is no {score}",
            "give test rows of these clients, too",
        )


def find_test_choices(facts: Facts) -> Advice:
    """A round is to be chosen by the test rows, or withheld rows choose in their place."""
    for key, name in list_choosing_keys(facts.study.evaluation).items():
        if name.startswith(WITHHELD):
            continue
        if facts.study.hold_out:
            yield f"{key} = {name} is read on the withheld rows (data.hold_out), as {WITHHELD}{name}", ""
        else:
            yield (
                f"{key} = {name} is read on the test rows, so that the score of the round that it chooses is too good",
                "set data.hold_out = 0.1, say, and withheld rows choose",
            )


def find_other_test_rows(facts: Facts) -> Advice:
    """The partition changes rows of groups of clients, and the test rows are as they were."""
    if facts.study.tests_other_rows:
        yield (
            "data.partition changes the rows of groups of clients, but not the test rows by which known clients are "
            "scored",
            "set data.partition.copies = true, or read their held-out scores (data.hold_out)",
        )


def find_unseen_classes(facts: Facts) -> Advice:
    """Test rows have classes that no client has; of several worlds the first one that has such classes is described.

    Generated clients are not looked at.
    """
    study, data = facts.study, facts.study.shards.data
    if data.population is not None or not study.classes:
        return
    for world in range(study.worlds):
        counts, tested = facts.label_counts(world), facts.tested_labels(world)
        if not counts.sum():
            return
        unseen = find_unseen(counts, tested)
        if len(unseen):
            names = ", ".join(data.class_names[c] for c in unseen[:5].tolist()) + (", ..." if len(unseen) > 5 else "")
            one, number = len(unseen) == 1, int(np.isin(tested, unseen).sum())
            them = "it" if one else "them"
            which = f"class {names}, which has" if one else f"classes {names} ({len(unseen)} classes), which have"
            remedy = f"give training rows of {them}, or leave {them} out of the test rows"
            if np.isin(data.train.y, unseen).any():
                remedy = "deal such rows to clients (data.partition, data.hold_out)"
            yield (
                f"data {data.name}: no client has a training row of {which} {number:,} of {len(tested):,} test rows: "
                f"no model can learn {them}, and accuracy can hardly exceed {1 - number / len(tested):.4g}",
                remedy,
            )
            return


def find_unseen(counts: IntArray, tested: IntArray) -> IntArray:
    """Classes that test rows have and training rows have not.

    Args:
        counts: training rows of each class, `[C]`.
        tested: classes of the test rows, `[n]`.

    Example:
        >>> counts, tested = np.array([[3, 1, 0], [2, 0, 0]]), np.array([0, 0, 1, 2])
        >>> find_unseen(counts.sum(axis=0), tested).tolist()
        [2]
    """
    return np.flatnonzero((np.bincount(tested, minlength=len(counts)) > 0) & (counts == 0))


def find_partition_input(facts: Facts) -> Advice:
    """A column says whose a row is and is an input too, and `data.features` does not name it.

    Each client then has one value of that input, and a model can read from it whose row it answers.
    """
    keys, data = facts.scenario.data, facts.study.shards.data
    if keys.partition.name not in ("column", "domain") or keys.options.get("features") is not None:
        return
    column = keys.partition.options.get("column", "domain")
    if data.table.get(column, ()) != ():
        yield (
            f"data.partition.column = {column} says whose a row is and is an input too",
            f"name the inputs in data.features without {column}, or with it if the models may know it",
        )


# ---------------------------------------------------------------------------------------------------------------------
# Networks: one that makes a method another one, answers by its neighbours, is slow, or cannot train on one row.


def find_mixing_networks(facts: Facts) -> Advice:
    """A network's answer to a row depends on the rows beside it; or an engine is slow, and why."""
    for one in facts.study.trained:
        if find_mixing(one.net, one.example, training=False) == MIXES:
            yield (
                f"model.name = {one.net.name}: its answer to a row depends on the rows beside it, in evaluation too: "
                f"its scores are those of pieces of {EVALUATED_ROWS} rows in the order of the test set",
                "use running statistics, or layer normalization",
            )
        engine = choose_study_engine(one)
        if SLOWER in engine.why:
            yield f"model.name = {one.net.name}: {engine.name}: {engine.why}", ""


def find_shared_network(facts: Facts) -> Advice:
    """LG-FedAvg shares every layer."""
    if facts.study.method.name == "lg_fedavg" and not facts.study.method.phase.stays:
        yield "method.shared_layers covers every layer of the network, which makes lg_fedavg FedAvg", "lower it"


def find_lone_rows(facts: Facts) -> Advice:
    """A network with batch normalization would train on a batch of one row.

    A client with `n mod B = 1` training rows has one. Torch refuses it where one value of each channel is left, so not
    in front of a convolution's maps of several pixels: the network is tried on one row. The parts of a stack are not
    looked at.
    """
    study, phase, found = facts.study, facts.study.method.phase, set[int]()
    if study.parts or not any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in study.net.module.modules()):
        return
    for size in facts.sizes():
        for local in phase.locals:
            found |= set(facts.client[has_lone_row(size, local)].tolist())
    if not found or not refuses_one_row(study.net, study.example):
        return
    has = f"client {min(found)} has" if len(found) == 1 else f"{len(found):,} clients (the first is {min(found)}) have"
    then = "they are left out when they train" if study.skip else "the run ends when one of them trains"
    yield f"model.name = {study.net.name}: {has} a batch of one row, and {then}", LONE_ROW


def has_lone_row(size: IntArray, local: Local) -> NDArray[np.bool_]:
    """Whether a batch of each client has a single row, `[N]`.

    Args:
        size: training rows of each client, `[N]`.
        local: how the clients train.

    Example:
        >>> has_lone_row(np.array([1, 17, 16, 33]), Local(batch_size=16)).tolist()
        [True, True, False, True]
        >>> has_lone_row(np.array([1, 17]), Local(batch_size=16, epochs=None, steps=1)).tolist()  # it never comes to it
        [True, False]
    """
    width = np.maximum(size, 1) if local.batch_size is None else np.full_like(size, local.batch_size)
    batches = -(-size // width)  # of an epoch
    return np.asarray((size - (batches - 1) * width == 1) & (count_steps(size, local) >= batches) & (size > 0))


def refuses_one_row(net: Net, example: Tensor) -> bool:
    """Tries whether batch normalization refuses a batch of one row; False where something else is wrong.

    Args:
        net: the network; a copy of its module is tried.
        example: one network input.
    """
    try:
        module, tensors = copy.deepcopy(net.module).train(), net.layout.views(net.init(0))
        with torch.no_grad(), rng.torch_scope(0):
            functional_call(module, tensors, (example[None],))
    except Exception as error:  # what else is wrong with the network is found where it is tried to train
        return is_lone_row(error)
    return False


# ---------------------------------------------------------------------------------------------------------------------
# Fewer rounds, steps or rows than a method is made of.


def find_burn_in(facts: Facts) -> Advice:
    """All rounds are passed over before clients sample."""
    windows, rounds = facts.study.method.phase.find(Windows), facts.study.rounds
    if windows is not None and 0 < rounds <= windows.burn_in:
        yield (
            f"method.burn_in = {windows.burn_in}, but there are {rounds} rounds: no client samples, which makes "
            f"{facts.study.method.name} FedAvg",
            "lower it",
        )


def find_few_steps(facts: Facts) -> Advice:
    """Clients make fewer steps than their upload waits for: pFedBayes's turns, FedPA's samples."""
    windows, keys = facts.study.method.phase.find(Windows), facts.keys
    if facts.spec.mean_field == "prior":
        key, wanted, steps = "method.personal_steps", keys["personal_steps"], facts.steps
        then = "and a client that does sends the global Gaussian back as it came"
    elif windows is not None:
        key, wanted = "method.samples" if "samples" in keys else "Windows.number", windows.number
        steps = steps_in_windows(facts.steps, windows)
        then = f"behind the share of {windows.mixing:g} that is passed over; such a client takes a sample a step"
    else:
        return
    if who := tell_short(steps, wanted):
        text = f"{key} = {wanted}, but {who} fewer steps in a round {then}"
        yield text, "lower it, or raise local.steps or local.epochs"


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


def find_short_fit(facts: Facts) -> Advice:
    """The fit of β-Predictive Bayes cannot come from 0.5 to 0 or 1: a step of Adam is about as long as its rate."""
    study, keys, way = facts.study, facts.keys, 0.5
    if keys.get("beta") != "fit":
        return
    rows = min(len(study.shards.server(world)[1]) for world in range(study.worlds))
    steps, rate = keys["beta_epochs"] * -(-rows // keys["beta_batch"]), keys["beta_lr"]
    if steps * rate < way:
        yield (
            f"method.beta = fit makes {steps} steps of {rate:g} on the {rows:,} rows of the server, and comes no "
            f"farther than {steps * rate:.2g} from {way}",
            "raise method.beta_lr or method.beta_epochs",
        )


def find_equal_samples(facts: Facts) -> Advice:
    """Clients make so few steps that two of their samples are the same."""
    if not method_spec_of(facts.study.name).sampled or not facts.study.parts:
        return
    base, samples, few, each = facts.study.parts[0].study, facts.keys["samples"], set[int](), set[int]()
    for size in facts.sizes(base.shards):
        steps = count_steps(size, base.method.phase.local)
        for number in np.unique(steps[steps > 0]).tolist():
            with_so_many = set(facts.client[steps == number].tolist())
            each |= with_so_many
            few |= with_so_many if count_distinct_samples(facts.keys, number) < samples else set()
    if few:
        who = "every client makes" if few == each else f"{len(few):,} of {len(each):,} clients make"
        whose = "its" if few == each else "their"
        yield (
            f"method.samples = {samples}, but {who} so few steps that some of {whose} {samples} samples are equal",
            "raise local.epochs, or lower method.samples or method.cycles",
        )


def find_no_proxy_rows(facts: Facts) -> Advice:
    """In a world no client keeps back a row, so that FENS's aggregator is never trained and the mean answers."""
    features = facts.study.parts[-1].study.shards if facts.study.parts else None
    if not isinstance(features, FeatureShards) or not isinstance(features.whole, ProxyShards):
        return
    rows = zip(facts.sizes(features), facts.sizes(), strict=True)
    most = max((int(size.max()) for kept, size in rows if not kept.any()), default=0)
    if most:
        more = f"raise method.proxy to {math.ceil(100 / most) / 100} or more, or " if most > 1 else ""
        yield (
            f"method.proxy = {facts.keys['proxy']}, but of at most {most} rows a client keeps back none: "
            "nobody trains the aggregator, and the mean of the networks answers",
            f"{more}lower clients.number",
        )


# ---------------------------------------------------------------------------------------------------------------------
# Clients that never train, and models that nobody trains.


def find_left_tiers(facts: Facts) -> Advice:
    """No client of a tier ever takes part, because rounds have fewer places than it would need."""
    if facts.scenario.participation.mode != "sync" or method_spec_of(facts.scenario.method.name).walks:
        return
    places = participants_per_tier(facts.scenario, facts.study.clients)
    tiers = zip(facts.study.clients.tiers, places, strict=True)
    if left := [tier.name for tier, number in tiers if tier.number and not number]:
        yield (
            f"no client of tier {', '.join(left)} ever takes part: rounds of {sum(places)} deal their places to the "
            "tiers by size (largest remainder)",
            "raise participation.per_round, or make the tiers more equal",
        )


def find_untrained_models(facts: Facts) -> Advice:
    """A run is sure to leave models untrained; nothing is said where only the run itself can tell.

    Schedules that read no state are asked for the jobs of the rounds. Of others, and of training without rounds, the
    jobs are counted. Schedules and methods of the user's own are not asked.
    """
    scenario, study = facts.scenario, facts.study
    method, phase = study.method, study.method.phase
    own = scenario.method.object or scenario.schedule.object or is_own("method", scenario.method.name)
    if own or is_own("schedule", scenario.schedule.kind) or phase.work is not None:
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
        yield f"nobody trains {left} of {models} models in {rounds}, and they stay as they were drawn", remedies


def count_untrained(study: Study, rounds: int) -> IntArray:
    """Models of each world that the schedule gives to nobody with training rows, `[worlds]`.

    They are none where more rounds would have to be planned than `MOST_ROUNDS`.

    Args:
        study: its schedule reads no state.
        rounds: of the study.

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
# The rules, in the order in which they are said.

Rule = Callable[[Facts], Advice]
RULES: tuple[Rule, ...] = (
    find_strange_test_rows,
    find_test_choices,
    find_burn_in,
    find_other_test_rows,
    find_lone_rows,
    find_mixing_networks,
    find_shared_network,
    find_short_fit,
    find_few_steps,
    find_equal_samples,
    find_no_proxy_rows,
    find_left_tiers,
    find_partition_input,
    find_unseen_classes,
    find_untrained_models,
)


def warn_of_study(scenario: Scenario, study: Study, rules: Sequence[Rule] = RULES) -> None:
    """Warns of everything that a study does less, or more, than its author may think.

    Args:
        scenario: what was asked for.
        study: what will train.
        rules: what is looked at.
    """
    facts = Facts(scenario, study)
    for rule in rules:
        for text, remedy in rule(facts):
            warn_user(f"{text}: {remedy}" if remedy else text)


# ---------------------------------------------------------------------------------------------------------------------
# What a run has left out: failed clients, models that nobody trained, and scores without a mean.


def warn_of_failures(watch: Watch) -> Watch:
    """A watcher that also warns, once, when a client was left out.

    Example:
        >>> seen = []
        >>> watch = warn_of_failures(seen.append)
        >>> watch({"round": 3, "failed": 0})
        >>> seen
        [{'round': 3, 'failed': 0}]
    """
    warned = False

    def look(snapshot: Snapshot) -> None:
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
    """Warns of the models that nobody trained, and of the scores without a mean.

    Example:
        >>> warn_of_losses({"metrics": {}})
    """
    _warn_of_lost_models(summary)
    _warn_of_lost_scores(summary)


def _warn_of_lost_models(summary: Mapping[str, Any]) -> None:
    """Warns where models took no upload in the whole run, or answer as they were drawn because nobody was asked."""
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
            "raise rounds or participation.per_round, read personal_accuracy if all layers stay with the clients, or "
            "give these models the weight 0 in the Answer of the method (of method.networks: answers: false)",
            FedrayWarning,
        )


def _warn_of_lost_scores(summary: Mapping[str, Any]) -> None:
    """Warns where a score of the last evaluation is no finite number in a replicate or fold, and so has no mean."""
    if lost := find_lost_scores(summary["metrics"]):
        scores, them = ("score", "its column") if len(lost) == 1 else ("scores", "their columns")
        warn_user(
            f"no mean in summary.json, because a replicate or fold ended with nan or an infinite value: {scores} "
            f"{', '.join(lost)}: see {them} in rounds.parquet",
            FedrayWarning,
        )


def find_lost_scores(metrics: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The scores of a summary whose mean is no finite number.

    Example:
        >>> lost = {"mean": None, "sd": None, "n": 2}
        >>> find_lost_scores({"accuracy": {"mean": 0.9, "sd": None, "n": 1}, "mine": lost})
        ['mine']
    """
    return [name for name, found in metrics.items() if found["mean"] is None or not math.isfinite(found["mean"])]
