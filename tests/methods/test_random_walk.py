"""Walks without a server: where models go, what they carry, what failures do to them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2
from small import of_method

import fedray
from fedray.assembly.features import make_graph, make_walk
from fedray.assembly.study import build_study
from fedray.components.random_walk import Graph, Outages, make_walks, walk_schedule
from fedray.core.method import JobRows
from fedray.core.types import SizedPlan, State
from fedray.runtime.session import Inline
from fedray.scenario.loader import read_scenario
from fedray.scenario.sections import GraphKeys
from fedray.simulation import devices as clock
from fedray.simulation.rounds import add_round, begin_progress, run_round

IRREGULAR = nx.barbell_graph(4, 2)  # degrees 1 to 4 and a bottleneck
REGULAR = {("ring", "metropolis"), ("complete", "metropolis")}  # every node has the same degree
STEPS, WALKS, LEVEL = 400, 100, 1e-3


def graph_from(made: Any) -> Graph:
    lists = [sorted(made.neighbors(i)) for i in range(len(made))]
    start = np.cumsum([0] + [len(one) for one in lists]).astype(np.int64)
    return Graph(start, np.concatenate(lists).astype(np.int64))


def small(**keys: Any) -> dict[str, Any]:
    return of_method("random_walk", {"rounds": 4, "method": {"models": 3}}, keys)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", ["ring", "complete", "torus", "erdos_renyi", "watts_strogatz", "star"])
def test_every_hop_goes_along_an_edge_or_nowhere(kind: str, seed: int) -> None:
    graph = make_graph(GraphKeys(kind=kind), 12, seed)
    path = make_walks([graph], 4, [seed], "uniform", Outages())
    edges = {(a, b) for a, b in graph.edges.tolist()}
    for t in range(20):
        for a, b in zip(path.at(t)[0].tolist(), path.at(t + 1)[0].tolist(), strict=True):
            assert (min(a, b), max(a, b)) in edges


def test_the_path_is_a_function_of_seed_and_step_alone() -> None:
    """Round t alone equals round t after 0..t-1, one world alone equals it among others, and folds walk alike."""
    graph = graph_from(IRREGULAR)
    late, early = (make_walks([graph], 3, [7], "metropolis", Outages(0.1, 0.1)) for _ in range(2))
    alone = late.at(50)
    for t in range(120):  # further than it remembers, and back
        early.at(t)
    among = make_walks(
        [graph_from(nx.cycle_graph(10)), graph, graph], 3, [1, 7, 7], "metropolis", Outages(0.1, 0.1)
    ).at(50)
    assert (alone == early.at(50)).all() and (among[1] == alone[0]).all() and (among[1] == among[2]).all()


@pytest.mark.parametrize(
    ("made", "transition", "law"),
    [
        (nx.cycle_graph(10), "uniform", "degree"),
        (nx.cycle_graph(10), "lazy", "degree"),
        (IRREGULAR, "uniform", "degree"),
        (IRREGULAR, "lazy", "degree"),
        (IRREGULAR, "metropolis", "uniform"),
        (nx.star_graph(6), "metropolis", "uniform"),
    ],
)
def test_visits_follow_the_stationary_law(made: Any, transition: str, law: str) -> None:
    """Chi-square at level 0.001: degree / 2E for uniform and lazy steps, 1 / N for Metropolis' on any graph."""
    graph = graph_from(made)
    at = make_walks([graph], WALKS, [3], transition, Outages()).at
    # steps far enough apart to be independent; an even ring is periodic: neighbouring steps see both of its halves
    seen = [at(t) for t in range(200, STEPS, 50)] + [at(t + 1) for t in range(225, STEPS, 50)]
    count = np.bincount(np.concatenate(seen, axis=None), minlength=len(made))
    share = graph.degree / graph.degree.sum() if law == "degree" else np.full(len(count), 1 / len(count))
    expected = share * count.sum()
    assert ((count - expected) ** 2 / expected).sum() < chi2.ppf(1 - LEVEL, len(count) - 1)


def test_no_model_is_lost_where_nodes_and_edges_fail() -> None:
    """Every model has one holder in every step; who is out of order keeps what it holds and is handed nothing."""
    graph = graph_from(nx.complete_graph(8))
    path, outages = make_walks([graph], 6, [5], "uniform", Outages(0.3, 0.3)), Outages(0.3, 0.3)
    moved = 0
    for t in range(60):
        at, after, down = path.at(t)[0], path.at(t + 1)[0], path.down(t)[0]
        assert (at[down] == after[down]).all()
        goes = at != after
        assert not outages.nodes(np.array(5), t + 1, after[goes]).any()
        assert not outages.edges(np.array(5), t, at[goes], after[goes]).any()
        plan = walk_schedule(path)(t, None)
        assert sorted(plan.model.tolist()) == np.flatnonzero(~down).tolist() and (at[plan.model] == plan.client).all()
        moved += int(goes.sum())
    assert 60 < moved < 60 * 6


