"""Defines schedules, which decide which client trains which model in a round.

A schedule is a function that takes the round and the state and returns a `Plan`, the jobs of the round. A *world* is
one combination of a seed and a fold. A *slot* is a position among the participants of a round. An *age* is K
consecutive rounds, where K is the number of models.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from fedray.core import rng
from fedray.core.errors import quote_value
from fedray.core.method import Method, Remember, Schedule
from fedray.core.types import Clients, FloatArray, IntArray, Members, Plan, State, Stats, round_to_sum
from fedray.own_code.contract import contract
from fedray.own_code.user_code import name_callable

# ---------------------------------------------------------------------------------------------------------------------
# The memory of past rounds for schedules and selections. It consists of tensors that are added to the method's state.


def keep_in_state(method: Method, first: Mapping[str, Callable[[], torch.Tensor]], write: Remember) -> Method:
    """Returns the method with additional tensors in its state. The method's own functions do not see them.

    Args:
        method: Any method with a server.
        first: Names of the additional tensors, and for each a function that makes the tensor before the first round.
        write: The function that updates the additional tensors after each round. It has the arguments of
            `Phase.remember`, and is called after the method's own function `remember`.

    Example:
        >>> import torch
        >>> from fedray.assembly.study import build_study
        >>> from fedray.scenario.loader import read_scenario
        >>> method = build_study(read_scenario({"method": {"name": "fedavg"}, "clients": {"number": 3}})).method
        >>> def count(t, state, plan, loss):
        ...     return state._replace(extra={**state.extra, "jobs": state.extra["jobs"] + len(loss)})
        >>> phase = keep_in_state(method, {"jobs": lambda: torch.zeros(1)}, count).phase
        >>> state = State(torch.zeros(1, 2), torch.zeros(1, 0), phase.server.init(torch.zeros(1, 2)))
        >>> phase.remember(0, state, None, [0.5, 0.25]).extra["jobs"].tolist()
        [2.0]
    """
    phase = method.phase

    def init(models: torch.Tensor) -> dict[str, torch.Tensor]:
        return {**phase.server.init(models), **{name: make() for name, make in first.items()}}

    def hide(state: State) -> State:
        return state._replace(extra={name: value for name, value in state.extra.items() if name not in first})

    def carry(before: State, after: State) -> State:
        return after._replace(extra={**after.extra, **{name: before.extra[name] for name in first}})

    def step(state: State, stats: Stats, t: int) -> State:
        return carry(state, phase.server.step(hide(state), stats, t))

    def remember(t: int, state: State, plan: Plan, loss: FloatArray) -> State:
        own = state if phase.remember is None else carry(state, phase.remember(t, hide(state), plan, loss))
        return write(t, own, plan, loss)

    server = phase.server._replace(init=init, step=step)
    return replace(method, phase=replace(phase, server=server, remember=remember))


# ---------------------------------------------------------------------------------------------------------------------
# The memory of the adaptive schedule is the last loss of every client on every model.


def remember_losses(method: Method, worlds: int, clients: int) -> Method:
    """Returns the method with one more tensor in its state: the last loss of each client on each model.

    The tensor is `job_loss`, `[worlds, N, K]` for N clients and K models. An entry is NaN until the client has trained
    the model.

    Example:
        >>> import fedray
        >>> scenario = {"schedule": {"kind": "adaptive"}, "rounds": 1, "clients": {"number": 4}}
        >>> run = fedray.run(scenario, runtime="inline", report=False)
        >>> run.progress.state.extra["job_loss"].shape
        torch.Size([1, 4, 5])
    """
    models = method.phase.models
    first = {"job_loss": lambda: torch.full((worlds, clients, models), float("nan"))}
    return keep_in_state(method, first, write_losses)


def write_losses(_t: int, state: State, plan: Plan, loss: FloatArray) -> State:
    """Writes the mean training loss of each of a round's J jobs into the tensor `job_loss`, and returns the state."""
    losses = state.extra["job_loss"].clone()
    losses[plan.world, plan.client, plan.model] = torch.from_numpy(loss).float()
    return state._replace(extra={**state.extra, "job_loss": losses})


