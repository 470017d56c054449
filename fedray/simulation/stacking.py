"""Builds the study (the objects of the run) of a stack, and scores its predictions.

A *stack* is an ensemble whose outputs are combined by a further model, the *meta model*, or by a rule. A *base*
consists of networks of one architecture, which are called *sub models*. The bases and the meta model are the *parts* of
the stack. The plan of a round has the jobs of all parts. A *study* is everything that a run needs except a runtime. A
*world* is one combination of a seed and a fold of the data.

Example:
    >>> from fedray.assembly.study import build_study
    >>> from fedray.scenario.loader import read_scenario
    >>> study = build_study(read_scenario({"method": {"name": "stacking"}, "clients": {"number": 3}, "rounds": 2}))
    >>> [(part.folds, part.begins, part.ends) for part in study.parts]  # three sub models, then the meta model
    [(3, 0, 2), (1, 2, 4)]
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedray.components.schedule import last_round, write_losses
from fedray.core import rng
from fedray.core.errors import FedrayError
from fedray.core.method import Answer, Method, PartStep, Phase, Schedule, Server, ServerWork
from fedray.core.types import Clients, FloatArray, IntArray, Plan, State, Stats
from fedray.data.shards import ServerShards, Shards
from fedray.features.stacking import FeatureShards, LeaveOutShards, ProxyShards, Stack, stacked_net
from fedray.metrics import classification
from fedray.simulation.rounds import draw_first_state, job_traffic
from fedray.simulation.study import Part, Study
from fedray.training.block import count_client_steps, samples_seen

# ---------------------------------------------------------------------------------------------------------------------
# Plans and states of the whole stack, and of its parts.


class PartJobs(NamedTuple):
    """The jobs that train one part of a stack (a base or the meta model).

    Attributes:
        number: Index of the part among the parts of the stack.
        part: The part.
        jobs: Indexes of the jobs in the plan of the whole stack, `[j]`.
        plan: The jobs. Their models and worlds are numbered as in the study of the part.
    """

    number: int
    part: Part
    jobs: IntArray
    plan: Plan


def split_plan(parts: Sequence[Part], plan: Plan) -> Iterator[PartJobs]:
    """Yields the jobs of each part of a stack. Parts without jobs in the plan are left out."""
    for number, part in enumerate(parts):
        own = plan.model - part.first
        jobs = np.flatnonzero((own >= 0) & (own < part.folds * part.models))
        if len(jobs):
            fold, model = np.divmod(own[jobs], part.models)
            yield PartJobs(number, part, jobs, Plan(plan.client[jobs], model, plan.world[jobs] * part.folds + fold))


def read_part(state: State, part: Part) -> State:
    """Extracts the state of a part, `[worlds * F * x, d_i]`, from the state of the whole stack.

    F is the number of folds, and x the number of models per fold. A model of part i has d_i values.
    """
    rows, number = state.models, part.folds * part.models * len(state.models)
    both = [rows[:, where].reshape(number, -1) for where in (part.trainable, part.buffers)]
    return State(torch.cat(both, dim=1), state.counters[:, part.counters].reshape(number, -1), {})


def write_part(state: State, part: Part, own: State) -> State:
    """Writes the state of one part into the state of the whole stack, and returns the result.

    Args:
        state: The state of the whole stack, `[worlds, d]`.
        part: The part.
        own: The new state of the part, with a row for each of its models.
    """
    models, counters, worlds = state.models.clone(), state.counters.clone(), len(state.models)
    trainable = part.study.net.layout.trainable
    models[:, part.trainable] = own.models[:, :trainable].reshape(worlds, -1)
    models[:, part.buffers] = own.models[:, trainable:].reshape(worlds, -1)
    counters[:, part.counters] = own.counters.reshape(worlds, -1)
    return State(models, counters, state.extra)


def is_trained(counters: Tensor) -> bool:
    """Returns whether a stack's meta model was trained. Only a trained meta model predicts.

    Args:
        counters: The integer buffers of the stack, `[c]`. The first one counts the rounds that trained the meta model.

    Example:
        >>> is_trained(torch.tensor([0, 7])), is_trained(torch.tensor([3, 7]))
        (False, True)
    """
    return bool(counters[0] > 0)


# ---------------------------------------------------------------------------------------------------------------------
# Training samples, steps and bytes of a stack's jobs.


def job_sizes(parts: Sequence[Part], plan: Plan) -> IntArray:
    """Returns the number of training samples of each job, `[J]`.

    A job trains without the samples of its fold.
    """
    size = np.zeros(len(plan.client), dtype=np.int64)
    for _, part, jobs, own in split_plan(parts, plan):
        size[jobs] = part.study.shards.sizes(own.world, own.client)
    return size


def steps_of_jobs(parts: Sequence[Part], plan: Plan, size: IntArray) -> tuple[IntArray, IntArray, FloatArray]:
    """Returns three arrays `[J]`: each job's steps, the samples in these steps, and a factor for the client's time.

    The factor is 0 for jobs that the server does (training of the meta model). These jobs take clients no time.
    """
    steps, samples, factor = np.zeros_like(size), np.zeros_like(size), np.ones(len(size))
    for _, part, jobs, own in split_plan(parts, plan):
        local, shards = part.study.method.phase.local, part.study.shards
        steps[jobs] = count_client_steps(part.study.clients, own.client, size[jobs], local)
        samples[jobs] = samples_seen(size[jobs], steps[jobs], local)
        at_server = isinstance(shards, FeatureShards) and shards.at_server
        factor[jobs] = 0.0 if at_server else local.count_work(part.models)
    return steps, samples, factor


def work_of_server(parts: Sequence[Part], t: int) -> ServerWork:
    """Returns the number of optimizer steps that the server makes in round t, and the number of samples in these steps.

    The steps of a meta model that the server trains are included.
    """
    total, one = np.zeros(2), np.zeros(1, np.int64)
    for part in (part for part in parts if part.begins <= t < part.ends):
        phase, shards = part.study.method.phase, part.study.shards
        if isinstance(shards, FeatureShards) and shards.at_server:
            size = shards.sizes(one, one)
            steps = count_client_steps(part.study.clients, one, size, phase.local)
            total += steps[0], samples_seen(size, steps, phase.local)[0]
        elif phase.server_work is not None:
            total += phase.server_work(t - part.begins)
    return float(total[0]), float(total[1])


def traffic_of_jobs(parts: Sequence[Part], clients: int, t: int, plan: Plan) -> tuple[IntArray, IntArray]:
    """Returns the bytes that each job sends and receives, `[J]` each.

    A client also receives the sub models whose outputs are the inputs (features) of the meta model.
    """
    up, down = np.zeros_like(plan.client), np.zeros_like(plan.client)
    for _, part, jobs, own in split_plan(parts, plan):
        shards = part.study.shards
        if isinstance(shards, FeatureShards) and shards.at_server:  # the meta model is not sent
            sent = shards.sizes(own.world, own.client) * shards.pooled  # clients send predictions and labels once
            up[jobs] = sent * (4 * shards.width + 8) * (t == part.begins)
            continue
        up[jobs], down[jobs] = job_traffic(part.study, own, t)
        if part.combine is not None:
            down[jobs] = 0  # a client starts from a network of its own
        if part.combine == "label_shares":
            up[jobs] += 8 * part.study.classes  # number of samples of each class
    return up, down + _sub_model_bytes(parts, clients, t, plan)


def _sub_model_bytes(parts: Sequence[Part], clients: int, t: int, plan: Plan) -> IntArray:
    """Returns the bytes of the sub models that each job's client downloads to compute features, `[J]`.

    A client downloads the sub models once, before it first trains the meta model. If the server trains the meta model
    on the clients' features, all clients download the sub models before the meta model's first round.
    """
    nothing, meta = np.zeros(len(plan.client), dtype=np.int64), parts[-1]
    features = meta.study.shards
    pooled = isinstance(features, FeatureShards) and features.pooled
    own = isinstance(features, FeatureShards) and features.at_server and not pooled  # the server has all sub models
    if meta.last_round is None or t < meta.begins or own:
        return nothing
    first_time = meta.last_round(t)[plan.world * clients + plan.client] < 0
    total = 0
    for part in parts[:-1]:
        layout, shards = part.study.net.layout, part.study.shards
        all_folds = isinstance(shards, LeaveOutShards) and (shards.within or part.features != "out_of_fold")
        total += part.models * (4 * layout.d + 8 * len(layout.counters)) * (part.folds if all_folds else 1)
    return np.where(first_time, total * (clients if pooled else 1), nothing)


# ---------------------------------------------------------------------------------------------------------------------
# The study of a stack. A row of the state holds all sub models and the meta model of a world, and each round trains
# some parts. Every part is an ordinary study. The study of a base has one world for each pair of a world of the whole
# stack and a fold, and its shards leave the fold out (`fedray.features.stacking.LeaveOutShards`). So one plan has the
# jobs of a base for all worlds and folds. The processes that run the meta model's jobs compute its inputs (features,
# `fedray.runtime.stacking`). The round loop, the recorder and checkpoints see one row for each world.


def build_stack_study(study: Study, stack: Stack, keep_losses: bool = False) -> Study:
    """Builds the study of a stack, which has a part for each base and for the meta model.

    Args:
        study: The study without parts. Its method has one phase for each base and one for the meta model.
        stack: The bases, the folds and the meta model.
        keep_losses: Whether the state has the loss of each job, `[worlds, N, models]`. The adaptive schedule reads it.
    """
    parts = tuple(_list_parts(study, stack))
    if stack.meta is not None:  # only the meta model needs `last_round`
        last = last_round(_make_schedule(parts), study.worlds, study.clients.number, parts[-1].begins)
        parts = *parts[:-1], parts[-1]._replace(last_round=last)
    number = sum(part.folds * part.models for part in parts)

    def init(models: Tensor) -> dict[str, Tensor]:
        shape = (study.worlds, study.clients.number, number)
        kept = {"job_loss": torch.full(shape, float("nan"))} if keep_losses else {}
        for i, part in enumerate(parts):
            rows = models.new_zeros(study.worlds * part.folds * part.models, part.study.net.layout.d)
            own = part.study.method.phase.server.init(rows)
            kept |= {f"{i}/{name}": value for name, value in own.items()}
        return kept

    base, keeps = study.method.phase, any(part.study.method.phase.server.keeps for part in parts)
    phase = Phase(
        models=1,
        schedule=_make_schedule(parts),
        local=base.local,
        server=Server(init, lambda _uploads: {}, _make_step(parts, stack, study), keeps=keeps),
        compress=base.compress,
        sizes=partial(job_sizes, parts),
        steps=partial(steps_of_jobs, parts),
        server_work=partial(work_of_server, parts),
        traffic=partial(traffic_of_jobs, parts, study.clients.number),
        remember=write_losses if keep_losses else None,
    )
    weights = np.zeros((study.worlds, 1 + number - (stack.meta is not None)))
    weights[:, 0] = 1.0  # outputs of the stack come first, then those of its sub models
    method = Method(
        study.name,
        phase,
        lambda state: Answer(state, 1, weights),
        lambda state, _pooled: _draw_parts(state, parts, at_once=stack.answers_at_once),
    )
    rounds = stack.rounds + (stack.meta_rounds if stack.meta is not None else 0)
    return replace(study, method=method, net=stacked_net(stack), rounds=rounds, parts=parts)


def _make_schedule(parts: Sequence[Part]) -> Schedule:
    """Returns the schedule of a stack. For each round it plans the jobs of the parts that train."""

    def schedule(t: int, state: State | None) -> Plan:
        empty = Plan(*(np.empty(0, dtype=np.int64) for _ in Plan._fields))
        plans = [empty, *(_plan_part(part, t, state) for part in parts if part.begins <= t < part.ends)]
        return Plan(*(np.concatenate(column) for column in zip(*plans, strict=True)))

    return schedule


def _make_step(parts: Sequence[Part], stack: Stack, study: Study) -> Callable[[State, Stats, int], State]:
    """Returns the function of the server's step.

    The server of part i gets the statistics whose names begin with `i/`.
    """
    worlds, join = study.worlds, study.method.join

    def step(state: State, stats: Stats, t: int) -> State:
        before = state
        for i, part in enumerate(parts):
            own = _of_part(stats, i)
            if own:
                first = read_part(state, part)._replace(extra=_of_part(state.extra, i))
                after = part.study.method.phase.server.step(first, own, t - part.begins)
                kept = {f"{i}/{name}": value for name, value in after.extra.items()}
                state = write_part(state, part, after)._replace(extra={**state.extra, **kept})
                if stack.meta is not None and i == len(parts) - 1:
                    state.counters[:, 0] += own["weight"].total.view(worlds, -1).sum(1) > 0
        if join is None:
            return state
        steps = [
            PartStep(read_part(before, part), read_part(state, part), _of_part(stats, i))
            for i, part in enumerate(parts)
        ]
        for part, one, models in zip(parts, steps, join(t, steps), strict=True):
            state = write_part(state, part, one.after._replace(models=models))
        return state

    return step


def _of_part(values: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Returns the values whose names begin with `number/`, without this prefix in their names."""
    return {name.partition("/")[2]: value for name, value in values.items() if name.startswith(f"{number}/")}


