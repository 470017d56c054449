"""A stack as one study: its bases and its meta model are parts that train in the same plan.

A stack is one model made of parts. A row of the state holds the numbers of all sub models and of the meta model, and
each round trains some parts. Every part is an ordinary study. The study of a base has one world for each (world of the
whole, fold), and the shards of that world leave the fold out (`fedray.data.stacking.LeaveOutShards`), so that the n * F
trainings of a base are jobs of one plan. The study of the meta model reads features that are computed where its jobs
run (`fedray.runtime.stacking`). The round loop, the recorder, checkpoints and hashes see one row of numbers per world.

`build_stack_study` makes the study of the whole. `split_plan`, `read_part` and `write_part` go from the whole to a part
and back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.components.adaptive import write_losses
from fedray.core import rng
from fedray.core.errors import FedrayError
from fedray.core.method import Answer, Method, Phase, Schedule, Server
from fedray.core.types import IntArray, Plan, State, Stats
from fedray.data.stacking import FeatureShards, LeaveOutShards
from fedray.models.stacking import Stack, stacked_net
from fedray.simulation.rounds import draw_first_state, job_traffic
from fedray.simulation.study import Part, Study


class PartJobs(NamedTuple):
    """The jobs of a plan that train one part of a stack.

    Attributes:
        number: The number of the part.
        part: The part.
        jobs: Places of the jobs in the plan of the whole, `[j]`.
        plan: The same jobs as the part's own study numbers them.
    """

    number: int
    part: Part
    jobs: IntArray
    plan: Plan


def split_plan(parts: Sequence[Part], plan: Plan) -> Iterator[PartJobs]:
    """Splits the plan of a stack by parts; parts without jobs are left out."""
    for number, part in enumerate(parts):
        own = plan.model - part.first
        jobs = np.flatnonzero((own >= 0) & (own < part.folds * part.models))
        if len(jobs):
            fold, model = np.divmod(own[jobs], part.models)
            yield PartJobs(number, part, jobs, Plan(plan.client[jobs], model, plan.world[jobs] * part.folds + fold))


def read_part(state: State, part: Part) -> State:
    """A part's own state, `[worlds * F * x, d_i]`, from the rows of the whole."""
    rows, number = state.models, part.folds * part.models * len(state.models)
    both = [rows[:, where].reshape(number, -1) for where in (part.trainable, part.buffers)]
    return State(torch.cat(both, dim=1), state.counters[:, part.counters].reshape(number, -1), {})


def write_part(state: State, part: Part, own: State) -> State:
    """The state of the whole with a part's own state in its place.

    Args:
        state: The state of the whole, `[worlds, d]`.
        part: The part.
        own: The part's own state, `[worlds * F * x, d_i]`; its `extra` is not read.
    """
    models, counters, worlds = state.models.clone(), state.counters.clone(), len(state.models)
    trainable = part.study.net.layout.trainable
    models[:, part.trainable] = own.models[:, :trainable].reshape(worlds, -1)
    models[:, part.buffers] = own.models[:, trainable:].reshape(worlds, -1)
    counters[:, part.counters] = own.counters.reshape(worlds, -1)
    return State(models, counters, state.extra)


def is_trained(counters: Tensor) -> bool:
    """Whether the meta model answers: its rounds are the first of the `counters` `[c]` of one row.

    Example:
        >>> is_trained(torch.tensor([0, 7])), is_trained(torch.tensor([3, 7]))
        (False, True)
    """
    return bool(counters[0] > 0)


