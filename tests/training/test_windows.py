"""Sampled local training: windows that cover what they say, and steps that are plain training on every engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from small import scenario, train
from torch import Tensor

import fedray
from fedray.features.windows import Windows, assign_windows
from fedray.simulation.study import choose_study_engine

ENGINES: dict[str, dict[str, Any]] = {
    "mlp-c": {},
    "conv-c": {"model": {"name": "cnn", "channels": [2, 3], "hidden": [4]}},
    "mlp": {"lanes": "torch"},
    "conv": {"model": {"name": "cnn", "channels": [2, 3], "hidden": [4]}, "lanes": "torch"},
    "vmap": {"model": {"name": "mlp", "hidden": [8], "norm": "layer"}},
    "loop": {"model": {"name": "mlp", "hidden": [8], "norm": "batch"}, "local": {"batch_size": 9}},
}
MANY = pytest.mark.parametrize("engine", ENGINES)


def take_last(start: Tensor, means: Tensor) -> Tensor:
    """What FedAvg sends, where the last window is the last step."""
    return means[-1] - start


def own(*pieces: Any) -> Any:
    """FedAvg with pieces."""
    return lambda setting: fedray.methods.Method("own", fedray.methods.federated(setting, pieces=pieces))


def run(windows: Windows | None, *changes: dict[str, Any], local: dict[str, Any] | None = None) -> Any:
    """The study and the progress of a training, without a session."""
    method = own(*([] if windows is None else [windows]))
    study, progress, _ = train(scenario({"rounds": 2}, *changes, {"local": local or {}}), method=method)
    return SimpleNamespace(study=study, progress=progress)


@pytest.mark.parametrize(("mixing", "number"), [(0.0, 1), (0.0, 3), (0.2, 4), (0.75, 2), (0.99, 5)])
def test_windows_cover_every_step_behind_the_first_ones_once_and_evenly(mixing: float, number: int) -> None:
    steps = np.array([40, 17, 5, 2, 1])
    found = assign_windows(steps, Windows(take_last, number, mixing))
    assert found.shape == (40, 5)
    for lane, n in enumerate(steps):
        mine, first = found[:, lane], min(int(mixing * n + 1e-9), n - 1)
        assert (mine[:first] == -1).all() and (mine[n:] == -1).all()
        length = np.bincount(mine[first:n])
        assert len(length) == min(number, n - first) and length.sum() == n - first
        assert length.max() - length.min() <= 1
        assert (np.diff(mine[first:n]) >= 0).all()


@MANY
def test_a_training_of_single_steps_is_the_training_itself(engine: str) -> None:
    """As many windows as steps, of which the last is sent: FedAvg's bits on every engine, for clients of any size."""
    methods = own(Windows(take_last, number=10**6)), own()
    keys = scenario({"rounds": 2}, ENGINES[engine])
    sampled, whole = (fedray.run(keys, method=method, report=False) for method in methods)
    assert choose_study_engine(sampled.study).name == engine
    assert torch.equal(sampled.progress.state.models, whole.progress.state.models)
    assert torch.equal(sampled.progress.state.counters, whole.progress.state.counters)
    assert sampled.clients["loss"].to_pylist() == pytest.approx(whole.clients["loss"].to_pylist(), rel=1e-5)


@pytest.mark.parametrize("engine", ["mlp-c", "loop"])
@pytest.mark.parametrize("local", [{"momentum": 0.9}, {"pull": 0.5, "weight_decay": 0.1}], ids=["momentum", "pull"])
def test_momentum_and_pull_reach_over_the_steps(engine: str, local: dict[str, Any]) -> None:
    sampled, whole = (run(windows, ENGINES[engine], local=local) for windows in (Windows(take_last, 10**6), None))
    other = run(None, ENGINES[engine])
    torch.testing.assert_close(sampled.progress.state.models, whole.progress.state.models, rtol=0, atol=2e-6)
    assert (sampled.progress.state.models - other.progress.state.models).abs().max() > 1e-3


def test_a_window_has_the_mean_of_its_iterates() -> None:
    """Local training of 1 to 4 steps, whose ends are the iterates, against the mean over one window of 4."""
    steps = [{"local": {"epochs": None, "steps": s}, "rounds": 1, "clients": {"number": 1}} for s in (1, 2, 3, 4)]
    iterates = torch.stack([run(None, one).progress.state.models for one in steps])
    mean = run(Windows(take_last, 1), steps[-1]).progress.state.models
    torch.testing.assert_close(mean, iterates.mean(0), rtol=0, atol=1e-6)
    late = run(Windows(take_last, 1, mixing=0.5), steps[-1]).progress.state.models
    torch.testing.assert_close(late, iterates[2:].mean(0), rtol=0, atol=1e-6)


@pytest.mark.parametrize("lanes", ["auto", "torch"])
def test_dropout_draws_anew_in_every_step(lanes: str) -> None:
    """Eight steps of one row: masks that were always the same would leave half of the hidden units as they were."""
    model = {"name": "cnn", "channels": [2], "hidden": [200], "dropout": 0.5}
    changes: dict[str, Any] = {"model": model, "rounds": 1, "clients": {"number": 1}, "lanes": lanes}
    local = {"epochs": None, "steps": 8, "batch_size": 1}
    start, sampled, whole = (
        run(windows, changes, {"rounds": rounds, "method": {"models": 1}}, local=local)
        for windows, rounds in ((None, 0), (Windows(take_last, 8), 1), (None, 1))
    )
    layout = start.study.net.layout
    name = next(name for name, shape in zip(layout.names, layout.shapes, strict=True) if shape == (200,))
    bias, *moved = (layout.views(one.progress.state.models[0])[name] for one in (start, sampled, whole))
    shares = [float((one != bias).double().mean()) for one in moved]
    assert abs(shares[0] - shares[1]) < 0.1
    assert min(shares) > 0.7


@pytest.mark.parametrize("engine", ["mlp-c", "vmap", "loop"])
def test_what_finishes_local_training_is_called_on_every_engine(engine: str) -> None:
    """Twice the way from the start moves the model twice as far."""

    def double(start: Tensor, final: Tensor) -> Tensor:
        return start + 2.0 * (final - start)

    def learn(rounds: int, finish: Any = None) -> Tensor:
        method = own(*([] if finish is None else [fedray.methods.Finish(finish)]))
        one = {"rounds": rounds, "method": {"models": 1}}
        study, progress, _ = train(scenario(ENGINES[engine], one), method=method)
        return progress.state.models[0, : study.net.layout.trainable]

    first, once, twice = learn(0), learn(1), learn(1, double)
    assert (once - first).abs().max() > 1e-3
    torch.testing.assert_close(twice - first, 2.0 * (once - first), rtol=0, atol=1e-5)