def find_odds(loss: FloatArray) -> FloatArray:
    """Returns the odds (relative probabilities) with which clients draw their models.

    The odds equal the losses. A loss of a regression can be negative (`gaussian_nll`). If a client has a negative loss,
    its odds are `exp(loss)`, divided by the client's largest `exp(loss)`. Such odds do not depend on the unit of the
    target.

    Args:
        loss: Last loss of each of P clients on each of K models, `[P, K]`. NaN means that the client has not trained
            the model. The odds of such a model equal the client's largest odds.

    Returns:
        The odds `[P, K]`, above 0.

    Example:
        >>> find_odds(np.array([[1.0, np.nan, 3.0], [np.nan, -1.0, -2.0]])).round(2).tolist()
        [[1.0, 3.0, 3.0], [1.0, 1.0, 0.37]]
    """
    unknown = np.isnan(loss).all(axis=1, keepdims=True)
    most = np.nanmax(np.where(unknown, 1e-12, loss), axis=1, keepdims=True)
    known = np.where(np.isnan(loss), most, loss)
    less = np.clip(known, -1e300, 1e300) - np.clip(most, -1e300, 1e300)  # infinity - infinity would be NaN
    return np.where((known < 0).any(axis=1, keepdims=True), np.exp(less), known) + 1e-12


# ---------------------------------------------------------------------------------------------------------------------
# The memory of a client selection. It holds the last loss of every client, the last round in which it took part, and
# Oort's pace. The pace is the percentile of the clients' durations that gives the preferred duration of a round.

WINDOW = 20  # rounds (Oort, section 7.1)
FIRST_PACE, PACE_STEP = 30.0, 10.0  # percent, as in the code of Oort's authors


def read_memory(state: State | None, world: int, number: int) -> tuple[FloatArray, IntArray, float]:
    """Reads tensors of `remember_clients`. Returns each client's last loss, its last round, and Oort's pace.

    Losses and rounds (from 1) are `[N]`. `number` is N, the number of clients. The pace is a percentile of the clients'
    durations. If the state is None or lacks these tensors, the result says that no client has taken part.

    Example:
        >>> read_memory(None, world=0, number=2)
        (array([nan, nan]), array([0, 0]), 30.0)
    """
    if state is None or "client_loss" not in state.extra:
        return np.full(number, np.nan), np.zeros(number, dtype=np.int64), FIRST_PACE
    loss, last = (state.extra[name][world].numpy() for name in ("client_loss", "client_round"))
    return loss.astype(np.float64), last, float(state.extra["pace"][world, 0])


def remember_clients(method: Method, worlds: int, clients: int, sizes: Callable[[int], IntArray]) -> Method:
    """Returns the method with three more tensors in its state, for rules that choose clients by loss or speed.

    There are R worlds and N clients. `client_loss` `[R, N]` holds the last loss of each client. `client_round` `[R, N]`
    holds the last round in which the client took part, from 1. `pace` `[R, 41]` holds Oort's percentile of durations,
    followed by the utilities of the last 40 rounds (two windows of 20 rounds). The function `sizes` takes a world and
    returns each client's number of training samples.
    """
    pace = torch.zeros((worlds, 1 + 2 * WINDOW), dtype=torch.float64)
    pace[:, 0] = FIRST_PACE
    first = {
        "client_loss": lambda: torch.full((worlds, clients), float("nan")),
        "client_round": lambda: torch.zeros((worlds, clients), dtype=torch.int64),
        "pace": pace.clone,
    }
    write = partial(write_memory, plan_of=method.phase.schedule, sizes=sizes, window=WINDOW)
    return keep_in_state(method, first, write)


def write_memory(
    t: int,
    state: State,
    plan: Plan,
    loss: FloatArray,
    *,
    plan_of: Schedule,
    sizes: Callable[[int], IntArray],
    window: int,
) -> State:
    """Writes the mean loss of each client of a round into the state, updates Oort's pace, and returns the state.

    The pace is a percentile of the clients' durations. A participant whose upload was not used gets the mean loss of
    the round.

    Args:
        t: The round, from 0.
        state: The state, with the memory of `remember_clients`.
        plan: The J jobs of the round whose uploads the server has used.
        loss: Mean training loss of each job, `[J]`.
        plan_of: The function that takes a round and the state at its beginning, and returns the jobs of the round.
        sizes: A function that takes a world and returns the number of training samples of each client, `[N]`.
        window: Number of rounds after which the pace may change.
    """
    done = t + 1
    losses, last, pace = (state.extra[name].clone() for name in ("client_loss", "client_round", "pace"))
    planned = plan_of(t, state)  # the memory is still that of the round's beginning
    for world in np.unique(plan.world).tolist():
        own = plan.world == world
        client, index = np.unique(plan.client[own], return_inverse=True)
        mean = np.bincount(index, loss[own]) / np.bincount(index)
        missed = np.setdiff1d(planned.client[planned.world == world], client)
        losses[world, client], losses[world, missed] = torch.from_numpy(mean).float(), float(mean.mean())
        last[world, client] = last[world, missed] = done
        pace[world, 1 + t % (2 * window)] = float((sizes(world)[client] * mean).sum())
        if done % window == 0 and done >= 2 * window:
            half = pace[world, 1:].reshape(2, window).sum(dim=1)
            newest = t // window % 2
            if half[newest] <= half[1 - newest]:
                pace[world, 0] = min(100.0, float(pace[world, 0]) + PACE_STEP)
    return state._replace(extra={**state.extra, "client_loss": losses, "client_round": last, "pace": pace})