def _list_parts(study: Study, stack: Stack) -> Iterator[Part]:
    """Yields the parts of a stack: first its bases, then its meta model.

    The bases train in the first rounds, and the meta model in the later rounds. A base whose clients fit classifiers
    (`Part.voter`) trains in no round.
    """
    nets = [base.net for base in stack.bases] + ([] if stack.meta is None else [stack.meta])
    folds = [stack.folds] * len(stack.bases) + [1]
    models = [base.models for base in stack.bases] + [1]
    copies = [f * x for f, x in zip(folds, models, strict=True)]
    whole = sum(n * net.layout.trainable for n, net in zip(copies, nets, strict=False))
    first, trainable, buffers, counters = 0, 0, whole, 1  # counter 0 counts the meta model's rounds
    for i, net in enumerate(nets):
        layout, number = net.layout, copies[i]
        ends = [trainable + number * layout.trainable, buffers + number * (layout.d - layout.trainable)]
        last = counters + number * len(layout.counters)
        is_meta = net is stack.meta
        voter = None if is_meta else stack.bases[i].voter
        begins, ended = (stack.rounds, stack.rounds + stack.meta_rounds) if is_meta else (0, stack.rounds)
        yield Part(
            study=_part_study(study, stack, i, is_meta),
            folds=folds[i],
            models=models[i],
            first=first,
            begins=begins,
            ends=ended if voter is None else begins,
            trainable=slice(trainable, ends[0]),
            buffers=slice(buffers, ends[1]),
            counters=slice(counters, last),
            voter=voter,
            combine=None if is_meta else stack.combine,
            features=stack.features,
            answers=is_meta or stack.bases[i].answers,
        )
        first, trainable, buffers, counters = first + number, ends[0], ends[1], last


