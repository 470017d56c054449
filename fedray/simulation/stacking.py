"""A stack is one model made of parts: a row holds all sub models and the meta model, and each round trains some parts.

Every part is an ordinary study. A base's has a world for each (world of the whole, fold), whose shards leave the fold
out (`data.leave_out`), so the n * F trainings are one plan of ordinary jobs; the meta model's reads features that are
computed where its jobs run (`runtime.stacked`). Engine, recorder, checkpoints and hashes see one row of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedray.core import rng
from fedray.core.errors import FedrayError
from fedray.core.method import Answer, Method, Phase, Schedule
from fedray.core.types import IntArray, Plan, Server, State, Stats
from fedray.data.stacking import Features, LeaveOut
from fedray.models.stacking import Stack, stacked_net
from fedray.simulation.parts import read_part, write_part
from fedray.simulation.study import Part, Study


def trained_before(schedule: Schedule, begins: int, number: int) -> Callable[[int], IntArray]:
    """A function: round -> who has trained in the rounds from `begins` on before it, as `world * N + client`."""
    nobody = np.empty(0, dtype=np.int64)
    known: dict[str, Any] = {"round": begins, "who": nobody}  # no round is planned again on the way forward

    def before(t: int) -> IntArray:
        if t < known["round"]:
            known.update(round=begins, who=nobody)
        while known["round"] < t:
            plan = schedule(known["round"], None)
            known.update(round=known["round"] + 1, who=np.union1d(known["who"], plan.world * number + plan.client))
        return known["who"]

    return before


def build_stack_study(study: Study, stack: Stack, remembers: bool = False) -> Study:
    """The study of a stack from the plain one, whose method has a phase for each base and one for the meta model.

    remembers: keeps each job's loss, `[worlds, N, models]`, for the adaptive schedule.
    """
    net, base, parts = stacked_net(stack), study.method.phase, tuple(_parts(study, stack))

    def schedule(t: int, state: State | None) -> Plan:
        nobody = Plan(*(np.empty(0, dtype=np.int64) for _ in Plan._fields))
        plans = [nobody, *(_plan(part, t, state) for part in parts if part.begins <= t < part.ends)]
        return Plan(*(np.concatenate(column) for column in zip(*plans, strict=True)))

    def step(state: State, stats: Stats, t: int) -> State:
        for i, part in enumerate(parts):
            mine = {name.partition("/")[2]: value for name, value in stats.items() if name.startswith(f"{i}/")}
            if mine:
                server = part.study.method.phase.server
                state = write_part(state, part, server.step(read_part(state, part), mine, t - part.begins))
                if stack.meta is not None and i == len(parts) - 1:
                    state.counters[:, 0] += mine["weight"].total.view(study.worlds, -1).sum(1) > 0
        return state

    if stack.meta is not None:
        *bases, top = parts
        parts = (*bases, top._replace(met=trained_before(schedule, top.begins, study.clients.number)))
    number = sum(part.folds * part.models for part in parts)

    def init(models: Tensor) -> dict[str, Tensor]:
        shape = (study.worlds, study.clients.number, number)
        return {"job_loss": torch.full(shape, float("nan"))} if remembers else {}

    server = Server(init, lambda uploads: {}, step)
    phase = Phase(1, schedule, base.local, server, base.compress)
    weights = np.zeros((study.worlds, 1 + number - (stack.meta is not None)))
    weights[:, 0] = 1.0  # the stack's answer comes first, its sub models' behind it
    method = Method("stacking", phase, lambda state: Answer(state, 1, weights), lambda state, _: _first(state, parts))
    rounds = stack.rounds + (stack.meta_rounds if stack.meta is not None else 0)
    return replace(study, method=method, net=net, rounds=rounds, parts=parts)


def _parts(study: Study, stack: Stack) -> Iterator[Part]:
    """Bases train in the first rounds, all of them in each (votes in none); the meta model in the others."""
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
        on_top = net is stack.meta
        voter = None if on_top else stack.bases[i].voter
        begins, ended = (stack.rounds, stack.rounds + stack.meta_rounds) if on_top else (0, stack.rounds)
        yield Part(
            _study(study, stack, i, on_top), folds[i], models[i], first, begins, ended if voter is None else begins,
            slice(trainable, ends[0]), slice(buffers, ends[1]), slice(counters, last), voter,
        )  # fmt: skip
        first, trainable, buffers, counters = first + number, ends[0], ends[1], last


def _study(study: Study, stack: Stack, i: int, on_top: bool) -> Study:
    """The ordinary study of a part. Bases have initial models of their own; the folds of a base share them."""
    phase = study.method.parts[i]
    starts = study.init_seeds if i == 0 else (rng.keys(study.init_seeds, "part", i) >> np.uint64(2)).astype(np.int64)
    own = replace(study, method=Method("stacking", phase), parts=())
    if on_top and stack.meta is not None:
        width = study.classes * len(stack.bases)
        data = Features(study.shards, width, _nowhere)
        return replace(own, net=stack.meta, shards=data, starts=starts, input_shape=(width,))
    seeds, folds = np.repeat(study.seeds, stack.folds), np.repeat(study.folds, stack.folds)
    shards = LeaveOut(study.shards, tuple(study.seeds.tolist()), stack.folds, stack.within)
    base = stack.bases[i].net
    return replace(own, net=base, shards=shards, seeds=seeds, folds=folds, starts=np.repeat(starts, stack.folds))


def _nowhere(world: int, client: int) -> Tensor:
    """Features without a host that computes them."""
    raise FedrayError("a stack's features are computed where its jobs run: ask the host of the stack")


def _plan(part: Part, t: int, state: State | None) -> Plan:
    """A part's jobs in round t of the whole, numbered as the whole numbers them; nobody trains without data."""
    own = part.study.method.phase.schedule(t - part.begins, None if state is None else _remembered(state, part))
    own = own.take(part.study.shards.sizes(own.world, own.client) > 0)
    world, fold = np.divmod(own.world, part.folds)
    return Plan(own.client, part.first + fold * part.models + own.model, world)


def _remembered(state: State, part: Part) -> State:
    """What an adaptive schedule reads: the losses of a part's jobs, `[worlds * F, N, x]`."""
    if "job_loss" not in state.extra:
        return state
    loss = state.extra["job_loss"][:, :, part.first : part.first + part.folds * part.models]
    own = loss.unflatten(2, (part.folds, part.models)).transpose(1, 2).flatten(0, 1)
    return state._replace(extra={"job_loss": own})


def _first(state: State, parts: tuple[Part, ...]) -> State:
    """The initial models, part by part, each drawn at its own address."""
    for part in parts:
        net, seeds = part.study.net, part.study.init_seeds
        rows = [net.init(int(rng.keys(seed, "init", k))) for seed in seeds for k in range(part.models)]
        models = torch.stack(rows).to(state.models.dtype)
        state = write_part(
            state, part, State(models, torch.zeros(len(rows), len(net.layout.counters), dtype=torch.int64), {})
        )
    return state
