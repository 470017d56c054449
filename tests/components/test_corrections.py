"""FedDyn and SCAFFOLD on quadratics: corrections that remove client drift."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small import train_rounds
from small_data import numbers
from torch import nn

from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study
from fedray.core.types import State
from fedray.data.types import Dataset
from fedray.scenario.loader import read_scenario
from fedray.simulation.rounds import begin_progress
from fedray.simulation.study import Study

D, N = 3, 6  # the quadratics: numbers of a model, clients


def quadratics() -> Dataset:
    """Client i's loss is `1/2 mean (x . w - y)^2` with its own curvature and optimum: rows are its own."""
    g = np.random.default_rng(0)
    each = 8
    scale = np.exp(0.5 * g.normal(size=(N, 1, D)))  # curvatures differ by client and direction
    x = (g.normal(size=(N, each, D)) * scale).astype(np.float32)
    y = (x @ (2.0 * g.normal(size=(N, D, 1)))).astype(np.float32)
    owner = np.repeat(np.arange(N), each)
    return numbers(x.reshape(-1, D), y.reshape(-1, 1), owner)


def quadratic_study(method: dict[str, Any], **local: Any) -> Study:
    tree = {
        "rounds": 1, "runtime": "inline", "method": method, "data": {"name": "table", "path": "x", "target": "y",
        "partition": {"name": "natural"}}, "model": {"name": "linear", "objective": "half_mse"},
        "clients": {"number": N}, "local": {"lr": 0.1, "lr_decay": 1.0, "batch_size": "full", "steps": 5, **local},
    }  # fmt: skip
    own = UserObjects(quadratics(), lambda: nn.Linear(D, 1, bias=False))
    return replace(build_study(read_scenario(tree), own), dtype=torch.float64)


def minimiser() -> np.ndarray:
    """Of the mean of the clients' losses."""
    data = quadratics().train
    x, y = data.x.astype(np.float64), data.y.astype(np.float64)
    return np.linalg.solve(x.T @ x, x.T @ y)[:, 0]


def gradient(i: int, w: np.ndarray) -> np.ndarray:
    """Of client i's loss."""
    data = quadratics().train
    x, y = (part.astype(np.float64).reshape(N, 8, -1)[i] for part in (data.x, data.y))
    return np.asarray(x.T @ (x @ w - y[:, 0]) / len(y))


def gap(state: State) -> float:
    return float(np.abs(state.models[0].numpy() - minimiser()).max())


def test_feddyn_ends_at_the_global_minimiser_and_fedavg_does_not() -> None:
    """Heterogeneous quadratics, five local steps: FedAvg stops short of the minimiser, FedDyn reaches it."""
    still, _ = train_rounds(quadratic_study({"name": "fedavg"}), 60)
    more, _ = train_rounds(quadratic_study({"name": "fedavg"}), 61)
    assert torch.allclose(still.models, more.models, atol=1e-6)  # FedAvg stands still,
    assert gap(still) > 0.3  # at the wrong place
    state, runtime = train_rounds(quadratic_study({"name": "feddyn", "alpha": 1.0}), 80)
    assert gap(state) < 1e-6
    h = runtime.private()["dynamic/rows"]
    assert float(h.mean(0).abs().max()) < 1e-5  # the clients' gradients at the optimum cancel
    assert torch.allclose(h.mean(0), state.extra["dynamic"][0], atol=1e-9)  # the server's is their mean


def test_feddyn_ensemble_brings_every_model_to_the_minimiser() -> None:
    """Each model has its own corrections: K = 2 under the permutation schedule, each from its own start."""
    method = {"name": "feddyn_ensemble", "models": 2, "alpha": 1.0}
    state, runtime = train_rounds(quadratic_study(method), 120)
    assert len(runtime.private()["dynamic/keys"]) == 2 * N
    assert float((state.models - torch.from_numpy(minimiser())).abs().max()) < 1e-4


def test_scaffold_removes_client_drift_and_c_is_the_mean_of_the_clients_controls() -> None:
    state, runtime = train_rounds(quadratic_study({"name": "scaffold"}), 50)
    assert gap(state) < 1e-6
    controls = runtime.private()["control/rows"]
    assert len(controls) == N
    assert torch.allclose(controls.mean(0), state.extra["broadcast/control"][0], atol=1e-10)
    assert float(controls.abs().max()) > 0.1  # they are not zero: clients really differ


def test_scaffold_keeps_its_controls_where_the_learning_rate_is_0() -> None:
    study = quadratic_study({"name": "scaffold"}, schedule={"kind": "linear", "rounds": 3})
    before, after = (train_rounds(study, rounds)[0] for rounds in (3, 4))  # the fourth has a rate of 0
    assert study.method.phase.local.lr_at(3) == 0.0
    control = after.extra["broadcast/control"]
    assert float(control.abs().max()) > 0.0
    assert torch.equal(control, before.extra["broadcast/control"])  # it was NaN


def test_feddyn_is_the_box_of_its_paper() -> None:
    """Three rounds against NumPy, line by line (Acar et al. 2021, Alg. 1)."""
    alpha, lr, steps = 0.2, 0.1, 5
    study = quadratic_study({"name": "feddyn", "alpha": alpha}, steps=steps, lr=lr)
    state, runtime = train_rounds(study, 3)
    w = begin_progress(study).state.models[0].numpy().copy()
    h, server = np.zeros((N, D)), np.zeros(D)
    for _ in range(3):
        ends = []
        for i in range(N):
            u = w.copy()
            for _ in range(steps):
                u -= lr * (gradient(i, u) - h[i] + alpha * (u - w))
            h[i] -= alpha * (u - w)
            ends.append(u)
        server = server - alpha / N * sum(u - w for u in ends)
        w = np.mean(ends, axis=0) - server / alpha
    np.testing.assert_allclose(state.models[0].numpy(), w, rtol=1e-9)
    np.testing.assert_allclose(runtime.private()["dynamic/rows"].numpy(), h, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("pull", [0.0, 0.7])
def test_ditto_is_the_box_of_its_paper(pull: float) -> None:
    """Four rounds of two clients each against NumPy (Li et al. 2021, Alg. 1): the pull is to the broadcast model.

    Without a pull each client trains by itself.
    """
    lr, steps = 0.1, 5
    study = quadratic_study({"name": "ditto", "lambda": pull}, steps=steps, lr=lr)
    whole = study.method.phase.schedule  # a third of the clients a round, in turn
    part = replace(study.method.phase, schedule=lambda t, s: whole(t, s).take(np.arange(N) % 3 == t % 3))
    study = replace(study, method=replace(study.method, phase=part))
    state, runtime = train_rounds(study, 4)
    w = begin_progress(study).state.models[0].numpy().copy()
    mine: dict[int, np.ndarray] = {}
    for t in range(4):
        ends = []
        for i in range(t % 3, N, 3):
            u, v = w.copy(), mine.get(i, w).copy()
            for _ in range(steps):
                u -= lr * gradient(i, u)
                v -= lr * (gradient(i, v) + pull * (v - w))
            ends.append(u)
            mine[i] = v
        w = np.mean(ends, axis=0)
    np.testing.assert_allclose(state.models[0].numpy(), w, rtol=1e-9)
    rows = runtime.private()["personal/0/rows"].numpy()
    np.testing.assert_allclose(rows, np.stack([mine[i] for i in range(N)]), rtol=1e-9)
