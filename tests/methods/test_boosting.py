"""Boosting: one client's AdaBoost.F is scikit-learn's, and many clients' is the paper's algorithm."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import AdaBoostClassifier
from sklearn.tree import DecisionTreeClassifier
from small import list_states, train_rounds

import fedray
from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study
from fedray.core import rng
from fedray.core.types import State
from fedray.data.types import Dataset, Split, classification
from fedray.features import boosting
from fedray.runtime.session import Inline
from fedray.runtime.stacking import make_worker
from fedray.scenario.loader import read_scenario
from fedray.scenario.nested import merge_keys
from fedray.simulation.rounds import begin_progress, run_round, size_jobs
from fedray.simulation.study import Study

BOOSTED = ["adaboost_f", "distboost_f", "preweak_f"]
CLIENTS, CLASSES, ROUNDS = 4, 3, 6


def blobs(clients: int, each: int = 60) -> Dataset:
    """Three classes that overlap, over natural clients; the statistics leave the inputs as they are."""
    numbers, n = np.random.default_rng(3), clients * each
    y = numbers.integers(CLASSES, size=n)
    x = (numbers.normal(size=(n, 4)) + np.eye(4)[y]).astype(np.float32)
    test = Split(x[:50] + 0.1, y[:50], y[:50] % clients)
    made = classification("blobs", Split(x, y, np.repeat(np.arange(clients), each)), test, tuple("abc"))
    return made._replace(shift=np.zeros((1, 4), np.float32), scale=np.ones((1, 4), np.float32))


def keys(method: str, *changes: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {
        "rounds": ROUNDS, "runtime": "inline", "report": False, "evaluate": {"every": 1},
        "method": {"name": method, "learner": {"max_leaf_nodes": 4}}, "data": {"partition": {"name": "natural"}},
    }  # fmt: skip
    for change in changes:
        tree = merge_keys(tree, change)
    return tree


def study_of(method: str, *changes: dict[str, Any], clients: int = CLIENTS) -> Study:
    return build_study(read_scenario(keys(method, *changes)), UserObjects(data=blobs(clients)))


def parts(study: Study, state: State) -> dict[str, torch.Tensor]:
    return study.net.layout.views(state.models[0])


def weights(study: Study, state: State, t: int) -> list[np.ndarray]:
    """The weights of each client's rows before round t, computed afresh."""
    return [work_of(study)._weigh(job_of(study, state, t, i))[0] for i in range(study.clients.number)]


def work_of(study: Study) -> boosting.FitTrees:
    work = study.method.phase.work
    assert isinstance(work, boosting.FitTrees)
    return work


def job_of(study: Study, state: State, t: int, client: int) -> boosting.OneJob:
    """A job in a process that knows nothing yet."""
    worker = make_worker(study)
    return boosting.OneJob(worker, boosting.ClientCache(), t, state, client, 0, boosting.read_rows(worker, 0, client))


def fit(study: Study, state: State, t: int, client: int) -> torch.Tensor:
    """The learners of a client, `[F, n, 3]`."""
    found: torch.Tensor = work_of(study)._fit(job_of(study, state, t, client))[0]["learners"].rows[0, 0, client]
    return found


class Addressed(np.random.RandomState):
    """Gives scikit-learn's AdaBoost the seeds that this client's learners have."""

    def __init__(self, seeds: list[int]) -> None:
        self.seeds = iter(seeds)

    def randint(self, *_arguments: Any, **_keys: Any) -> int:  # type: ignore[override]  # as much as is asked
        return next(self.seeds)


def test_one_clients_adaboost_f_is_scikit_learns_adaboost() -> None:
    """Learner by learner: the same trees, errors, weights, decisions and classes. The weights go to the learners."""
    rounds, data = 12, blobs(1, each=400)
    tree = keys("adaboost_f", {"method": {"draw": "weights"}, "rounds": rounds})
    study = build_study(read_scenario(tree), UserObjects(data=data))
    state = train_rounds(study, rounds)[0]
    seeds = [int(rng.keys(0, "learner", t, 0, 0) % np.uint64(2**32)) for t in range(rounds)]
    x, y, one = data.train.x, data.train.y, DecisionTreeClassifier(max_leaf_nodes=4)
    theirs = AdaBoostClassifier(one, n_estimators=rounds, random_state=Addressed(seeds)).fit(x, y)
    mine = parts(study, state)
    np.testing.assert_allclose(mine["alpha"].numpy(), theirs.estimator_weights_, rtol=1e-5)
    for t, tree in enumerate(theirs.estimators_):
        assert torch.equal(mine["trees"][t, 0], boosting.write_tree(tree, 4)), t
    shares = Inline(study).worker.forward(state.models, state.counters, 0, torch.from_numpy(x))[0].exp().numpy()
    decision = theirs.decision_function(x)  # of a class with the share v it is (C v - 1) / (C - 1)
    np.testing.assert_allclose((CLASSES * shares - 1) / (CLASSES - 1), decision, atol=1e-5)
    np.testing.assert_array_equal(shares.argmax(1), theirs.predict(x))


