"""PVI as runs: conservation of the posterior, exact inference on a linear model, bytes, what it combines with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conjugate import lines
from small import copy_run, scenario, train_rounds
from torch import Tensor
from torch.nn.functional import softplus

import fedray
from fedray.assembly.memory import estimate_study
from fedray.assembly.study import build_study
from fedray.components.gaussians import NATURAL, find_posterior
from fedray.methods import pvi
from fedray.scenario.loader import read_scenario

CALM: dict[str, Any] = {"local": {"lr": 0.01}}
FEW: dict[str, Any] = {"participation": {"per_round": 2}}


def keys(*changes: dict[str, Any], **options: Any) -> dict[str, Any]:
    return scenario({"method": {"name": "pvi", **options}}, CALM, *changes)


def train(rounds: int, *changes: dict[str, Any], **options: Any) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The models, the posterior's natural parameters, and what the clients keep."""
    state, runtime = train_rounds(build_study(read_scenario(keys(*changes, **options))), rounds)
    return state.models, state.extra[NATURAL], runtime.private()


@pytest.mark.parametrize("change", [{}, FEW, {"method": {"models": 2}}], ids=["all", "some", "two posteriors"])
@pytest.mark.parametrize("damping", ["clients", 0.2])
def test_the_prior_times_the_clients_factors_is_the_posterior_after_every_round(
    change: dict[str, Any], damping: Any
) -> None:
    for rounds in (1, 3):
        models, natural, private = train(rounds, change, damping=damping, prior=7.0)
        p = natural.shape[1] // 2
        product = torch.zeros_like(natural)
        product[:, p:] = 7.0
        model = private["layers/keys"][:, 2]
        product.index_add_(0, model, private["layers/rows"][:, 2 * p : 4 * p].double())
        torch.testing.assert_close(natural, product, rtol=1e-5, atol=1e-3)
        torch.testing.assert_close(find_posterior(models, 7.0, p), natural, rtol=1e-4, atol=1e-2)
        assert (natural[:, p:] - 7.0).abs().max() > 1.0
        assert (models[:, 2 * p :] == 0.0).all()  # no factor and no mark at the server


def test_one_round_of_half_the_damping_moves_the_posterior_half_as_far() -> None:
    """What clients learn in the first round does not depend on it."""
    (_, one, _), (_, other, _) = train(1, damping=0.1), train(1, damping=0.05)
    first = train(0)[1]
    torch.testing.assert_close(one - first, 2.0 * (other - first), rtol=1e-4, atol=1e-3)


def test_the_default_damping_is_one_over_the_clients() -> None:
    assert torch.equal(train(2)[0], train(2, damping=1 / 6)[0])
    assert not torch.equal(train(2)[0], train(2, damping=0.1)[0])


def test_on_a_linear_model_with_gaussian_noise_it_comes_to_the_exact_posterior() -> None:
    """By stochastic gradients, whose step falls; what is left are their fluctuations."""
    data, mean, variance = lines()
    given: dict[str, Any] = {
        "runtime": "inline",
        "rounds": 12,
        "method": {"name": "pvi", "prior": 1.0, "rho": -1.0, "samples": 0, "damping": 0.5},
        "data": {"name": "interval", "partition": {"name": "natural"}},
        "clients": {"number": 3},
        "model": {"name": "linear", "objective": "half_mse"},
        "local": {"optimizer": "adam", "lr": 0.1, "batch_size": "full", "steps": 60},
        "report": False,
        "evaluate": {"every": 100},
    }
    given["local"]["schedule"] = {"kind": "cosine", "rounds": 12, "floor": 0.01}
    natural = fedray.run(given, data=data).progress.state.extra[NATURAL][0].numpy()
    linear, precision = natural[:3], natural[3:]
    np.testing.assert_allclose(precision, 1.0 / variance, rtol=0.25)
    np.testing.assert_allclose(linear / precision, mean, atol=0.15 * variance.min() ** 0.5)


def test_two_vectors_and_a_mark_travel_in_both_directions() -> None:
    found = fedray.run(keys({"rounds": 2}), report=False)
    p = train(0)[1].shape[1] // 2
    for name in ("up_bytes", "down_bytes"):
        assert set(found.clients[name].to_pylist()) == {4 * (2 * p + 1)}


def test_draws_answer_and_with_none_the_mean_weights() -> None:
    """Training does not depend on how many there are; known clients answer as new ones do."""
    ten, one, none = (fedray.run(keys(samples=n), report=False) for n in (10, 1, 0))
    assert torch.equal(ten.progress.state.models, none.progress.state.models)
    assert len({one.summary["metrics"]["nll"]["mean"] for one in (ten, one, none)}) == 3
    assert not ten.study.method.phase.is_personal
    own = fedray.run(keys({"evaluate": {"personal": True}}), report=False).summary["metrics"]
    assert own["personal_accuracy"]["mean"] > 0