def _part_study(study: Study, stack: Stack, i: int, is_meta: bool) -> Study:
    """Makes the study of one part of a stack, as if the part were trained alone.

    All folds of a base have the same initial models. Bases have different initial models.
    """
    phase = study.method.parts[i]
    starts = study.init_seeds if i == 0 else (rng.keys(study.init_seeds, "part", i) >> np.uint64(2)).astype(np.int64)
    own = replace(study, method=Method(study.name, phase), parts=())
    all_seeds, apart = tuple(study.seeds.tolist()), stack.combine is not None
    if is_meta and stack.meta is not None:
        width = stack.count_features()
        if apart or stack.pooled:  # the method or the server decides how long the meta model trains
            tiers = tuple(replace(tier, epochs=None, steps=None) for tier in study.clients.tiers)
            own = replace(own, clients=Clients(tiers))
        read: Shards = ServerShards(study.shards) if stack.at_server else study.shards
        if stack.proxy:
            read = ProxyShards(study.shards, all_seeds, stack.proxy, shows=True)
        data = FeatureShards(read, width, _refuse_features, stack.pooled)
        return replace(own, net=stack.meta, shards=data, starts=starts, input_shape=(width,))
    seeds, folds = np.repeat(study.seeds, stack.folds), np.repeat(study.folds, stack.folds)
    base, shards = stack.bases[i].net, study.shards
    if not apart and stack.folds > 1:
        shards = LeaveOutShards(study.shards, all_seeds, stack.folds, stack.within)
    elif stack.proxy and stack.meta is not None:
        shards = ProxyShards(study.shards, all_seeds, stack.proxy, shows=False)
    return replace(own, net=base, shards=shards, seeds=seeds, folds=folds, starts=np.repeat(starts, stack.folds))