def build_stack_study(study: Study, stack: Stack, keep_losses: bool = False) -> Study:
    """The study of a stack.

    Args:
        study: The plain study, whose method has a phase for each base and one for the meta model.
        stack: The bases, how they are left out, and the meta model.
        keep_losses: Whether the state keeps each job's loss, `[worlds, N, models]`, for the adaptive schedule.
    """
    parts = _make_parts(study, stack)
    number = sum(part.folds * part.models for part in parts)

    def init(_models: Tensor) -> dict[str, Tensor]:
        shape = (study.worlds, study.clients.number, number)
        return {"job_loss": torch.full(shape, float("nan"))} if keep_losses else {}

    base = study.method.phase
    phase = Phase(
        models=1,
        schedule=_make_schedule(parts),
        local=base.local,
        server=Server(init, lambda _uploads: {}, _make_step(parts, stack, study.worlds)),
        compress=base.compress,
        sizes=partial(_job_sizes, parts),
        traffic=partial(_job_traffic, parts, study.clients.number),
        remember=write_losses if keep_losses else None,
    )
    weights = np.zeros((study.worlds, 1 + number - (stack.meta is not None)))
    weights[:, 0] = 1.0  # the answer of the stack comes first, those of its sub models follow
    method = Method(
        "stacking", phase, lambda state: Answer(state, 1, weights), lambda state, _pooled: _draw_parts(state, parts)
    )
    rounds = stack.rounds + (stack.meta_rounds if stack.meta is not None else 0)
    return replace(study, method=method, net=stacked_net(stack), rounds=rounds, parts=parts)


def _job_sizes(parts: Sequence[Part], plan: Plan) -> IntArray:
    """Training samples of each job, `[J]`: those that the world of its part leaves to the client."""
    size = np.zeros(len(plan.client), dtype=np.int64)
    for _, part, jobs, own in split_plan(parts, plan):
        size[jobs] = part.study.shards.sizes(own.world, own.client)
    return size


def _job_traffic(parts: Sequence[Part], clients: int, t: int, plan: Plan) -> tuple[IntArray, IntArray]:
    """Bytes up and down of each job, `[J]` each: the part's model, and the sub models that features are made with."""
    up, down = np.zeros_like(plan.client), np.zeros_like(plan.client)
    for _, part, jobs, own in split_plan(parts, plan):
        up[jobs], down[jobs] = job_traffic(part.study, part.study.method.phase, own, t)
    return up, down + _sub_model_bytes(parts, clients, t, plan)


def _make_schedule(parts: Sequence[Part]) -> Schedule:
    """The jobs of all parts that train in a round."""

    def schedule(t: int, state: State | None) -> Plan:
        empty = Plan(*(np.empty(0, dtype=np.int64) for _ in Plan._fields))
        plans = [empty, *(_plan_part(part, t, state) for part in parts if part.begins <= t < part.ends)]
        return Plan(*(np.concatenate(column) for column in zip(*plans, strict=True)))

    return schedule


def _make_step(parts: Sequence[Part], stack: Stack, worlds: int) -> Callable[[State, Stats, int], State]:
    """The server's step: each part's own server steps on the statistics of that part, which are called `i/...`."""

    def step(state: State, stats: Stats, t: int) -> State:
        for i, part in enumerate(parts):
            own = {name.partition("/")[2]: value for name, value in stats.items() if name.startswith(f"{i}/")}
            if own:
                server = part.study.method.phase.server
                state = write_part(state, part, server.step(read_part(state, part), own, t - part.begins))
                if stack.meta is not None and i == len(parts) - 1:
                    state.counters[:, 0] += own["weight"].total.view(worlds, -1).sum(1) > 0
        return state

    return step


def _track_trained(schedule: Schedule, begins: int, number: int) -> Callable[[int], IntArray]:
    """A function: round -> who has trained in the rounds from `begins` on before it, as `world * N + client`."""
    nobody = np.empty(0, dtype=np.int64)
    known: dict[str, Any] = {"round": begins, "trained": nobody}  # later rounds add to it without planning again

    def trained_before(t: int) -> IntArray:
        if t < known["round"]:
            known.update(round=begins, trained=nobody)
        while known["round"] < t:
            plan = schedule(known["round"], None)
            trained = np.union1d(known["trained"], plan.world * number + plan.client)
            known.update(round=known["round"] + 1, trained=trained)
        result: IntArray = known["trained"]
        return result

    return trained_before


