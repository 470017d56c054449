"""Who trains what, in which order, and who dies meanwhile changes no bit; and what is sent is what jobs need."""

import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small import list_states, of_method
from uploads import merge_stats

from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study
from fedray.core.sums import ExactSum, Totals, exact_sum, thin
from fedray.core.types import Clients, Plan, SizedPlan, State, Tier
from fedray.runtime import exchange as messages
from fedray.runtime.exchange import Queue, cut_chunks, exchange
from fedray.runtime.placement import ActorSpec, assign_homes
from fedray.runtime.ray.actors import Calls, ClientActor
from fedray.runtime.session import Inline
from fedray.runtime.stacking import make_worker
from fedray.scenario.loader import read_scenario
from fedray.scenario.nested import merge_keys
from fedray.simulation.rounds import begin_progress
from fedray.simulation.study import Study

UNEVEN = (1.0, 7.0, 40.0)  # how long three actors take for the same work
NONE: dict[str, Any] = {"model": {"name": None, "hidden": None}}
CASES: dict[str, dict[str, Any]] = {
    "replicates": of_method("fed_ensemble", {"method": {"models": 3}, "replicates": 2}),
    "tiers": of_method("shefl", {"clients": {"tiers": {"hpc": {"number": 2, "models_per_round": "all"}, "lpc": {}}}}),
    "every upload": of_method("fed_ensemble", {"method": {"models": 2}, "server": {"robust": "median"}}),
    "shares of all models": of_method("fedem"),
    "a stack in one row": of_method("stacking", {"method": {"bases": [{"name": "linear"}], "folds": "within"}, **NONE}),
    "slices of tiers": of_method("fedrolex", {"clients": {"tiers": {"hpc": {"number": 2}, "lpc": {"width": 0.5}}}}),
    "running statistics": of_method("fedavg", {"model": {"norm": "batch"}, "local": {"batch_size": "full"}}),
    "private vectors": of_method("fedavg", {"compress": {"kind": "topk", "ratio": 0.2, "error_feedback": True}}),
}


class Pretended:
    """Client actors in this process, each with a speed; some calls kill the actor that gets them."""

    def __init__(self, scenario: dict[str, Any], speeds: tuple[float, ...], *, laps: int, deaths: float = 0.0) -> None:
        self.scenario, self.laps, self.deaths = read_scenario(scenario), laps, deaths
        self.study = build_study(self.scenario)
        self.has_private = bool(self.study.method.phase.own)
        tiers = range(len(self.study.clients.tiers))
        self.specs = [ActorSpec(c, 1.0, 0.0, {}) for c in tiers for _ in speeds]
        self.speeds = [speed for _ in tiers for speed in speeds]
        self.free, self.dice = [0.0] * len(self.specs), np.random.default_rng(0)
        self.actors = [self.make(a) for a in range(len(self.specs))]
        self.died, self.chunks, self.posted = 0, 0, list[Any]()

    def make(self, a: int) -> ClientActor:
        actor = ClientActor(self.scenario, UserObjects(), a, 0, 1)
        actor.restored, actor.__dict__["worker"] = True, make_worker(self.study)
        return actor

    def train(self, t: int, jobs: SizedPlan, state: State) -> Any:
        handles = [SimpleNamespace(train=SimpleNamespace(remote=self.post(a))) for a in range(len(self.actors))]
        models, at_home = self.study.method.phase.models, self.has_private
        queues = cut_chunks(self.study.clients, self.specs, jobs, models, at_home=at_home, laps=self.laps)
        self.chunks = max(self.chunks, *(len(queue.chunks) - len(queue.actors) for queue in queues))
        return exchange(queues, Calls(handles, lambda _a: None, t, jobs, state).post, self.wait)

    def post(self, a: int) -> Callable[..., int]:
        def remote(*call: Any) -> int:
            jobs = call[0].jobs
            self.free[a] += self.speeds[a] * (1.0 if jobs is None else float(jobs.steps.sum()))
            self.posted.append((self.free[a], a, pickle.dumps(call)))
            return len(self.posted)

        return remote

    def wait(self) -> Any:
        first = min(self.posted, key=lambda one: one[:2])
        self.posted.remove(first)
        _, a, message = first
        if self.dice.random() < self.deaths:
            self.actors[a] = self.make(a)
            self.died += 1
            return a, None
        return a, pickle.loads(pickle.dumps(self.actors[a].train(*pickle.loads(message))))


def hash_rounds(study: Study, runtime: Any) -> list[bytes]:
    """The bits of the state after each of two rounds."""
    states = list_states(study, 2, runtime)[0][1:]
    return [b"".join(one.numpy().tobytes() for one in (s.models, s.counters, *s.extra.values())) for s in states]


@pytest.mark.parametrize("case", CASES)
def test_inline_dealt_and_pulled_have_the_same_bits(case: str) -> None:
    scenario = merge_keys(CASES[case], {"clients": {"number": 14}})
    study = build_study(read_scenario(scenario))
    alone = hash_rounds(study, Inline(study))
    for laps in (1, 3):
        actors = Pretended(scenario, UNEVEN, laps=laps)
        assert hash_rounds(actors.study, actors) == alone
        assert (actors.chunks > 0) == (laps > 1 and not actors.has_private)