def _refuse_features(_world: int, _client: int) -> Tensor:
    """Raises an error, because only a process that trains clients can compute features."""
    raise FedrayError("a stack's features are computed where its jobs run, by fedray.runtime.stacking.StackWorkers")


def _plan_part(part: Part, t: int, state: State | None) -> Plan:
    """Plans the jobs of one part in round t. Their models and worlds are numbered as in the whole stack.

    Clients without samples get no jobs.
    """
    shards = part.study.shards
    if isinstance(shards, FeatureShards) and shards.at_server:  # one job of the server for each world
        worlds = np.arange(part.study.worlds)
        return Plan(np.zeros_like(worlds), np.full_like(worlds, part.first), worlds)
    own = part.study.method.phase.schedule(t - part.begins, None if state is None else _part_losses(state, part))
    own = own.take(part.study.shards.sizes(own.world, own.client) > 0)
    world, fold = np.divmod(own.world, part.folds)
    return Plan(own.client, part.first + fold * part.models + own.model, world)


def _part_losses(state: State, part: Part) -> State:
    """Returns a state whose `job_loss` has only the losses of one part's jobs, `[worlds * F, N, x]`.

    The part's adaptive schedule uses these losses.
    """
    if "job_loss" not in state.extra:
        return state
    loss = state.extra["job_loss"][:, :, part.first : part.first + part.folds * part.models]
    own = loss.reshape(*loss.shape[:2], part.folds, part.models).transpose(1, 2).flatten(0, 1)
    return state._replace(extra={"job_loss": own})


