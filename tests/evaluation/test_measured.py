"""Scores and residuals on the rows that models were trained on."""

from typing import Any

import numpy as np
import pytest
import torch

import fedray
from fedray.core.errors import FedrayWarning
from fedray.core.types import State
from fedray.runtime.worker import Worker
from fedray.simulation.study import mean_losses

CUBIC: dict[str, Any] = {"data": {"name": "cubic"}, "local": {"lr": 0.01, "epochs": 2}}
QUIET: dict[str, Any] = {"runtime": "inline", "report": False, "rounds": 2}
UNEVEN: dict[str, Any] = {
    **QUIET,
    "data": {"partition": {"name": "lognormal", "sigma": 4.0, "min_rows": 0}},
    "clients": {"number": 8},
    "local": {"lr": 0.05, "epochs": 10},
}


def noisy_line(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of a noisy noisy_line."""
    x = torch.linspace(-1.0, 1.0, n)[:, None]
    return x, 3.0 * x + torch.from_numpy(np.random.default_rng(0).normal(size=(n, 1))).float()


def find_variances(run: fedray.Run, state: State, models: int) -> np.ndarray[Any, Any]:
    """Mean squared error of each model on each client's rows, `[models, N]`, in standardized units."""
    losses = mean_losses(Worker(run.study), state, 0, np.arange(run.study.clients.number), models=models).numpy()
    found: np.ndarray[Any, Any] = losses * (2.0 if run.study.net.objective == "half_mse" else 1.0)
    return found


def find_filled(run: fedray.Run) -> np.ndarray[Any, Any]:
    """Which clients have rows, `[N]`."""
    client = np.arange(run.study.clients.number)
    filled: np.ndarray[Any, Any] = run.study.shards.sizes(np.zeros_like(client), client) > 0
    return filled


def read_residual(run: fedray.Run) -> float:
    """The residual variance that a run reports, in standardized units."""
    return float((run.summary["metrics"]["residual_sd"]["mean"] / run.study.target_scale(0)) ** 2)


def test_clients_without_rows_do_not_count_as_clients_without_residuals() -> None:
    run = fedray.run({**UNEVEN, "method": {"name": "fedavg"}}, data=noisy_line(60))
    variances, filled = find_variances(run, run.progress.state, 1)[0], find_filled(run)
    assert not filled.all()
    assert (variances[~filled] == 0.0).all()
    assert read_residual(run) == pytest.approx(variances[filled].mean())


def test_residuals_of_clients_by_themselves_are_those_of_each_model_at_its_own_client() -> None:
    with pytest.warns(FedrayWarning):
        run = fedray.run({**UNEVEN, "method": {"name": "local_only"}}, data=noisy_line(60))
    variances, filled = find_variances(run, run.progress.state, 8), find_filled(run)
    assert read_residual(run) == pytest.approx(np.diag(variances)[filled].mean())
    assert read_residual(run) < 0.9 * variances[:, filled].mean()


def test_a_client_may_be_twice_in_the_buffer_of_fedag(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its residuals are found, too, where it lies beyond the clients that are evaluated one by one."""
    monkeypatch.setattr("fedray.evaluation.evaluate.EVALUATED_CLIENTS", 2)
    pace = {"tiers": {"slow": {"number": 1, "seconds_per_step": 10.0}, "fast": {"number": 2}}}
    buffered = {"participation": {"mode": "buffered", "goal": 3}}
    run = fedray.run({**QUIET, **CUBIC, **buffered, "method": {"name": "fedag"}, "clients": pace})
    answer = run.study.answer(run.progress.state)
    assert answer.owner is not None
    assert set(answer.owner[0]) == {1, 2}  # a second upload was that of client 4 or 5
    variances = find_variances(run, answer.state, answer.models)
    assert read_residual(run) == pytest.approx(variances[np.arange(3), answer.owner[0]].mean())


def test_the_residuals_of_fedags_mean_are_its_own_at_every_client_and_change_nothing_else() -> None:
    keys = {**QUIET, **CUBIC, "predict": {"noise": "residual"}}
    runs = [fedray.run({**keys, "method": {"name": "fedag", "residuals": of}}) for of in ("uploads", "mean")]
    uploads, mean = (run.summary["metrics"] for run in runs)
    assert read_residual(runs[1]) == pytest.approx(find_variances(runs[1], runs[1].progress.state, 1).mean())
    assert read_residual(runs[1]) > 1.1 * read_residual(runs[0])
    assert mean["sharpness"]["mean"] > uploads["sharpness"]["mean"]
    assert all(mean[name] == uploads[name] for name in ("rmse", "nll_none"))


def test_fixed_noise_is_the_variance_of_one_standardized_unit() -> None:
    own = {"mine": lambda scored: float(scored.variance.mean())}
    keys = {**QUIET, **CUBIC, "method": {"models": 2}}
    none, fixed = (fedray.run(keys, metrics=own, predict__noise=kind) for kind in ("none", "fixed"))
    added = fixed.metrics["mine"] - none.metrics["mine"]
    assert added == pytest.approx(none.study.target_scale(0) ** 2, rel=1e-4)


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("method", ["fed_ensemble", "stacking"])
def test_where_the_test_rows_are_the_training_rows_both_have_the_same_scores(method: str, real: bool) -> None:
    x, targets = noisy_line(40)
    rows = (x, targets if real else (targets[:, 0] > 0).long())
    keys = {"method": method, "rounds": 4, "clients": {"number": 4}, "evaluate": {"train": True}, **QUIET}
    found = fedray.run(keys, data=(rows, rows)).metrics
    trained = {name.removeprefix("train_"): value for name, value in found.items() if name.startswith("train_")}
    assert {"rmse" if real else "accuracy", "nll"} < trained.keys()
    assert trained == pytest.approx({name: found[name] for name in trained}, abs=1e-9)
