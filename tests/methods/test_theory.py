"""The limit theory of Fed-ensemble (Thm. 2, Cor. 1, eq. 10) for a model that is linear in its weights.

Trained members are draws from a Gaussian with mean `m(x) = Theta(x, X) Theta^-1 Y` and covariance
`k(x, x') = C - Theta Theta^-1 C - C Theta^-1 Theta + Theta Theta^-1 C Theta^-1 Theta`; with weights N(0, s^2) before
training `C = s^2 Theta`, so that `k = s^2 (Theta(x, x') - Theta(x, X) Theta^-1 Theta(X, x'))`. Tolerances are quantiles
of the statistics' own laws: a right program fails one of them once in a million runs.
"""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from scipy import stats
from small import scenario
from small_data import LINEAR, numbers

import fedray
from fedray.core.types import FloatArray
from fedray.data.types import Dataset, Split
from fedray.evaluation.regression import decompose_squared_error
from fedray.evaluation.report_data import PLANE_RESOLUTION, find_plane_basis, measure_loss_plane
from fedray.models.net import last_layer_inputs, per_sample
from fedray.runtime.worker import Worker

CHANCE = 1e-6  # of a false alarm
MEMBERS, WEIGHT_SD = 80, 0.7
PLACES = np.array([-0.9, -0.65, -0.3, -0.05, 0.2, 0.45, 0.7, 0.95])  # far apart: Theta is well conditioned
ASKED = np.array([-0.8, -0.5, -0.15, 0.1, 0.33, 0.6])


def toy() -> Dataset:
    """Four clients with two points each; the test inputs are `ASKED`."""
    x, y = PLACES[:, None], np.sin(4 * PLACES)[:, None]
    asked = ASKED[:, None].astype(np.float32)
    return numbers(x, y, np.repeat(np.arange(4), 2), Split(asked, 0 * asked))


def trained(**changes: Any) -> fedray.Run:
    """Full-batch gradient descent under FedAvg until the loss is zero, from many starts."""
    keys: dict[str, Any] = {
        **LINEAR, "rounds": 40, "replicates": MEMBERS, "vary": "init", "method": {"name": "fedavg"},
        "model": {"name": "rbf", "objective": "half_mse", "weight_sd": WEIGHT_SD}, "clients": {"number": 4},
        "local": {"lr": 0.1, "lr_decay": 1.0, "batch_size": "full", "epochs": 10}, "evaluate": {"every": 1000},
    }  # fmt: skip
    return fedray.run({**keys, **changes}, data=toy())


class Limit(NamedTuple):
    """mean `[n]` and covariance `[n, n]` at the test inputs; members `[R, K, n]`."""

    mean: FloatArray
    covariance: FloatArray
    members: FloatArray


def limit(run: fedray.Run) -> Limit:
    study, d = run.study, run.study.net.layout.d
    phi = last_layer_inputs(study.net.module, torch.from_numpy(toy().train.x)).double().numpy()
    at = last_layer_inputs(study.net.module, torch.from_numpy(toy().test.x)).double().numpy()
    solve = np.linalg.solve(phi @ phi.T, np.column_stack([toy().train.y[:, 0], phi @ at.T]))
    covariance = WEIGHT_SD**2 * (at @ at.T - at @ phi.T @ solve[:, 1:])
    weights = run.progress.state.models.double().numpy().reshape(study.worlds, -1, d)
    return Limit(at @ phi.T @ solve[:, 0], covariance, weights @ at.T)


@pytest.fixture(scope="module")
def members() -> Limit:
    return limit(trained())


def test_the_mean_of_the_members_is_that_of_the_limit(members: Limit) -> None:
    """R (mean - m)^T k^-1 (mean - m) is chi-square with n degrees of freedom."""
    off = members.members[:, 0].mean(axis=0) - members.mean
    distance = MEMBERS * off @ np.linalg.solve(members.covariance, off)
    assert distance <= stats.chi2.isf(CHANCE, len(ASKED))


def test_the_covariance_of_the_members_is_that_of_the_limit(members: Limit) -> None:
    """Whitened members are N(0, I).

    The sums `S_jj` of squares over R draws are chi-square, as is their total. The sums of products obey
    `S_ij / sqrt(S_jj)` ~ N(0, 1) exactly, as they do given z_j.
    """
    number = len(ASKED)
    z = np.linalg.solve(np.linalg.cholesky(members.covariance), (members.members[:, 0] - members.mean).T)  # [n, R]
    total = float((z**2).sum())
    low, high = stats.chi2.ppf(CHANCE, number * MEMBERS), stats.chi2.isf(CHANCE, number * MEMBERS)
    assert low <= total <= high
    sums, each = z @ z.T, CHANCE / number**2 / 2  # of every entry, on either side
    squares = np.diag(sums)
    assert (squares >= stats.chi2.ppf(each, MEMBERS)).all()
    assert (squares <= stats.chi2.isf(each, MEMBERS)).all()
    apart = (sums / np.sqrt(squares))[~np.eye(number, dtype=bool)]
    assert np.abs(apart).max() <= stats.norm.isf(each)