def wrong_rows(study: Study, learners: torch.Tensor) -> list[np.ndarray]:
    """On which rows of each client a committee `[S, n, 3]` is wrong."""
    each = [boosting.read_rows(make_worker(study), 0, i) for i in range(study.clients.number)]
    return [(boosting.vote(boosting.classify_rows(learners, one.x), CLASSES) != one.y).numpy() for one in each]


@pytest.mark.parametrize("method", BOOSTED)
def test_a_round_is_the_papers(method: str) -> None:
    """Errors over all clients, the least one, SAMME's weight and the new weights, computed here as they are printed."""
    study = study_of(method)
    states, _ = list_states(study, ROUNDS)
    own = [np.full(60, 1 / (60 * CLIENTS)) for _ in range(CLIENTS)]
    pool = states[1].extra.get(boosting.CANDIDATES)
    for t in range(ROUNDS):
        if pool is None:
            sent = [fit(study, states[t], t, i) for i in range(CLIENTS)]
            found = torch.stack(sent)
            candidates = found[:, 0][None] if method == "distboost_f" else found
        else:
            candidates = pool[0]
        error = [
            sum(d[w].sum() for d, w in zip(own, wrong_rows(study, one), strict=True))
            if boosting.has_root(one).any()
            else 9.0
            for one in candidates
        ]
        best, e = int(np.argmin(error)), min(error)
        mine = parts(study, states[t + 1])
        assert torch.equal(mine["trees"][t], candidates[best])
        alpha = math.log((1 - e) / (e + 1e-10)) + math.log(CLASSES - 1)
        assert float(mine["alpha"][t]) == pytest.approx(alpha, rel=1e-4)
        own = [d * np.exp(alpha * w) for d, w in zip(own, wrong_rows(study, candidates[best]), strict=True)]
        whole = sum(d.sum() for d in own)
        own = [d / whole for d in own]
        for mine_, theirs in zip(weights(study, states[t + 1], t + 1), own, strict=True):
            np.testing.assert_allclose(mine_, theirs, rtol=1e-4)


def test_a_clients_learner_is_fitted_on_rows_that_are_drawn_by_their_weights() -> None:
    """The tree is that of the drawn rows, and rows that were wrong are drawn more often."""
    study = study_of("adaboost_f")
    states, runtime = list_states(study, 3)
    one, weight = boosting.read_rows(runtime.worker, 0, 1), weights(study, states[2], 2)[1]
    ends, numbers = np.cumsum(weight), rng.uniform(rng.keys(0, "drawn rows", 2, 1, 0), 60)
    drawn = np.searchsorted(ends, numbers * ends[-1], side="right")
    seed = int(rng.keys(0, "learner", 2, 1, 0) % np.uint64(2**32))
    tree = DecisionTreeClassifier(max_leaf_nodes=4, random_state=seed).fit(one.x.numpy()[drawn], one.y.numpy()[drawn])
    found = fit(study, states[2], 2, 1)[0]
    assert torch.equal(found, boosting.write_tree(tree, 4))
    assert np.average(weight, weights=np.bincount(drawn, minlength=60)) > weight.mean()


def test_bagging_is_the_vote_of_trees_on_bootstraps() -> None:
    study = study_of("federated_bagging")
    state = train_rounds(study, ROUNDS)[0]
    mine = parts(study, state)
    assert mine["alpha"].tolist() == [1.0] * ROUNDS
    assert bool(boosting.has_root(mine["trees"]).all())
    x = torch.from_numpy(blobs(CLIENTS).train.x)
    said = boosting.classify_rows(mine["trees"].flatten(0, 1), x).numpy()
    shares = np.stack([(said == c).mean(1) for c in range(CLASSES)], axis=1)
    found = Inline(study).worker.forward(state.models, state.counters, 0, x)[0].exp().numpy()
    np.testing.assert_allclose(found, np.maximum(shares, 1e-30), atol=1e-6)