def test_a_cut_edge_splits_the_walks(tmp_path: Path) -> None:
    """Both bridges of a ring of 6 are cut for ever: no model changes sides."""
    table = tmp_path / "failures.csv"
    table.write_text("first,last,node,neighbour\n0,1000,2,3\n0,1000,0,5\n3,4,1,\n")
    scenario = read_scenario(small(clients={"number": 6}, graph={"failures": str(table)}))
    path = make_walk(scenario, 6, (0,))
    sides = [path.at(t)[0] >= 3 for t in range(40)]
    assert all((side == sides[0]).all() for side in sides)
    assert all(1 not in walk_schedule(path)(t, None).client for t in (3, 4))


def failing(rate: float) -> Callable[..., tuple[dict[str, Any], JobRows]]:
    """Training that leaves the models as they are, and in which jobs fail with a probability."""

    def train(t: int, jobs: SizedPlan, _state: State) -> tuple[dict[str, Any], JobRows]:
        failed = np.flatnonzero(np.random.default_rng(t).random(len(jobs.size)) < rate)
        return {}, JobRows(np.zeros(len(jobs.size)), dict.fromkeys(failed.tolist(), "Traceback"))

    return train


@settings(max_examples=15, deadline=None)
@given(
    kind=st.sampled_from(["ring", "complete", "star", "watts_strogatz"]),
    transition=st.sampled_from(["uniform", "lazy", "metropolis"]),
    failures=st.tuples(st.sampled_from([0.0, 0.3]), st.sampled_from([0.0, 0.3]), st.sampled_from([0.0, 0.4, 1.0])),
    compress=st.sampled_from(["dense", "int8"]),
    seed=st.integers(0, 99),
)
def test_every_hop_is_sent_once_and_received_once(
    kind: str, transition: str, failures: tuple[float, float, float], compress: str, seed: int
) -> None:
    """Conservation: bytes sent = bytes received = hops of the path, whatever nodes, edges and trainings fail."""
    graph = {"kind": kind, "node_failure": failures[0], "edge_failure": failures[1]}
    graph |= {"transition": "uniform" if (kind, transition) in REGULAR else transition}
    read = read_scenario(small(graph=graph, seed=seed, rounds=5, compress={"kind": compress}))
    study = build_study(read)
    path, phase, runtime = make_walk(read, 6, (seed,)), study.method.phase, Inline(study)
    runtime.train = failing(failures[2])  # type: ignore[method-assign]  # fails on purpose
    progress, hops = begin_progress(study), 0
    each = int(phase.compress.bytes(np.zeros(1, int), np.zeros(1, int))[0])
    for t in range(5):
        result = run_round(study, runtime, progress)
        add_round(progress, result)
        hops += int((path.at(t) != path.at(t + 1)).sum())
        assert progress.up_bytes.tolist() == progress.down_bytes.tolist() == [each * hops]
        assert not result.table.steps[result.table.status != clock.OK].any()


@pytest.mark.parametrize("kind", ["topk", "randomk"])
def test_a_sparse_model_differs_from_its_start_in_k_entries_of_its_own(kind: str) -> None:
    """However many hops it has made, and also where it left a client together with another model."""
    keys = {"compress": {"kind": kind, "ratio": 0.05}, "clients": {"number": 2}, "graph": {"kind": "complete"}}
    first, last = (fedray.run(small(**keys, rounds=rounds)).progress.state.models.numpy() for rounds in (0, 4))
    differ = {tuple(np.flatnonzero(one != other).tolist()) for one, other in zip(first, last, strict=True)}
    assert len(differ) == 3 and all(0 < len(entries) <= 0.05 * first.shape[1] for entries in differ)


def test_an_edge_file_is_the_graph(tmp_path: Path) -> None:
    path = tmp_path / "edges.csv"
    path.write_text("node,neighbour\n0,1\n1,2\n2,0\n2,3\n")
    graph = make_graph(GraphKeys(kind="edges", edges=str(path)), 4, 0)
    assert graph.edges.tolist() == [[0, 1], [0, 2], [1, 2], [2, 3]]