def _draw_parts(state: State, parts: Sequence[Part], *, at_once: bool) -> State:
    """Draws the initial models of all parts of a stack.

    If `at_once` is True, the meta model counts as trained already.
    """
    state.counters[:, 0] = int(at_once)
    for part in parts:
        state = write_part(state, part, draw_first_state(part.study))
    return state


# ---------------------------------------------------------------------------------------------------------------------
# Scores and report data of the stack, of the average of its sub models, and of each base.

MOST_REPORTED_FOLDS = 50  # with more folds, the accuracy of each fold is not recorded


def find_bases(study: Study) -> list[Part]:
    """Returns the parts of a stack that are bases."""
    return [part for part in study.parts if not isinstance(part.study.shards, FeatureShards)]


def split_by_base(study: Study, members: FloatArray) -> list[FloatArray]:
    """Returns for each base the mean prediction of each fold's models, `[F, n, C]`.

    `members` has the probabilities or values that each of the P sub models predicts, `[P, n, C]`.
    """
    bases = [(part, members[part.first : part.first + part.folds * part.models]) for part in find_bases(study)]
    return [own.reshape(part.folds, part.models, *own.shape[1:]).mean(axis=1) for part, own in bases]


def average_bases(bases: list[FloatArray]) -> FloatArray:
    """Averages the predictions `[F, n, C]` of all bases to `[n, C]`."""
    return np.asarray(np.mean([folds.mean(axis=0) for folds in bases], axis=0))


def score_stack(study: Study, members: FloatArray, y: IntArray, mean: FloatArray) -> dict[str, float]:
    """Returns the scores of a stack, of the average of its bases, of each base, and of each fold of a base.

    Args:
        study: The study that `build_stack_study` made.
        members: Predicted probabilities of the P sub models, `[P, n, C]`.
        y: True labels, `[n]`.
        mean: Predicted probabilities of the stack, `[n, C]`.
    """
    average = average_bases(split_by_base(study, members))
    scores = classification.classification_scores(members, y, mean)
    scores |= score_bases(study, members, "accuracy", partial(classification.accuracy, y=y))
    return scores | {"f1_average": classification.f1_scores(average, y)["f1_weighted"]}


def score_bases(study: Study, members: FloatArray, name: str, score: Callable[[FloatArray], float]) -> dict[str, float]:
    """Scores each base of a stack, each fold of a base, and the average of all sub models.

    Args:
        study: The study that `build_stack_study` made.
        members: Probabilities or values that the P sub models predict, `[P, n, C]`.
        name: The name of the score. The names of all returned scores begin with it.
        score: A function that takes predictions `[n, C]` and returns their score.
    """
    bases = split_by_base(study, members)
    scores = {f"{name}_average": score(average_bases(bases))}
    for i, folds in enumerate(bases if study.parts[0].combine is None else []):
        scores[f"{name}_base_{i}"] = score(folds.mean(axis=0))
        if 1 < len(folds) <= MOST_REPORTED_FOLDS:
            scores |= {f"{name}_base_{i}_fold_{f}": score(one) for f, one in enumerate(folds)}
    return scores


def collect_stack_report(study: Study, state: State, probs: FloatArray, y: IntArray) -> dict[str, Any]:
    """Returns the arrays for the report of a stack.

    Args:
        study: The study that `build_stack_study` made.
        state: The state with the models of the stack.
        probs: Predicted probabilities of the test samples, first the stack's and then those of its P sub models, `[1 +
            P, n, C]`.
        y: True labels, `[n]`.

    Returns:
        The arrays by name: the confusion matrix of the bases' average, the accuracy per base and fold `[bases, F]`, and
        the names of the bases. If the meta model is one linear layer, its weights `[C, bases * C]` are also included.
    """
    bases = split_by_base(study, probs[1:])
    arrays = {"confusion_average": classification.confusion(average_bases(bases), y)}
    if study.parts[0].combine is not None:
        return arrays
    arrays |= {
        "stack_folds": np.array([[classification.accuracy(one, y) for one in folds] for folds in bases]),
        "stack_bases": np.array([f"{i} ({part.study.net.name})" for i, part in enumerate(find_bases(study))]),
    }
    meta = study.parts[-1]
    layers = [module for module in meta.study.net.module.modules() if isinstance(module, nn.Linear)]
    if len(study.parts) > len(bases) and len(layers) == 1 and is_trained(state.counters[0]):
        tensors = meta.study.net.layout.views(read_part(state, meta).models[0])
        arrays["meta_weights"] = next(tensor for tensor in tensors.values() if tensor.dim() == 2).numpy()
    return arrays
