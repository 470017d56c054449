"""Bases of a stack that are no networks: every client fits a classifier, and what leaves a fold out is their vote."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.naive_bayes import GaussianNB
from small import copy_run, rows, scenario, train_rounds
from stacks import BOTH, CLASSES, CLIENTS, EACH, STACK, WITHIN, features, rows_in, study, table
from uploads import merge_stats

import fedray
from fedray.core.method import Answer
from fedray.core.types import State
from fedray.data.types import Dataset
from fedray.features.stacking import LeaveOutShards
from fedray.runtime.session import Inline
from fedray.runtime.stacking import FittedVotes
from fedray.scenario.options import CLASSIFIERS
from fedray.simulation.rounds import begin_progress, size_jobs
from fedray.simulation.study import Study, ask_outputs

FOREST = {"name": "sklearn/random_forest", "n_estimators": 3, "max_depth": 4}
X = torch.from_numpy(table().test.x)


def beside(base: dict[str, Any], *changes: dict[str, Any], data: Dataset | None = None) -> Study:
    """A small perceptron, and a base that votes."""
    return study({"method": {"bases": [{"name": "mlp", "hidden": [6]}, base]}}, *changes, data=data)


def shares(made: Study, x: torch.Tensor = X) -> np.ndarray:
    """How base 1 votes without each fold, `[F, n, C]`."""
    return FittedVotes(made.parts).shares(1, 0, range(made.parts[1].folds), x)


@BOTH
def test_a_vote_is_the_share_of_the_clients_classifiers(folds: dict[str, Any]) -> None:
    """Counted here with scikit-learn itself, on the rows that are not left out."""
    made, train = beside({"name": "sklearn/gaussian_nb"}, folds), table().train
    shards = made.parts[1].study.shards
    assert isinstance(shards, LeaveOutShards)
    found = shares(made)
    np.testing.assert_allclose(found.sum(axis=-1), 1.0)
    for fold in range(shards.folds):
        counts, voters = np.zeros((len(X), CLASSES)), 0
        for client in range(CLIENTS):
            mine = client * EACH + np.flatnonzero(shards.fold_of(0, client, EACH) != fold)
            if len(mine):
                said = GaussianNB().fit(train.x[mine].astype(np.float64), train.y[mine]).predict(X.double().numpy())
                counts, voters = counts + np.eye(CLASSES)[said], voters + 1
        assert voters == CLIENTS - (not folds)
        np.testing.assert_allclose(found[fold], counts / voters)


@pytest.mark.parametrize(("base", "folds"), [({"name": "sklearn/decision_tree"}, {}), (FOREST, WITHIN)])
def test_other_data_in_a_fold_changes_no_vote_of_that_fold(base: dict[str, Any], folds: dict[str, Any]) -> None:
    before = beside(base, folds)
    after = beside(base, folds, data=table(change=rows_in(before.parts[1], 2)))
    same = (shares(before) == shares(after)).reshape(before.parts[1].folds, -1).all(1)
    assert same.tolist() == [fold == 2 for fold in range(len(same))]


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_client_of_one_class_votes_for_no_other(name: str) -> None:
    found = shares(beside({"name": name}, data=table(owner=np.arange(CLIENTS * EACH) % CLASSES)))
    want = (1 - np.eye(CLASSES)) / (CLASSES - 1)
    np.testing.assert_array_equal(found, np.broadcast_to(want[:, None], found.shape))


def test_a_client_without_rows_does_not_vote() -> None:
    """Three folds within the clients; the last one holds one row, which is left out once."""
    owner = np.minimum(np.arange(CLIENTS * EACH) // 27, 2)
    owner[-1] = 3
    made = beside({"name": "sklearn/gaussian_nb"}, WITHIN, data=table(owner=owner))
    shards = made.parts[1].study.shards
    assert isinstance(shards, LeaveOutShards)
    without = int(shards.fold_of(0, 3, 1)[0])
    for fold, found in enumerate(shares(made)):
        voters = CLIENTS - (fold == without)
        np.testing.assert_allclose(found * voters, np.round(found * voters))
        assert fold == without or found[:, table().train.y[-1]].min() >= 1 / voters


@BOTH
def test_votes_are_features_like_probabilities(folds: dict[str, Any]) -> None:
    """Out of fold: a row is answered by the vote that leaves it out. The classifiers are no numbers of the stack."""
    made = beside(FOREST, folds)
    state, _ = train_rounds(made, 3)
    found = features(made, state)
    for fold, said in enumerate(shares(made, torch.from_numpy(table().train.x))):
        rows = rows_in(made.parts[1], fold)
        np.testing.assert_allclose(found[rows, CLASSES:], said[rows], atol=1e-6)
    sizes = [part.study.net.layout.d for part in made.parts]
    assert made.net.layout.d == made.parts[0].folds * sizes[0] + sizes[2]
    assert sizes[1:] == [0, CLASSES * (2 * CLASSES + 1)]


def test_who_fits_the_classifiers_changes_no_bit() -> None:
    """Each round's jobs dealt to two processes' worth of hosts, each of which fits what it needs, with two threads."""
    made = beside(FOREST, WITHIN)
    phase, want = made.method.phase, train_rounds(made, 6)[0]
    hosts, state = [Inline(made, threads=2) for _ in range(2)], begin_progress(made).state
    for t in range(6):
        jobs = size_jobs(made, phase.schedule(t, state))
        stats = [host.train(t, jobs.take(slice(i, None, 2)), state)[0] for i, host in enumerate(hosts)]
        state = phase.server.step(state, merge_stats(stats), t)
    assert torch.equal(state.models, want.models)
    here = State(want.models, want.counters, {})
    assert torch.equal(*(ask_outputs(host, Answer(here, 1), "test")[0, 0] for host in hosts))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedray.Run:
    """A perceptron, a forest and a tree, one checkpoint a round."""
    bases = [{"name": "mlp", "hidden": [6]}, FOREST, {"name": "sklearn/decision_tree"}]
    given = scenario(STACK, {"method": {"bases": bases}, "checkpoint": {"every": 1, "keep": 9}})
    return fedray.run(given, data=table(), report=False, out=tmp_path_factory.mktemp("votes") / "run")


def test_a_killed_run_ends_in_the_same_bits(run: fedray.Run, tmp_path: Path) -> None:
    """The classifiers are fitted again."""
    again = fedray.resume(copy_run(run, tmp_path / "run", 2), data=table())
    assert again.summary["state_hash"] == run.summary["state_hash"]
    assert rows(again.rounds) == rows(run.rounds)


def test_the_run_answers_and_scores_its_votes(run: fedray.Run) -> None:
    """`Run.predict` scores what was reported; a vote is a base among others, and costs no job and no byte."""
    last = run.rounds.to_pylist()[-1]
    said = run.predict(table().test.x).probabilities
    assert said is not None
    assert (said.argmax(-1) == table().test.y).mean() == pytest.approx(last["accuracy"])
    for i, each in ((1, shares(run.study)), (2, FittedVotes(run.study.parts).shares(2, 0, range(CLIENTS), X))):
        right = [(one.argmax(-1) == table().test.y).mean() for one in each]
        assert [last[f"accuracy_base_{i}_fold_{f}"] for f in range(CLIENTS)] == pytest.approx(right)
    jobs = run.clients.to_pandas()
    assert set(jobs["model"]) == {*range(CLIENTS), 3 * CLIENTS}
    d = [part.study.net.layout.d for part in run.study.parts]
    assert jobs.query("round == 4")["down_bytes"].unique().tolist() == [4 * (d[3] + d[0])]