# ---------------------------------------------------------------------------------------------------------------------
# A schedule joins a participation rule and an assignment rule. Both are pure functions of (seed, round), so the plan of
# round t does not need the plans of earlier rounds, and nothing is stored. Only `adaptive` and client selections use
# the state.


class Participants(NamedTuple):
    """The participants of a round in one world.

    Attributes:
        client: Ids of the P participants, `[P]`.
        slot: Slot of each participant, `[P]`. A slot is a position among the participants. A schedule may draw an
            order of the models for each slot.
    """

    client: IntArray
    slot: IntArray


class WorldRound(NamedTuple):
    """One round of one world. A world is one combination of a seed and a fold.

    Attributes:
        seed: Seed of the world.
        t: The round, from 0.
        world: Index of the world.
    """

    seed: int
    t: int
    world: int


# (round, state) -> the participants; only selections read the state, for example the losses of earlier rounds
Participation = Callable[[WorldRound, State | None], Participants]

# (round, participants, number of models of each participant `[P]`, state) -> participant and model of each job, `[J]`
Assignment = Callable[[WorldRound, Participants, IntArray, "State | None"], tuple[IntArray, IntArray]]


def share_out(clients: Clients, number: int) -> list[int]:
    """Divides `number` participants among the tiers (classes of devices), in proportion to their numbers of clients.

    The shares with the largest fractional parts are rounded up, so that the results add up to `number`.

    Example:
        >>> from fedray.core.types import Tier
        >>> share_out(Clients((Tier("strong", 50), Tier("weak", 100))), 10)
        [3, 7]
    """
    share = np.array([tier.number for tier in clients.tiers]) * number / clients.number
    return [int(n) for n in round_to_sum(share, number)]


def overcommit(clients: Clients, per_tier: Sequence[int], factor: float) -> list[int]:
    """Returns how many clients of each tier (class of devices) are invited to a round.

    The round waits for `per_tier[c]` clients of tier c. In this tier, `factor * per_tier[c]` clients are invited. This
    number is rounded up, and is at most the number of clients of the tier.
    """
    wanted = [int(np.ceil(n * factor - 1e-9)) for n in per_tier]
    return [min(tier.number, n) for tier, n in zip(clients.tiers, wanted, strict=True)]


def only(participation: Participation, members: Members) -> Participation:
    """Restricts a participation rule to the clients of a group.

    The remaining participants keep their slots (their positions among all participants). `members` takes client ids
    `[J]` and returns whether each client belongs to the group, `[J]`.

    Example:
        >>> everyone: Participation = lambda now, state: Participants(np.arange(6), np.arange(6))
        >>> only(everyone, lambda client: client % 3 == 1)(WorldRound(0, 0, 0), None).client.tolist()
        [1, 4]
    """

    def choose(now: WorldRound, state: State | None) -> Participants:
        drawn = participation(now, state)
        inside = members(drawn.client)
        return Participants(drawn.client[inside], drawn.slot[inside])

    return choose


def join_tiers(picked: Sequence[IntArray]) -> Participants:
    """Joins the participants of each tier (class of devices).

    Slots (positions among all participants) are numbered tier after tier.
    """
    client = np.concatenate(picked).astype(np.int64)
    return Participants(client, np.arange(len(client)))


def invite_all(clients: Clients) -> Participation:
    """Returns the participation rule by which every client takes part in every round."""
    everyone = Participants(np.arange(clients.number), np.arange(clients.number))
    return lambda _now, _state: everyone


