"""FedPA: its formula, and where it ends on quadratic losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from small import models, scenario
from small_data import LINEAR, numbers

import fedray
from fedray.components.one_shot import correct_by_precision
from fedray.core.types import FloatArray
from fedray.data.types import Dataset


def run(name: str, *changes: dict[str, Any], **options: Any) -> fedray.Run:
    method = {"method": {"name": name, **options}}
    return fedray.run(scenario(method, *changes), report=False)


def test_two_samples_have_the_formula() -> None:
    """`(1 + rho) (I + rho / 2 (x_2 - x_1) (x_2 - x_1)')^-1 (mean - w)`, where the samples are iterates of FedAvg."""
    one: dict[str, Any] = {"rounds": 1, "clients": {"number": 1}}
    steps = [{"local": {"epochs": None, "steps": s, "lr": 0.5}} for s in (1, 2)]
    start = models(run("fedavg", one, {"rounds": 0}))[0].double()
    first, second = (models(run("fedavg", one, each))[0].double() for each in steps)
    sent = models(run("fedpa", one, steps[1], samples=2, mixing=0.0, rho=3.0))[0].double() - start
    apart, way = second - first, (first + second) / 2 - start
    wanted = 4.0 * (way - apart * (1.5 * apart @ way / (1 + 1.5 * apart @ apart)))
    assert 1.5 * apart @ apart > 0.1  # the covariance counts
    torch.testing.assert_close(sent, wanted, rtol=0, atol=1e-5)
    samples = torch.stack([first, second])
    torch.testing.assert_close(correct_by_precision(3.0)(start, samples), wanted)


def squares() -> tuple[Dataset, FloatArray]:
    """Four clients whose inputs and whose best lines differ, and the best line of all rows `[3]`."""
    generator = np.random.default_rng(0)
    spreads = ((1.8, 0.6), (0.6, 1.8), (1.4, 0.8), (0.8, 1.4))
    lines = ((9.0, 0.0), (0.0, 9.0), (-6.0, 3.0), (3.0, -6.0))
    x = np.concatenate([generator.normal(size=(400, 2)) * spread for spread in spreads])
    y = (x * np.repeat(lines, 400, axis=0)).sum(1, keepdims=True) + 2.0 * generator.normal(size=(1600, 1))
    best = np.linalg.lstsq(np.column_stack([x, np.ones(1600)]), y[:, 0], rcond=None)[0]
    return numbers(x, y, np.repeat(np.arange(4), 400)), best


def test_on_quadratic_losses_it_ends_nearer_the_global_optimum_than_fedavg() -> None:
    """Heterogeneous least squares, many local steps: three repetitions, and their less noisy mean."""
    data, best = squares()
    keys = {
        **LINEAR, "replicates": 3, "clients": {"number": 4}, "local": {"lr": 0.1, "batch_size": 5, "steps": 200},
    }  # fmt: skip
    average = fedray.run({**keys, "method": "fedavg", "rounds": 5}, data=data)
    method = {"name": "fedpa", "samples": 10, "rho": 100.0, "mixing": 0.2}
    server = {"optimizer": "momentum", "momentum": 0, "lr": 0.002}
    sampled = fedray.run({**keys, "method": method, "server": server, "rounds": 30}, data=data)
    found = [one.progress.state.models.double().numpy() for one in (average, sampled)]
    single = [np.linalg.norm(one - best, axis=1).mean() for one in found]
    mean = [np.linalg.norm(one.mean(0) - best) for one in found]
    assert single[1] < 0.8 * single[0]
    assert mean[1] < 0.7 * mean[0]