def _sub_model_bytes(parts: Sequence[Part], clients: int, t: int, plan: Plan) -> IntArray:
    """Bytes of the sub models that each job's client fetches to compute its features, `[J]`.

    A client fetches them once, when it first trains the meta model.
    """
    nothing, meta = np.zeros(len(plan.client), dtype=np.int64), parts[-1]
    if meta.trained_before is None or t < meta.begins:
        return nothing
    first_time = ~np.isin(plan.world * clients + plan.client, meta.trained_before(t))
    bases = [(part, part.study.net.layout, part.study.shards) for part in parts[:-1]]
    each = [
        part.models * (4 * layout.d + 8 * len(layout.counters)) * (part.folds if shards.within else 1)
        for part, layout, shards in bases
        if isinstance(shards, LeaveOutShards)
    ]
    return np.where(first_time, sum(each), nothing)


def _make_parts(study: Study, stack: Stack) -> tuple[Part, ...]:
    """The bases and the meta model, which knows who has trained it before."""
    parts = tuple(_list_parts(study, stack))
    if stack.meta is None:
        return parts
    *bases, meta = parts
    trained = _track_trained(_make_schedule(parts), meta.begins, study.clients.number)
    return *bases, meta._replace(trained_before=trained)


def _list_parts(study: Study, stack: Stack) -> Iterator[Part]:
    """The bases, which all train in each of the first rounds (votes in none), and the meta model, which follows."""
    nets = [base.net for base in stack.bases] + ([] if stack.meta is None else [stack.meta])
    folds = [stack.folds] * len(stack.bases) + [1]
    models = [base.models for base in stack.bases] + [1]
    copies = [f * x for f, x in zip(folds, models, strict=True)]
    whole = sum(n * net.layout.trainable for n, net in zip(copies, nets, strict=False))
    first, trainable, buffers, counters = 0, 0, whole, 1  # the first counter is the meta model's rounds
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
        )
        first, trainable, buffers, counters = first + number, ends[0], ends[1], last


def _part_study(study: Study, stack: Stack, i: int, is_meta: bool) -> Study:
    """The ordinary study of a part. Bases have initial models of their own; the folds of a base share them."""
    phase = study.method.parts[i]
    starts = study.init_seeds if i == 0 else (rng.keys(study.init_seeds, "part", i) >> np.uint64(2)).astype(np.int64)
    own = replace(study, method=Method("stacking", phase), parts=())
    if is_meta and stack.meta is not None:
        width = study.classes * len(stack.bases)
        data = FeatureShards(study.shards, width, _refuse_features)
        return replace(own, net=stack.meta, shards=data, starts=starts, input_shape=(width,))
    seeds, folds = np.repeat(study.seeds, stack.folds), np.repeat(study.folds, stack.folds)
    shards = LeaveOutShards(study.shards, tuple(study.seeds.tolist()), stack.folds, stack.within)
    base = stack.bases[i].net
    return replace(own, net=base, shards=shards, seeds=seeds, folds=folds, starts=np.repeat(starts, stack.folds))


def _refuse_features(_world: int, _client: int) -> Tensor:
    """Stands where only a worker can compute features."""
    raise FedrayError("a stack's features are computed where its jobs run: ask the host of the stack")


def _plan_part(part: Part, t: int, state: State | None) -> Plan:
    """A part's jobs in round t of the whole, numbered as the whole numbers them; nobody trains without data."""
    own = part.study.method.phase.schedule(t - part.begins, None if state is None else _part_losses(state, part))
    own = own.take(part.study.shards.sizes(own.world, own.client) > 0)
    world, fold = np.divmod(own.world, part.folds)
    return Plan(own.client, part.first + fold * part.models + own.model, world)


def _part_losses(state: State, part: Part) -> State:
    """What an adaptive schedule reads: the state with the losses of a part's jobs alone, `[worlds * F, N, x]`."""
    if "job_loss" not in state.extra:
        return state
    loss = state.extra["job_loss"][:, :, part.first : part.first + part.folds * part.models]
    own = loss.reshape(*loss.shape[:2], part.folds, part.models).transpose(1, 2).flatten(0, 1)
    return state._replace(extra={"job_loss": own})


def _draw_parts(state: State, parts: Sequence[Part]) -> State:
    """The initial models, part by part, each drawn at its own address."""
    for part in parts:
        state = write_part(state, part, draw_first_state(part.study, part.study.method.phase))
    return state