def test_fed_ensembles_members_have_the_same_limit() -> None:
    """The permutation schedule changes the way, not the end: every optimum is shared."""
    found = limit(trained(method={"name": "fed_ensemble", "models": 4}, replicates=20, rounds=160))
    everyone = found.members.reshape(-1, len(ASKED))
    off = everyone.mean(axis=0) - found.mean
    assert len(everyone) * off @ np.linalg.solve(found.covariance, off) <= stats.chi2.isf(CHANCE, len(ASKED))
    ensembles = found.members.mean(axis=1)[:, 0]
    ratio = 4 * float(((ensembles - found.mean[0]) ** 2).sum()) / found.covariance[0, 0]
    assert stats.chi2.ppf(CHANCE, 20) <= ratio <= stats.chi2.isf(CHANCE, 20)


def test_repetitions_differ_in_their_first_models_only() -> None:
    run = trained(replicates=3, rounds=1, method={"name": "fed_ensemble", "models": 2})
    jobs = run.clients.to_pandas().pivot(index="client", columns="replicate", values="model")
    assert (jobs.nunique(axis=1) == 1).all()
    assert len({tuple(row) for row in run.progress.state.models.tolist()}) == 6
    sine = {"data": {"name": "sine"}, "vary": "init", "runtime": "inline", "rounds": 1, "replicates": 2}
    assert fedray.run(sine).metrics["noise"] == pytest.approx(0.04 * 1.5, rel=0.01)


def test_bias_variance_and_noise_add_up_to_the_error() -> None:
    """Eq. 10 on the sine toy: the expected squared error to new targets is their sum."""
    generator = np.random.default_rng(0)
    truth = np.sin(np.linspace(0, 6, 50))
    answers = [truth + 0.3 + 0.2 * generator.normal(size=50) for _ in range(4000)]
    rows = decompose_squared_error(answers, truth)
    error = np.mean([(answer - truth) ** 2 for answer in answers])
    assert rows[0]["bias2"] + np.mean([row["variance"] for row in rows]) == pytest.approx(error, rel=1e-9, abs=1e-4)
    assert rows[0]["bias2"] == pytest.approx(0.09, abs=6 * 2 * 0.3 * 0.2 / np.sqrt(50 * 4000))
    each = np.array([row["variance"] for row in rows])
    assert abs(each.mean() - 0.04) <= 6 * each.std() / np.sqrt(4000)


def test_the_interval_widens_where_there_is_no_data() -> None:
    """FE Fig. 2: the ensemble's interval in the gap against that on the data; a single model's is constant."""
    keys = {
        "runtime": "inline", "rounds": 20, "data": {"name": "interval"}, "clients": {"number": 50},
        "model": {"name": "rbf", "objective": "half_mse", "weight_sd": 1.0}, "predict": {"noise": "residual"},
        "local": {"lr": 0.1, "lr_decay": 1.0, "batch_size": "full", "epochs": 10}, "evaluate": {"every": 20},
    }  # fmt: skip

    def widening(method: dict[str, Any]) -> float:
        x, _, _, sd = np.load(fedray.run({**keys, "method": method}).path / "pictures.npz")["predictive"].T
        return float(sd[np.abs(x) < 0.4].mean() / sd[np.abs(x) > 0.5].mean())

    assert widening({"name": "fed_ensemble", "models": 10}) > 2
    assert widening({"name": "fedavg"}) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("model", [{"name": "mlp", "hidden": [8]}, {"name": "cnn", "channels": [3, 4], "hidden": [8]}])
def test_the_plane_has_the_members_losses_at_the_members(
    model: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fig. 3, for stacks of linear layers and for convolutions: the corners of its triangle are the trained models."""
    monkeypatch.setattr("fedray.evaluation.report_data.PLANE_RESOLUTION", PLANE_RESOLUTION)  # as users have it
    keys = {"method": {"models": 3}, "rounds": 20, "model": None, "local": {"lr": 0.2, "epochs": 2}}
    run = fedray.run(scenario(keys, {"model": model}))
    study, state = run.study, run.progress.state
    found = measure_loss_plane(study, state)
    assert found
    assert np.array_equal(np.load(run.path / "pictures.npz")["loss_plane"], found["loss_plane"])
    host = Worker(study)
    x, y = study.pool_rows(0, 100)
    keep = torch.linspace(0, len(x) - 1, min(PLANE_RESOLUTION[host.engine.name.removesuffix("-c")][1], len(x))).long()
    out = host.engine.outputs(
        study.net, state.models[:3], state.counters[:3], x[keep].expand(3, len(keep), *x.shape[1:])
    )
    exact = per_sample(study.net.objective, out, y[keep].expand(3, -1)).double().mean(1).log().numpy()
    left, right, low, high = found["loss_plane_extent"]
    side, slack = len(found["loss_plane"]) - 1, 0.02 * float(np.ptp(found["loss_plane"]))
    for (a, b), value in zip(found["loss_plane_points"], exact, strict=True):
        i, j = round((b - low) / (high - low) * side), round((a - left) / (right - left) * side)
        near = found["loss_plane"][max(0, i - 1) : i + 2, max(0, j - 1) : j + 2]
        assert near.min() - slack <= value <= near.max() + slack


def test_the_basis_of_a_plane_is_orthonormal_and_holds_its_three_points() -> None:
    rows = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    axes, points = find_plane_basis(rows)
    assert (axes @ axes.T).numpy() == pytest.approx(np.eye(2), abs=1e-12)
    again = rows[0].double() + torch.from_numpy(points) @ axes
    assert torch.allclose(again, rows.double(), atol=1e-12)