def test_boosting_stops_where_no_learner_is_better_than_guessing(tmp_path: Path) -> None:
    """All inputs are alike: soon every learner is chance. None of those joins, and the run says why it ended."""
    data = blobs(2)
    noise = data._replace(train=data.train._replace(x=np.zeros_like(data.train.x)))
    run = fedray.run(keys("adaboost_f", {"rounds": 50}), data=noise, out=tmp_path / "run")
    assert "no learner is better than guessing" in run.summary["stopped"]
    done = run.summary["rounds"]
    assert done < 50
    alpha = run.study.net.layout.views(run.progress.state.models[0])["alpha"]
    assert int((alpha > 0).sum()) == done - 1 and float(alpha[done - 1]) == 0.0  # the last round added none


@pytest.mark.parametrize("method", BOOSTED)
def test_what_a_process_remembers_changes_no_bit(method: str) -> None:
    """Every round in a process that has seen nothing, or another run; and seed 5, whose first job is lost, alone."""
    lost = {"participation": {"per_round": 1, "dropout": 0.5}}
    study, alone = (study_of(method, lost, seeds) for seeds in ({"seed": 4, "replicates": 2}, {"seed": 5}))
    states, runtime = list_states(study, 4)
    assert torch.equal(list_states(alone, 4)[0][-1].models[0], states[-1].models[1])
    progress, _ = begin_progress(study), list_states(study, 2)
    for t in range(4):
        fresh = Inline(study) if t % 2 else runtime
        progress.state = run_round(study, fresh, progress).state
        progress.round += 1
        assert torch.equal(progress.state.models, states[t + 1].models)


def test_a_process_that_knows_another_ensemble_weighs_the_rows_afresh() -> None:
    """Of as many rounds, but the third one added nothing."""
    study = study_of("adaboost_f")
    states, _ = list_states(study, 3)
    other = states[3]._replace(models=states[2].models)
    jobs = size_jobs(study, study.method.phase.schedule(3, other))
    worker, fresh = make_worker(study), make_worker(study)
    worker.train(3, jobs, states[3])
    found, wanted = (one.train(3, jobs, other)[0]["learners"].rows for one in (worker, fresh))
    assert all(torch.equal(found[key], wanted[key]) for key in wanted)


@pytest.mark.parametrize("method", BOOSTED)
def test_weights_of_absent_clients_may_grow_without_bound(method: str) -> None:
    """A learner that knows the only class of the only participant has alpha = 25, and is wrong everywhere else."""
    classes = {"limit": 100, "partition": {"name": "classes", "classes": 1}}
    rounds = {"rounds": 40, "evaluate": {"every": 40}, "participation": {"per_round": 1}}
    run = fedray.run(keys(method, {"data": classes, "clients": {"number": 10}}, rounds))
    named = parts(run.study, run.progress.state)
    assert bool(torch.isfinite(named["alpha"]).all() & torch.isfinite(named["scale"]).all())
    assert float((named["alpha"].double() - named["scale"]).clamp(min=0.0).sum()) > 28 * math.log(2)
    known = weights(run.study, run.progress.state, 40)
    assert all(0.0 < own.sum() < 2.0**28 for own in known)


def test_learners_errors_and_choices_are_counted_as_they_are_sent() -> None:
    """4 clients, trees of 4 leaves: 7 nodes of 12 bytes."""
    tree = 84
    expected = {
        "adaboost_f": [(tree + 8 * 5, 4 * tree), (tree + 8 * 5, 4 * tree + 8)],
        "distboost_f": [(tree + 8 * 2, 4 * tree), (tree + 8 * 2, 4 * tree + 8)],
        "preweak_f": [(6 * tree + 8 * 25, 24 * tree), (8 * 25, 8)],
        "federated_bagging": [(tree, 0), (tree, 0)],
    }  # fmt: skip
    for method, rounds in expected.items():
        phase = study_of(method).method.phase
        for t, both in enumerate(rounds):
            assert phase.traffic is not None
            up, down = phase.traffic(t, phase.schedule(t, None))
            assert [(int(u), int(d)) for u, d in zip(up, down, strict=True)] == [both] * CLIENTS, method


def test_a_client_that_was_away_fetches_what_it_has_missed() -> None:
    """Half of the clients a round: bytes down are this round's learners, and one learner for each round missed."""
    phase = study_of("adaboost_f", {"participation": {"per_round": 2}}).method.phase
    assert phase.traffic is not None
    seen: dict[int, int] = {}
    for t in range(ROUNDS):
        plan = phase.schedule(t, None)
        for client, down in zip(plan.client.tolist(), phase.traffic(t, plan)[1].tolist(), strict=True):
            last = seen.get(client, -1)
            assert down == 2 * 84 + 8 * (last >= 0) + (t - 1 - last) * (84 + 8)
            seen[client] = t
    assert phase.traffic(2, phase.schedule(2, None))[1].sum() > 0  # an earlier round again