def sample_clients(clients: Clients, per_tier: Sequence[int]) -> Participation:
    """Returns the participation rule that draws `per_tier[c]` clients of tier c (a class of devices) in every round.

    Clients are drawn without replacement, with equal probabilities within a tier. The slot of a client is its position
    among all participants, ordered by tier and then by client id. So a slot always belongs to the same tier. If all
    clients take part, client i has slot i.
    """
    starts = np.cumsum([0] + [tier.number for tier in clients.tiers])

    def draw(now: WorldRound, _state: State | None) -> Participants:
        numbers = rng.stream(now.seed, "participants", now.t)
        picked = [
            np.sort(numbers.choice(tier.number, size=n, replace=False, shuffle=False)) + start
            for tier, n, start in zip(clients.tiers, per_tier, starts[:-1], strict=True)
        ]
        return join_tiers(picked)

    return draw


def sample_strata(clients: Clients, per_tier: Sequence[int], models: int) -> Participation:
    """Returns the participation rule that draws one client from each stratum (set of clients) in every round.

    Tier c (a class of devices) is split at random into `per_tier[c]` strata. All clients of a stratum share one
    permutation of the models (preprint of Fed-ensemble; SHEFL section 4). Strata of equal sizes are drawn once. If
    equal sizes are impossible, the sizes differ by at most one client, and clients of smaller strata take part more
    often. Such strata are drawn again every K = `models` rounds, so that in the long run all clients take part equally
    often.
    """
    starts = np.cumsum([0] + [tier.number for tier in clients.tiers])
    uneven = any(n and tier.number % n for tier, n in zip(clients.tiers, per_tier, strict=True))
    newest: dict[int, tuple[int, list[IntArray]]] = {}  # seed of a world -> the newest age, and the strata of this age

    def cut(seed: int, age: int) -> list[IntArray]:
        if newest.get(seed, (None, []))[0] != age:
            newest[seed] = age, []
            for c, (tier, n) in enumerate(zip(clients.tiers, per_tier, strict=True)):
                if n:
                    address = (c,) if tier.number % n == 0 else (c, age)
                    order = rng.stream(seed, "strata", *address).permutation(tier.number) + starts[c]
                    newest[seed][1].extend(np.array_split(order, n))
        return newest[seed][1]

    def draw(now: WorldRound, _state: State | None) -> Participants:
        parts = cut(now.seed, now.t // models if uneven else 0)
        u = rng.uniform(rng.keys(now.seed, "stratum", now.t), len(parts))
        client = np.array([part[int(x * len(part))] for part, x in zip(parts, u, strict=True)], dtype=np.int64)
        return Participants(client, np.arange(len(parts)))

    return draw


def _list_jobs(m: IntArray) -> tuple[IntArray, IntArray]:
    """Returns the participant of each of J jobs, and the job's index among this participant's jobs.

    `m` is the number of jobs of each of P participants, `[P]`.
    """
    who = np.repeat(np.arange(len(m)), m)
    return who, np.arange(len(who)) - np.repeat(np.cumsum(m) - m, m)


def permutation(models: int, rows: str = "client") -> Assignment:
    """Returns the assignment rule by which each client trains the models in a random order (Fed-ensemble).

    In every round t with `t mod K = 0`, each client draws a uniform permutation P of the K models. In round t, the
    client trains the model `P[t mod K]`. So it trains every model exactly once in K rounds. If the client's tier has m
    models per round, the client trains the models `P[(t + j) mod K]` for j < m (SHEFL).

    `rows` names the owner of a permutation: a `client`, a `slot` (a position among the participants), or a `stratum` (a
    slot that is always filled from the same set of clients).
    """

    def assign(now: WorldRound, drawn: Participants, m: IntArray, _state: State | None) -> tuple[IntArray, IntArray]:
        row = drawn.client if rows == "client" else drawn.slot
        who, entry = _list_jobs(m)
        if models == 1:
            return who, np.zeros(len(who), dtype=np.int64)
        order = rng.permutations(rng.keys(now.seed, "permutation", now.t // models, row), models)
        return who, order[who, (now.t + entry) % models]

    return assign


def balanced(models: int, _rows: str = "client") -> Assignment:
    """Returns the assignment rule that gives all models the same number of jobs, as far as possible.

    All participants follow one permutation of the K models, each with a different cyclic shift. A new permutation is
    drawn every K rounds. In a round, the numbers of jobs of two models differ by at most 1.
    """

    def assign(now: WorldRound, _drawn: Participants, m: IntArray, _state: State | None) -> tuple[IntArray, IntArray]:
        order = rng.permutations(rng.keys(now.seed, "permutation", now.t // models), models)
        who = np.repeat(np.arange(len(m)), m)
        return who, order[(now.t + np.arange(len(who))) % models]

    return assign


def random_models(models: int, _rows: str = "client") -> Assignment:
    """Returns the assignment rule by which each participant trains random models, drawn anew in each round."""

    def assign(now: WorldRound, drawn: Participants, m: IntArray, _state: State | None) -> tuple[IntArray, IntArray]:
        order = rng.permutations(rng.keys(now.seed, "random", now.t, drawn.client), models)
        who, entry = _list_jobs(m)
        return who, order[who, entry]

    return assign


def adaptive(models: int, _rows: str = "client") -> Assignment:
    """Returns the assignment rule by which a client more often trains models with a high loss on its samples.

    A client draws models with odds that `find_odds` computes from the client's last losses (future work of the preprint
    of Fed-ensemble, section 6).
    """

    def assign(now: WorldRound, drawn: Participants, m: IntArray, state: State | None) -> tuple[IntArray, IntArray]:
        if state is None or "job_loss" not in state.extra:
            odds = np.ones((len(drawn.client), models))
        else:
            odds = find_odds(state.extra["job_loss"][now.world].numpy()[drawn.client].astype(np.float64))
        u = rng.uniform(rng.keys(now.seed, "adaptive", now.t, drawn.client), models)
        order = np.argsort(np.log(u + 1e-300) / odds, axis=1)[:, ::-1]  # weighted draw without replacement (Efraimidis)
        who, entry = _list_jobs(m)
        return who, order[who, entry]

    return assign


KINDS: dict[str, Callable[[int, str], Assignment]] = {
    "permutation": permutation,
    "random": random_models,
    "balanced": balanced,
    "adaptive": adaptive,
}


def schedule(
    clients: Clients, models: int, seeds: Sequence[int], participation: Participation, assignment: Assignment
) -> Schedule:
    """Joins a participation rule and an assignment rule into a schedule for all worlds.

    A participation rule chooses the participants of a round. An assignment rule chooses their models. `seeds` holds the
    seed of each world. In fold 0 these are the scenario's `seed`, `seed + 1`, and so on. Other folds have other seeds.

    Example:
        >>> from fedray.core.types import Tier
        >>> four = Clients((Tier("client", 4),))
        >>> plan = schedule(four, 2, [0], invite_all(four), balanced(2))
        >>> plan(0, None).client.tolist(), sorted(plan(0, None).model.tolist())
        ([0, 1, 2, 3], [0, 0, 1, 1])
    """
    per_tier = np.array([min(t.models_per_round or models, models) for t in clients.tiers])  # a base may have fewer

    def plan(t: int, state: State | None) -> Plan:
        columns = []
        for world, seed in enumerate(seeds):
            now = WorldRound(seed, t, world)
            drawn = participation(now, state)
            who, model = assignment(now, drawn, per_tier[clients.tier_of(drawn.client)], state)
            columns.append((drawn.client[who], model, np.full(len(who), world)))
        client, trained, of = (np.concatenate(c).astype(np.int64) for c in zip(*columns, strict=True))
        return Plan(client, trained, of)

    return plan


def last_round(schedule: Schedule, worlds: int, clients: int, begins: int = 0) -> Callable[[int], IntArray]:
    """Returns a function that takes a round t, and returns the last round before t in which each client had a job.

    The result has an entry for each of N clients in each of R worlds (each a seed and a fold), `[R * N]`. -1 means
    that the client had no job before t. The schedule must not need a state. Rounds before `begins` do not count. The
    function replays the schedule from `begins`. If t is smaller than in the call before, it starts the replay again.

    Example:
        >>> clients, everyone = 3, np.arange(3)
        >>> def schedule(t, state):
        ...     return Plan(everyone, 0 * everyone, 0 * everyone)
        >>> last_round(schedule, 1, clients)(2).tolist(), last_round(schedule, 1, clients, begins=2)(2).tolist()
        ([1, 1, 1], [-1, -1, -1])
    """
    replayed, last = begins, np.full(worlds * clients, -1, dtype=np.int64)  # the first round that is not in `last`

    def before(t: int) -> IntArray:
        nonlocal replayed
        if t < replayed:
            replayed, last[:] = begins, -1
        for earlier in range(replayed, t):
            plan = schedule(earlier, None)
            last[plan.world * clients + plan.client] = earlier
        replayed = max(t, begins)
        return last

    return before


# ---------------------------------------------------------------------------------------------------------------------
# A user's kind of schedule, with checks of the assignments of each round.


def guard_schedule(function: Callable[[int, str], Any], where: str = "") -> Callable[[int, str], Assignment]:
    """Adds checks to a user's kind of schedule. An error is one line that names the mistake.

    A kind of schedule is a function that returns an assignment rule. The function takes the number of models K, and the
    word (`client`, `slot` or `stratum`) that tells what has a permutation of its own. Messages begin with `where`. If
    `where` is empty, messages begin with `schedule.kind` and the name of the function.

    Example:
        >>> def first_model(models, rows):
        ...     return lambda now, drawn, m, state: (np.arange(len(drawn.client)), np.zeros(len(drawn.client), int))
        >>> assign = guard_schedule(first_model)(3, "client")
        >>> assign(WorldRound(0, 0, 0), Participants(np.arange(2), np.arange(2)), np.ones(2, int), None)[1].tolist()
        [0, 0]
    """
    where = where or f"schedule.kind = {name_callable(function)}"

    def make(models: int, rows: str) -> Assignment:
        def returns(found: Any, _now: WorldRound, drawn: Participants, *_: Any) -> str | None:
            parts = [np.asarray(part) for part in found] if isinstance(found, tuple) else []
            fine = len(parts) == 2 and parts[0].ndim == 1 and parts[0].shape == parts[1].shape
            if fine and all(part.dtype.kind in "iu" or not part.size for part in parts):
                jobs, most = np.stack(parts), np.array([[len(drawn.client)], [models]])
                if ((jobs >= 0) & (jobs < most)).all() and len(np.unique(jobs, axis=1).T) == jobs.shape[1]:
                    return None
            return (
                f"{quote_value(found)}: return the participant [J] and the model [J] of each job, whole numbers from 0 "
                f"and below {len(drawn.client)} and {models}, and no job twice"
            )

        ask = contract(f"{where}: its assignment", function(models, rows), returns, again=True)

        def assign(now: WorldRound, drawn: Participants, m: IntArray, state: State | None) -> tuple[IntArray, IntArray]:
            who, model = (np.asarray(part, dtype=np.int64) for part in ask(now, drawn, m, state))
            return who, model

        return assign

    return make


# ---------------------------------------------------------------------------------------------------------------------
# Clients that choose the model that they train. The plan of a round changes after clients have reported their losses.


def one_job_each(_models: int, _rows: str = "client") -> Assignment:
    """Returns the assignment rule that gives each participant one job.

    The job has model 0 until the participant chooses a model.
    """

    def assign(_now: WorldRound, drawn: Participants, _m: IntArray, _state: State | None) -> tuple[IntArray, IntArray]:
        return np.arange(len(drawn.client)), np.zeros(len(drawn.client), dtype=np.int64)

    return assign


def pick_least_loss(plan: Plan, losses: FloatArray) -> Plan:
    """Returns the plan in which each client trains the model with the smallest loss on its training samples.

    If several models have this loss, the first is taken. `losses` holds for each of J jobs the mean losses of all K
    models on the client's samples, `[J, K]`. NaN and infinite losses are ignored. If a client has no finite loss, its
    job keeps the model of `plan`.

    Example:
        >>> plan = Plan(client=np.array([4, 7, 9]), model=np.zeros(3, np.int64), world=np.zeros(3, np.int64))
        >>> pick_least_loss(plan, np.array([[0.3, 0.1], [0.2, 0.2], [np.nan, np.nan]])).model.tolist()
        [1, 0, 0]
    """
    told = np.isfinite(losses)
    best = np.where(told, losses, np.inf).argmin(axis=1)
    return plan._replace(model=np.where(told.any(axis=1), best, plan.model))


def every_model(models: int, _rows: str = "client") -> Assignment:
    """Returns the assignment rule by which every participant trains all K models."""

    def assign(_now: WorldRound, drawn: Participants, _m: IntArray, _state: State | None) -> tuple[IntArray, IntArray]:
        number = len(drawn.client)
        return np.repeat(np.arange(number), models), np.tile(np.arange(models), number)

    return assign