@pytest.mark.parametrize("laps", [1, 3])
def test_what_a_dead_actor_had_kept_is_trained_again(laps: int) -> None:
    study = build_study(read_scenario(CASES["replicates"]))
    actors = Pretended(CASES["replicates"], UNEVEN, laps=laps, deaths=0.3)
    assert hash_rounds(actors.study, actors) == hash_rounds(study, Inline(study))
    assert actors.died > 2


COUNTS = st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(0, 60), st.integers(1, 4))


@given(COUNTS, st.data())
def test_every_job_is_in_one_chunk(counts: tuple[int, int, int, int], data: st.DataObject) -> None:
    """Chunks of a tier are for its actors and name the rows that their jobs start from; few actors share a row."""
    actors, models, number, laps = counts
    draw = np.random.default_rng(data.draw(st.integers(0, 99)))
    clients = Clients((Tier("a", 20), Tier("b", 20, num_gpus=0.5)))
    specs = [ActorSpec(a % 2, 1.0, 0.0, {}) for a in range(2 * actors)]
    plan = Plan(draw.integers(0, 40, number), draw.integers(0, models, number), draw.integers(0, 2, number))
    jobs = SizedPlan(plan, np.ones(number, np.int64), draw.integers(0, 9, number))
    queues: list[Queue] = cut_chunks(clients, specs, jobs, models, laps=laps)
    places = [chunk.places for queue in queues for chunk in queue.chunks]
    assert sorted(np.concatenate([*places, np.zeros(0, np.int64)]).tolist()) == list(range(number))
    row = plan.world * models + plan.model
    for queue in queues:
        assert {specs[a].tier for a in queue.actors} == {int(clients.tier_of(plan.client[queue.chunks[0].places])[0])}
        for chunk in queue.chunks:
            assert len(chunk.places) > 0
            assert set(row[chunk.places].tolist()) == set(chunk.rows.tolist())
        sent = sum(len(chunk.rows) for chunk in queue.chunks)
        different = len(np.unique(row[np.concatenate([chunk.places for chunk in queue.chunks])]))
        assert sent < different + actors * laps


@pytest.mark.parametrize("laps", [1, 3])
def test_tiers_that_reserve_the_same_share_their_actors_evenly(laps: int) -> None:
    """SHEFL's strong clients have five sixths of the jobs; the actors of a tier with a GPU stay its own."""
    clients = Clients((Tier("hpc", 20), Tier("lpc", 20), Tier("gpu", 20, num_gpus=1.0), Tier("nobody", 0)))
    specs = [ActorSpec(c, 1.0, 0.0, {}) for c in (0, 1, 2)]
    client = np.concatenate([np.repeat(np.arange(10), 5), np.arange(20, 30), np.arange(40, 44)])
    plan = Plan(client, np.arange(64) % 5, np.zeros(64, np.int64))
    jobs = SizedPlan(plan, np.ones(64, np.int64), np.full(64, 7))
    together, alone = cut_chunks(clients, specs, jobs, 5, laps=laps)
    assert (together.actors, alone.actors) == ([0, 1], [2])
    sizes = [len(chunk.places) for chunk in together.chunks]
    assert sizes == ([30, 30] if laps == 1 else [15, 15, 7, 7, 8, 8])
    assert sum(len(chunk.places) for chunk in alone.chunks) == 4
    homes = assign_homes(clients, specs, np.arange(60))
    assert np.bincount(homes[:40]).tolist() == [20, 20]
    assert set(homes[40:].tolist()) == {2}


@given(st.permutations(range(5)))
def test_totals_are_the_merged_statistics_in_any_order(order: list[int]) -> None:
    totals, parts, draw = Totals(), [], torch.Generator().manual_seed(0)
    for n in range(5):
        rows, group = 10.0 ** (n - 3) * torch.randn(4, 6, generator=draw), torch.randint(0, 3, (4,), generator=draw)
        parts.append({"sum": exact_sum(rows, 2 * group, 5, torch.ones(4, dtype=torch.int64), limbs=1 + n % 2)})
    for n in order:
        totals.add(pickle.loads(pickle.dumps(thin(parts[n]))))
    merged, found = merge_stats(parts)["sum"], totals.stats["sum"]
    assert found.limbs.keys() == merged.limbs.keys()
    assert all(torch.equal(found.limbs[limb], merged.limbs[limb]) for limb in merged.limbs)


def test_a_reply_has_the_rows_of_its_jobs_only() -> None:
    """It had all K models, whatever the actor had trained."""
    actor = Pretended(CASES["replicates"], (1.0,), laps=1)
    progress = begin_progress(actor.study)
    plan = Plan(np.array([0, 1]), np.array([2, 2]), np.array([1, 1]))
    size = actor.study.shards.sizes(plan.world, plan.client)
    request = messages.TrainRequest(0, 0, SizedPlan(plan, size, size), 0, sends=True)
    reply = actor.actors[0].train(request, messages.pack_state(progress.state))
    assert reply is not None and reply.stats is not None
    sums = {name: value for name, value in reply.stats.items() if isinstance(value, ExactSum)}
    rows: list[Any] = [limb for value in sums.values() for limb in value.limbs.values()]
    assert sum(limb.rows.nbytes for limb in rows) == 8 * actor.study.net.layout.d


def test_a_page_is_read_where_it_lies() -> None:
    """Ray's arrays are read-only; they were copied in every actor."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    array.flags.writeable = False
    state = messages.unpack_state(messages.ModelRows(array, np.zeros((2, 0), np.int64), {"broadcast/control": array}))
    assert state.models.data_ptr() == state.extra["broadcast/control"].data_ptr() == array.ctypes.data