@pytest.mark.parametrize(
    "change",
    [
        {"method": {"models": 2}, "participation": {"per_round": 3}},
        {"compress": {"kind": "int8", "error_feedback": True}},
        {"compress": {"kind": "int8"}},
        {"model": {"norm": "batch"}, "local": {"batch_size": 9}},
        {"local": {"optimizer": "sgd", "lr": 1e-4, "momentum": 0.9}},
        {
            "data": {"name": "cubic", "partition": {"name": "iid"}},
            "model": {"objective": "gaussian_nll"},
            "clients": {"number": 3},
        },
    ],
    ids=["ensemble", "error feedback", "int8", "batch norm", "sgd", "regression"],
)
def test_it_combines_and_resumes_in_the_same_bits(change: dict[str, Any], tmp_path: Path) -> None:
    whole = fedray.run(keys(change), report=False, out=tmp_path / "whole")
    again = fedray.resume(copy_run(whole, tmp_path / "again", 2))
    assert again.summary["state_hash"] == whole.summary["state_hash"]
    assert again.summary["metrics"] == whole.summary["metrics"]
    assert whole.progress.state.models.isfinite().all()


def test_a_damping_with_which_no_precision_is_left_does_not_end_the_run() -> None:
    """Six clients whose changes are all added at once: what is not above 0 is taken for the least."""
    models, natural, _ = train(4, {"local": {"optimizer": "sgd", "lr": 1e-3, "epochs": 3}}, damping=1.0)
    p = natural.shape[1] // 2
    assert models.isfinite().all() and (softplus(models[:, p : 2 * p]) > 0).all()


def test_the_draws_are_in_the_memory_that_a_run_needs() -> None:
    """A thousand of them are a thousand rows more than none, and so many answers."""
    needs = []
    for samples in (0, 1000):
        given = read_scenario(keys(samples=samples))
        study = build_study(given)
        needs.append({need.what: need.bytes for need in estimate_study(given, study)})
    assert needs[1]["1,000 draws from posteriors"] >= 4000 * study.net.layout.d
    assert "predictions of 1,000 models" in needs[1] and "predictions of 1 models" in needs[0]


def test_of_clients_that_know_two_digits_each_it_learns_all_ten() -> None:
    two: dict[str, Any] = {"data": {"partition": {"name": "classes", "classes": 2}}, "local": {"epochs": 5}}
    assert fedray.run(keys(two, {"rounds": 8}), report=False).summary["metrics"]["accuracy"]["mean"] > 0.45


def test_what_does_not_combine_is_refused_in_one_line() -> None:
    with pytest.raises(fedray.BadInput, match=r"local\.weight_decay = 0\.1, but PVI has its own .* set it to 0"):
        fedray.run(keys({"local": {"weight_decay": 0.1}}), report=False)
    with pytest.raises(fedray.BadInput, match=r"local\.pull = 0\.1, but PVI has its own"):
        fedray.run(keys({"local": {"pull": 0.1}}), report=False)
    with pytest.raises(fedray.BadInput, match=r"no Gaussians with factors: set method\.name = pvi"):
        fedray.run(scenario(), method=pvi, report=False)
    with pytest.raises(fedray.BadInput, match=r"local\.optimizer = SGD, but PVI trains with adam or sgd"):
        fedray.run(scenario({"method": {"name": "pvi"}}), optimizer=torch.optim.SGD, report=False)
    with pytest.raises(fedray.BadInput, match=r"compress\.kind = topk, but .* pvi .* int8 or dense"):
        fedray.run(keys({"compress": {"kind": "topk"}}), report=False)
    with pytest.raises(fedray.BadInput, match=r"method\.damping = 1\.5"):
        fedray.run(keys(damping=1.5), report=False)
    with pytest.raises(fedray.BadInput, match=r"async"):
        fedray.run(keys({"participation": {"mode": "async", "concurrency": 3}}), report=False)
    for key, value in (("robust", "median"), ("optimizer", "adam")):
        with pytest.raises(fedray.BadInput, match=rf"server\.{key} = {value}"):
            fedray.run(keys({"server": {key: value}}), report=False)
    with pytest.raises(fedray.BadInput, match=r"server\.weighting.*no mean of several clients"):
        fedray.run(keys({"server": {"weighting": "examples"}}), report=False)
