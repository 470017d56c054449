"""IVON-ADMM as runs: conservation of factors, FedDyn and exact inference as cases, bytes, what it combines with."""

from __future__ import annotations

import math
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
from fedray.assembly.study import build_study
from fedray.components.gaussians import NATURAL, SITES, find_posterior
from fedray.methods import ivon_admm
from fedray.scenario.loader import read_scenario

CALM: dict[str, Any] = {"local": {"lr": 1e-4, "epochs": 1}}
FEW: dict[str, Any] = {"participation": {"per_round": 2}}


def keys(*changes: dict[str, Any], **options: Any) -> dict[str, Any]:
    return scenario({"method": {"name": "ivon_admm", **options}}, CALM, *changes)


def train(rounds: int, *changes: dict[str, Any], **options: Any) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """The models, what the server keeps, and what the clients keep."""
    state, runtime = train_rounds(build_study(read_scenario(keys(*changes, **options))), rounds)
    return state.models, state.extra, runtime.private()


@pytest.mark.parametrize("change", [{}, FEW, {"method": {"models": 2}}], ids=["all", "some", "two posteriors"])
def test_the_server_knows_the_product_of_the_clients_factors(change: dict[str, Any]) -> None:
    """After every round, although factors stay with the clients; and the model is the state's posterior."""
    for rounds in (1, 3):
        models, extra, private = train(rounds, change, dual_step=0.5, penalty=1.0)
        p = extra[SITES].shape[1] // 2
        product = torch.zeros_like(extra[SITES])
        product.index_add_(0, private["layers/keys"][:, 2], private["layers/rows"][:, 2 * p : 4 * p].double())
        torch.testing.assert_close(extra[SITES], product, rtol=1e-4, atol=0.05)
        assert product[:, p:].abs().max() > 1.0
        torch.testing.assert_close(find_posterior(models, 1.0, p), extra[NATURAL], rtol=1e-4, atol=0.05)
        assert (models[:, 2 * p :] == 0.0).all()  # no factor and no mark at the server


def test_with_gamma_0_the_duals_stay_at_0() -> None:
    """And the server mixes the mean of the clients' Gaussians with the prior."""
    models, extra, private = train(2, dual_step=0.0, server_step=0.25)
    p = extra[SITES].shape[1] // 2
    assert (extra[SITES] == 0.0).all() and (private["layers/rows"][:, 2 * p : 4 * p] == 0.0).all()
    assert (train(2, dual_step=0.5)[1][SITES] != 0.0).any()
    assert models.isfinite().all()


def test_the_default_server_step_is_that_of_admm() -> None:
    """1 / (1 + rho N), with six clients."""
    assert torch.equal(train(2)[0], train(2, server_step=1 / (1 + 0.2 * 6))[0])
    assert not torch.equal(train(2)[0], train(2, server_step=0.4)[0])


def test_with_a_constant_precision_it_trains_as_feddyn() -> None:
    """S = c I: `beta2: 1` and a first precision that is the prior's; with c huge there is no noise.

    FedDyn's alpha is tau rho c / n. With rho N large the prior hardly pulls the server's model to 0 (`1 - 1 / (1 +
    rho N)`), and first weights are near 0, where IVON-ADMM's first received mean is.
    """
    c, rho, alpha, lr, n = 1e8, 1e3, 0.1, 0.2, 40
    change: dict[str, Any] = {
        "data": {"partition": {"name": "iid"}},
        "model": {"name": "linear", "weight_sd": 1e-9},
        "local": {"lr": lr, "epochs": 2, "batch_size": 8},
    }
    base = scenario(change)
    dyn: dict[str, Any] = {**base, "method": {"name": "feddyn", "alpha": alpha}, "report": False}
    options = {
        "penalty": rho,
        "dual_step": 1.0,
        "temperature": alpha * n / (rho * c),
        "prior": c,
        "beta1": 0.0,
        "beta2": 1.0,
    }
    options |= {"rho": math.log(math.expm1(c**-0.5)), "samples": 0}
    local = {**base["local"], "lr": lr * alpha}
    admm = {**base, "local": local, "method": {"name": "ivon_admm", **options}, "report": False}
    one, other = (fedray.run(tree).progress.state.models for tree in (admm, dyn))
    p = other.shape[1]
    assert other.abs().max() > 0.1
    torch.testing.assert_close(one[:, :p], other, rtol=0, atol=2e-3 * float(other.abs().max()))
    torch.testing.assert_close(softplus(one[:, p : 2 * p]), torch.full_like(other, c**-0.5), rtol=1e-4, atol=0)


@pytest.mark.parametrize("clients", [3, 1])
def test_on_a_linear_model_with_gaussian_noise_it_comes_to_the_exact_posterior(clients: int) -> None:
    """By stochastic steps, whose rate falls; what is left are their fluctuations. One client holds all rows."""
    data, mean, variance = lines()
    given: dict[str, Any] = {
        "runtime": "inline",
        "rounds": 12,
        "method": {"name": "ivon_admm", "prior": 1.0, "rho": -1.0, "samples": 0, "penalty": 1.0, "dual_step": 0.5},
        "data": {"name": "interval", "partition": {"name": "natural" if clients > 1 else "iid"}},
        "clients": {"number": clients},
        "model": {"name": "linear", "objective": "half_mse"},
        "local": {"lr": 0.1, "batch_size": "full", "epochs": None, "steps": 100},
        "report": False,
        "evaluate": {"every": 100},
    }
    given["method"] |= {"temperature": 1.0, "beta2": 0.98}
    given["local"]["schedule"] = {"kind": "cosine", "rounds": 12, "floor": 0.02}
    natural = fedray.run(given, data=data).progress.state.extra[NATURAL][0].numpy()
    linear, precision = natural[:3], natural[3:]
    np.testing.assert_allclose(precision, 1.0 / variance, rtol=0.25)
    np.testing.assert_allclose(linear / precision, mean, atol=0.25 * variance.min() ** 0.5)


