"""FedFisher and FedBEns as runs: where they are FedAvg, the pooled optimum, bytes, the server's rows, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small import scenario

import fedray
from fedray.core.errors import ScenarioWarning
from fedray.core.types import FloatArray, Stats, Uploads
from fedray.data.types import Dataset, Split
from fedray.features.measure import sum_curvature
from fedray.methods import Curvature, Method, Setting, federated

ONE: dict[str, Any] = {"rounds": 1, "local": {"momentum": 0.5}}  # the default of FedAvg is none


def run(name: str, *changes: dict[str, Any], **options: Any) -> fedray.Run:
    return fedray.run(scenario({"method": {"name": name, **options}}, *changes), report=False)


def models(one: fedray.Run) -> torch.Tensor:
    return one.progress.state.models


def fit_line(x: FloatArray, y: FloatArray) -> FloatArray:
    """Slopes and intercept of least squares, `[3]`."""
    return np.asarray(np.linalg.lstsq(np.column_stack([x, np.ones(len(x))]), y[:, 0], rcond=None)[0], dtype=np.float64)


def lines(sides: tuple[tuple[float, float], ...], same: bool = False) -> tuple[Dataset, FloatArray, FloatArray]:
    """Clients whose inputs have a diagonal second moment, the best line of all rows, and the mean of the best lines.

    The four corners of a rectangle have the mean zero and do not correlate; each client has corners of its own, or all
    have the same ones, and targets of its own.
    """
    generator = np.random.default_rng(0)
    corners = np.array([(1, 1), (1, -1), (-1, 1), (-1, -1)], dtype=float)
    times = [1] * len(sides) if same else [1, 3, 2][: len(sides)]
    inputs = [np.tile(corners * ((1.2, 0.7) if same else side), (n, 1)) for side, n in zip(sides, times, strict=True)]
    targets = [generator.normal(size=(len(x), 1)) + x @ generator.normal(size=(2, 1)) for x in inputs]
    best = [fit_line(x, y) for x, y in zip(inputs, targets, strict=True)]
    x, y = np.concatenate(inputs), np.concatenate(targets)
    pooled = fit_line(x, y)
    zero, one = np.zeros((1, 2), np.float32), np.ones((1, 2), np.float32)
    owner = np.repeat(np.arange(len(sides)), [len(part) for part in inputs])
    train = Split(x.astype(np.float32), y.astype(np.float32), owner)
    share = np.bincount(owner) / len(owner)
    return (
        Dataset("lines", train, Split(train.x[:4], train.y[:4]), 0, (), zero, one, zero[:, :1], one[:, :1]),
        pooled,
        (share[:, None] * np.array(best)).sum(0),
    )


SIDES = ((1.5, 0.5), (0.6, 1.4), (1.0, 1.0))


def fit(data: Dataset, method: Any, **more: Any) -> FloatArray:
    """One round in which every client comes to its own optimum."""
    keys: dict[str, Any] = {
        "runtime": "inline",
        "rounds": 1,
        "data": {"name": "interval", "partition": {"name": "natural"}},
        "clients": {"number": 3},
        "model": {"name": "linear", "objective": "half_mse"},
        "local": {"lr": 0.4, "batch_size": "full", "epochs": 150, "momentum": 0},
        "server": {"weighting": "examples"},
        "report": False,
    }
    found: FloatArray = fedray.run({**keys, "method": method, **more}, data=data).progress.state.models.double().numpy()
    return found


@pytest.mark.parametrize("method", ["fedfisher", "fedbens"])
def test_on_quadratic_losses_with_diagonal_hessians_it_is_the_pooled_optimum(method: str) -> None:
    """Least squares of clients with other inputs, targets and sizes; FedAvg ends elsewhere."""
    data, pooled, average = lines(SIDES)
    each: dict[str, dict[str, Any]] = {
        "fedfisher": {"damping": 0},
        "fedbens": {"precision": 1e-9, "prior": 0, "models": 2},
    }
    found = fit(data, {"name": method, **each[method]})
    np.testing.assert_allclose(found, np.broadcast_to(pooled, found.shape), atol=2e-6)
    np.testing.assert_allclose(fit(data, "fedavg")[0], average, atol=2e-6)
    assert np.abs(average - pooled).max() > 0.05


def test_where_the_fishers_of_all_clients_are_equal_one_round_is_fedavgs() -> None:
    """The Fisher of least squares is about inputs alone, which are the same for all; targets are not."""
    data, pooled, average = lines(SIDES, same=True)
    few: dict[str, Any] = {"lr": 0.1, "batch_size": 2, "epochs": 3, "momentum": 0}
    one, other = (fit(data, name, local=few)[0] for name in ("fedfisher", "fedavg"))
    np.testing.assert_allclose(one, other, atol=1e-6)
    np.testing.assert_allclose(average, pooled, atol=1e-6)  # then the mean of the optima is the optimum
    assert np.abs(one - pooled).max() > 1e-2


def test_a_damping_beside_which_all_fishers_are_small_makes_it_fedavg() -> None:
    average = models(run("fedavg", ONE))
    torch.testing.assert_close(models(run("fedfisher", ONE, damping=1e6)), average, rtol=0, atol=1e-6)
    assert (models(run("fedfisher", ONE)) - average).abs().max() > 1e-2


@pytest.mark.parametrize(("method", "jobs"), [("fedfisher", 6), ("fedbens", 18)])
def test_an_upload_has_two_vectors_and_a_download_one(method: str, jobs: int) -> None:
    one = run(method, ONE)
    d = models(one).shape[1]
    last = one.rounds.to_pylist()[-1]
    assert last["up_bytes"] == 2 * 4 * d * jobs
    assert last["down_bytes"] == 4 * d * jobs
    sparse: dict[str, Any] = {"compress": {"kind": "topk", "ratio": 0.1}}
    kept = run("fedavg", ONE, sparse).rounds.to_pylist()[-1]["up_bytes"] // 6
    assert run(method, ONE, sparse).rounds.to_pylist()[-1]["up_bytes"] == (4 * d + kept) * jobs


def test_models_of_fedbens_train_side_by_side_at_every_client() -> None:
    table = run("fedbens", ONE, models=2).clients.to_pylist()
    assert sorted((row["client"], row["model"]) for row in table) == [(c, k) for c in range(6) for k in range(2)]


@pytest.mark.parametrize("method", ["fedfisher", "fedbens"])
def test_what_a_client_measures_does_not_depend_on_the_jobs_beside_it(method: str) -> None:
    """Of two replicates the first one has the bits that it has alone; rows are drawn, by round and client."""
    both = run(method, {"rounds": 2, "replicates": 2}, models=2, fisher_rows=7)
    alone = run(method, {"rounds": 2}, models=2, fisher_rows=7)
    assert torch.equal(models(both)[:2], models(alone))
    assert not torch.equal(models(alone), models(run(method, {"rounds": 2}, models=2)))


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_fedbens_counts_the_rows_of_a_worlds_own_clients(weighting: str) -> None:
    """Replicates whose participants have other numbers of rows: each has the bits that it has alone."""
    few: dict[str, Any] = {**ONE, "participation": {"per_round": 2}, "server": {"weighting": weighting}}
    both = models(run("fedbens", few, {"replicates": 2}, models=2)).view(2, 2, -1)
    for seed, found in enumerate(both):
        assert torch.equal(found, models(run("fedbens", few, {"seed": seed}, models=2)))


def test_more_rows_than_a_client_has_are_all_of_them() -> None:
    assert torch.equal(models(run("fedfisher", ONE, fisher_rows=10**6)), models(run("fedfisher", ONE)))


def test_the_server_has_rows_of_its_own_only_where_it_descends() -> None:
    """With rows it stays at least as good on them as the mean; without them it makes all of its steps."""
    whole = run("fedfisher", ONE)
    held = run("fedfisher", ONE, solver="descent", validation=0.25)
    assert sum(row["samples"] for row in whole.clients.to_pylist()) == 240
    assert sum(row["samples"] for row in held.clients.to_pylist()) == 180
    free = run("fedfisher", ONE, solver="descent", validation=0)
    assert sum(row["samples"] for row in free.clients.to_pylist()) == 240
    apart, first = ((models(free) - models(one)).norm() for one in (whole, run("fedavg", ONE)))
    assert 0 < float(apart) < 0.5 * float(first)  # nearer the optimum than where it began
    assert not torch.equal(models(free), models(run("fedfisher", ONE, solver="descent", validation=0, solver_steps=1)))


def test_clients_measure_at_the_models_that_they_have_trained_by_all_of_their_rows() -> None:
    seen: list[Uploads] = []

    def compose(setting: Setting) -> Method:
        phase = federated(setting)
        base = phase.server

        def reduce(uploads: Uploads) -> Stats:
            seen.append(uploads)
            return base.reduce(uploads)

        return Method("own", replace(phase.add(Curvature()), server=base._replace(reduce=reduce)))

    study = fedray.run(scenario(ONE), method=compose, report=False).study
    start, where = models(fedray.run(scenario(ONE, {"rounds": 0}), report=False)), torch.tensor([0])
    sent = {int(client): (one, j) for one in seen for j, client in enumerate(one.client)}
    assert len(sent) == 6
    for client, (uploads, j) in sent.items():
        fetched = study.shards.fetch(np.array([0]), np.array([client]))
        rows = fetched.rows[0, : int(fetched.size[0])]
        x, y = study.shards.normalize(fetched.x[rows][None], where)[0], fetched.labels(rows, 0)
        began = start[uploads.model[j]]
        wanted = sum_curvature(study.net, began + uploads.delta[j], x, y, "model") / len(rows)
        assert uploads.beside is not None
        torch.testing.assert_close(uploads.beside[j].double(), wanted, rtol=1e-4, atol=1e-8)
        other = sum_curvature(study.net, began, x, y, "model") / len(rows)
        assert (other - wanted).abs().max() > 1e-3


def test_a_method_of_ones_own_may_ask_for_curvature() -> None:
    """It is the method's `beside`; with FedAvg's server it changes nothing but the bytes."""

    def compose(setting: Setting) -> Method:
        return Method("own", federated(setting).add(Curvature("empirical", 3)))

    own = fedray.run(scenario(ONE), method=compose, report=False)
    plain = fedray.run(scenario(ONE), report=False)
    assert torch.equal(models(own), models(plain))
    assert own.rounds.to_pylist()[-1]["up_bytes"] == 2 * plain.rounds.to_pylist()[-1]["up_bytes"]


@pytest.mark.parametrize(
    ("piece", "said"),
    [
        ("model", "pieces has a str: give a Piece"),
        (Curvature("full"), r"Curvature\.kind = 'full': choose model or empirical"),  # type: ignore[arg-type]
        (Curvature(rows=0), r"Curvature\.rows = 0: give a whole number"),
    ],
)
def test_curvature_of_a_method_of_ones_own_is_checked(piece: Any, said: str) -> None:
    def compose(setting: Setting) -> Method:
        return Method("own", federated(setting).add(piece))

    with pytest.raises(fedray.BadInput, match=said):
        fedray.run(scenario(ONE), method=compose, report=False)


def test_what_cannot_act_or_does_not_combine_is_refused_in_one_line() -> None:
    with pytest.raises(fedray.BadInput, match=r"method\.solver_steps = 5 cannot act, because method\.solver is exact"):
        run("fedfisher", solver_steps=5)
    with pytest.raises(fedray.BadInput, match=r"method\.validation = 0\.1 cannot act"):
        run("fedbens", validation=0.1)
    with pytest.raises(fedray.BadInput, match=r"method\.prior = 20, but method\.precision is 10"):
        run("fedbens", prior=20)
    with pytest.raises(fedray.BadInput, match=r"fedfisher weighs the uploads of a round by their curvature"):
        run("fedfisher", {"participation": {"mode": "async"}})
    with pytest.raises(fedray.BadInput, match=r"method\.validation = 0\.001 leaves the server no rows"):
        run("fedbens", solver="descent", validation=0.001)
    with pytest.warns(ScenarioWarning, match=r"method\.models = 1 makes it FedFisher with a prior"):
        run("fedbens", ONE, models=1)