def test_two_vectors_and_a_mark_travel_in_both_directions() -> None:
    found = fedray.run(keys({"rounds": 2}), report=False)
    p = train(0)[1][NATURAL].shape[1] // 2
    for name in ("up_bytes", "down_bytes"):
        assert set(found.clients[name].to_pylist()) == {4 * (2 * p + 1)}


def test_draws_answer_and_with_none_the_mean_weights() -> None:
    ten, none = (fedray.run(keys(samples=n), report=False) for n in (10, 0))
    assert torch.equal(ten.progress.state.models, none.progress.state.models)
    assert ten.summary["metrics"]["nll"]["mean"] != none.summary["metrics"]["nll"]["mean"]
    assert not ten.study.method.phase.is_personal


@pytest.mark.parametrize(
    "change",
    [
        {"method": {"models": 2}, "participation": {"per_round": 3}},
        {"compress": {"kind": "int8", "error_feedback": True}},
        {"model": {"norm": "batch"}, "local": {"batch_size": 9}},
        {"local": {"schedule": {"kind": "cosine", "rounds": 3}}},
        {
            "data": {"name": "cubic", "partition": {"name": "iid"}},
            "model": {"objective": "gaussian_nll"},
            "clients": {"number": 3},
        },
    ],
    ids=["ensemble", "int8", "batch norm", "a rate that falls to 0", "regression"],
)
def test_it_combines_and_resumes_in_the_same_bits(change: dict[str, Any], tmp_path: Path) -> None:
    whole = fedray.run(keys(change, dual_step=0.1), report=False, out=tmp_path / "whole")
    again = fedray.resume(copy_run(whole, tmp_path / "again", 2))
    assert again.summary["state_hash"] == whole.summary["state_hash"]
    assert again.summary["metrics"] == whole.summary["metrics"]
    assert whole.progress.state.models.isfinite().all()


def test_a_replicate_has_the_bits_of_its_own_run() -> None:
    """Of two seeds that train as lanes of the same blocks the first is the run of one."""
    two, one = (fedray.run(keys({"replicates": n, "rounds": 2}), report=False).progress.state for n in (2, 1))
    assert torch.equal(two.models[:1], one.models)
    assert torch.equal(two.extra[SITES][:1], one.extra[SITES])


def test_eight_bits_learn_nearly_as_much() -> None:
    """Linear terms and precisions are quantized each by themselves, also from the wide prior of the first round."""
    local: dict[str, Any] = {"rounds": 8, "local": {"epochs": 3}}
    dense, int8 = (fedray.run(keys(local, change), report=False) for change in ({}, {"compress": {"kind": "int8"}}))
    scores = [one.summary["metrics"]["accuracy"]["mean"] for one in (dense, int8)]
    assert scores[0] > 0.6 and abs(scores[0] - scores[1]) < 0.05


def test_of_clients_that_know_two_digits_each_it_learns_all_ten() -> None:
    two: dict[str, Any] = {"data": {"partition": {"name": "classes", "classes": 2}}, "local": {"epochs": 5}}
    assert fedray.run(keys(two, {"rounds": 8}), report=False).summary["metrics"]["accuracy"]["mean"] > 0.5


def test_what_does_not_combine_is_refused_in_one_line() -> None:
    with pytest.raises(fedray.BadInput, match=r"local\.weight_decay = 0\.1, but IVON-ADMM has its own .* set it to 0"):
        fedray.run(keys({"local": {"weight_decay": 0.1}}), report=False)
    with pytest.raises(fedray.BadInput, match=r"local\.optimizer = adam, but IVON-ADMM has one of its own, IVON"):
        fedray.run(keys({"local": {"optimizer": "adam"}}), report=False)
    with pytest.raises(fedray.BadInput, match=r"no Gaussians with factors: set method\.name = ivon_admm"):
        fedray.run(scenario(), method=ivon_admm, report=False)
    with pytest.raises(fedray.BadInput, match=r"local\.optimizer = SGD, but IVON-ADMM has one of its own"):
        fedray.run(scenario({"method": {"name": "ivon_admm"}}), optimizer=torch.optim.SGD, report=False)
    with pytest.raises(fedray.BadInput, match=r"local\.momentum = 0\.9, but IVON-ADMM's is method\.beta1"):
        fedray.run(keys({"local": {"momentum": 0.9}}), report=False)
    with pytest.raises(fedray.BadInput, match=r"method\.penalty = 0"):
        fedray.run(keys(penalty=0), report=False)
    for kind in ("topk", "randomk"):
        with pytest.raises(fedray.BadInput, match=rf"compress\.kind = {kind}, but .* ivon_admm .* int8 or dense"):
            fedray.run(keys({"compress": {"kind": kind}}), report=False)
    with pytest.raises(fedray.BadInput, match=r"async"):
        fedray.run(keys({"participation": {"mode": "async", "concurrency": 3}}), report=False)
    with pytest.raises(fedray.BadInput, match=r"server\.robust = median"):
        fedray.run(keys({"server": {"robust": "median"}}), report=False)
