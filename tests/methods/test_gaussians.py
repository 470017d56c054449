"""PVI, IVON-ADMM and pFedBayes as runs: what is conserved, where they end, what stays and what is sent."""

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import small
import torch
from small import scenario
from small_data import LINEAR, lines
from torch import Tensor
from torch.nn.functional import softplus

import fedray
from fedray.components.gaussians import NATURAL, SITES, find_posterior
from fedray.methods.bayesian_linear import posterior

Keys = dict[str, Any]
FEW: Keys = {"participation": {"per_round": 2}}
ALONE: Keys = {"clients": {"number": 1}, "local": {"lr": 0.01, "optimizer": "adam", "batch_size": 20}}
EACH = pytest.mark.parametrize("change", [{}, FEW, {"method": {"models": 2}}], ids=["all", "some", "two posteriors"])


class Trained(NamedTuple):
    """The server's models `[K, d]`, what it keeps, and the clients' rows with their keys (world, client, model)."""

    models: Tensor
    extra: dict[str, Tensor]
    own: Tensor
    whose: Tensor


def keys(name: str, *changes: Keys, **options: Any) -> Keys:
    calm = {"local": {"lr": 1e-4, "epochs": 1} if name == "ivon_admm" else {"lr": 0.01}}
    return scenario({"method": {"name": name, **options}}, calm, *changes)


def train(name: str, rounds: int, *changes: Keys, **options: Any) -> Trained:
    _, done, runtime = small.train(keys(name, *changes, {"rounds": rounds}, **options))
    private, none = runtime.private(), torch.zeros(0, 3, dtype=torch.int64)
    rows, whose = private.get("layers/rows", done.state.models[:0]), private.get("layers/keys", none)
    return Trained(done.state.models, done.state.extra, rows, whose)


def run(name: str, *changes: Keys, **options: Any) -> fedray.Run:
    return fedray.run(keys(name, *changes, **options), report=False)


@EACH
@pytest.mark.parametrize(
    ("name", "options"),
    [("pvi", {}), ("pvi", {"damping": 0.2}), ("ivon_admm", {"dual_step": 0.5, "penalty": 1.0})],
    ids=["pvi", "pvi damped", "ivon_admm"],
)
def test_the_server_knows_the_product_of_the_clients_factors_after_every_round(
    name: str, options: Keys, change: Keys
) -> None:
    """Although they stay with the clients: PVI's times the prior is the posterior; and the model is that posterior."""
    prior, kept = (7.0, NATURAL) if name == "pvi" else (1.0, SITES)
    for rounds in (1, 2):
        found = train(name, rounds, change, prior=prior, **options)
        p = found.extra[NATURAL].shape[1] // 2
        product = torch.zeros_like(found.extra[NATURAL])
        product[:, p:] = prior if name == "pvi" else 0.0
        product.index_add_(0, found.whose[:, 2], found.own[:, 2 * p : 4 * p].double())
        torch.testing.assert_close(found.extra[kept], product, rtol=1e-4, atol=1e-3 if name == "pvi" else 0.05)
        torch.testing.assert_close(find_posterior(found.models, prior, p), found.extra[NATURAL], rtol=1e-4, atol=0.05)
        assert (product[:, p:] - prior).abs().max() > 1.0
        assert (found.models[:, 2 * p :] == 0.0).all()  # no factor and no mark at the server


def test_with_a_dual_step_of_0_ivon_admm_has_no_factors() -> None:
    found = train("ivon_admm", 2, dual_step=0.0)
    p = found.extra[SITES].shape[1] // 2
    assert (found.extra[SITES] == 0.0).all() and (found.own[:, 2 * p : 4 * p] == 0.0).all()


def test_with_a_constant_precision_ivon_admm_trains_as_feddyn() -> None:
    """S = c I: `beta2: 1` and a first precision that is the prior's; with c huge there is no noise.

    FedDyn's alpha is tau rho c / n. With rho N large the prior hardly pulls the server's model to 0 (`1 - 1 / (1 +
    rho N)`), and first weights are near 0, where IVON-ADMM's first received mean is.
    """
    c, rho, alpha, lr, n = 1e8, 1e3, 0.1, 0.2, 40
    base = scenario({
        "data": {"partition": {"name": "iid"}},
        "model": {"name": "linear", "weight_sd": 1e-9},
        "local": {"lr": lr, "epochs": 2, "batch_size": 8},
    })  # fmt: skip
    options = {
        "penalty": rho, "dual_step": 1.0, "temperature": alpha * n / (rho * c), "prior": c, "beta1": 0.0, "beta2": 1.0,
        "rho": math.log(math.expm1(c**-0.5)), "samples": 0,
    }  # fmt: skip
    dyn: Keys = {**base, "method": {"name": "feddyn", "alpha": alpha}, "report": False}
    local = {**base["local"], "lr": lr * alpha}
    admm = {**base, "local": local, "method": {"name": "ivon_admm", **options}, "report": False}
    one, other = (fedray.run(tree).progress.state.models for tree in (admm, dyn))
    p = other.shape[1]
    assert other.abs().max() > 0.1
    torch.testing.assert_close(one[:, :p], other, rtol=0, atol=2e-3 * float(other.abs().max()))
    torch.testing.assert_close(softplus(one[:, p : 2 * p]), torch.full_like(other, c**-0.5), rtol=1e-4, atol=0)


EXACT: dict[str, tuple[Keys, Keys]] = {  # options and local training
    "pvi": ({"damping": 0.5}, {"optimizer": "adam", "steps": 60}),
    "ivon_admm": (
        {"penalty": 1.0, "dual_step": 0.5, "temperature": 1.0, "beta2": 0.98}, {"epochs": None, "steps": 100},
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "clients"),
    [
        pytest.param("pvi", 3, marks=pytest.mark.slow),
        pytest.param("ivon_admm", 3, marks=pytest.mark.slow),
        ("ivon_admm", 1),
    ],
)
def test_on_a_linear_model_with_gaussian_noise_it_comes_to_the_exact_posterior(name: str, clients: int) -> None:
    """By stochastic steps, whose rate falls; what is left are their fluctuations. One client holds all rows."""
    data = lines()
    design = np.column_stack([data.train.x, np.ones(len(data.train.x))])
    exact = posterior(design, data.train.y[:, 0], 1.0, 1.0)
    mean, variance = exact.mean, np.diag(exact.covariance)
    options, local = EXACT[name]
    rounds = 12 if clients > 1 else 6
    falling = {"schedule": {"kind": "cosine", "rounds": rounds, "floor": 0.01 if name == "pvi" else 0.02}}
    given: Keys = {
        **LINEAR, "rounds": rounds, "method": {"name": name, "prior": 1.0, "rho": -1.0, "samples": 0, **options},
        "data": {"name": "interval", "partition": {"name": "natural" if clients > 1 else "iid"}},
        "clients": {"number": clients}, "local": {"lr": 0.1, "batch_size": "full", **local, **falling},
    }  # fmt: skip
    natural = fedray.run(given, data=data).progress.state.extra[NATURAL][0].numpy()
    linear, precision = natural[:3], natural[3:]
    np.testing.assert_allclose(precision, 1.0 / variance, rtol=0.25)
    np.testing.assert_allclose(linear / precision, mean, atol=(0.15 if name == "pvi" else 0.25) * variance.min() ** 0.5)


@pytest.mark.parametrize(("name", "more"), [("pvi", 1), ("ivon_admm", 1), ("pfedbayes", 0)])
def test_two_vectors_travel_in_both_directions_and_the_mark_of_those_with_factors(name: str, more: int) -> None:
    """Of pFedBayes half of a row: means and rhos of the global Gaussian."""
    found, p = run(name, {"rounds": 2}), train("fedavg", 0).models.shape[1]
    for column in ("up_bytes", "down_bytes"):
        assert set(found.clients[column].to_pylist()) == {4 * (2 * p + more)}


def test_eight_bits_are_a_quarter_of_the_bytes_and_learn_within_a_step_of_the_dense_uploads() -> None:
    """A step is 1 / 127 of the largest change; linear terms and precisions have their own steps."""
    int8: Keys = {"compress": {"kind": "int8"}}
    start, dense, eight = (train("ivon_admm", n, change).extra[NATURAL] for n, change in ((0, {}), (1, {}), (1, int8)))
    p = start.shape[1] // 2
    for part in (slice(p), slice(p, None)):
        moved, apart = ((one - dense)[:, part].abs().max() for one in (start, eight))
        assert 0 < apart < moved / 127
    bytes_ = run("ivon_admm", {"rounds": 1}, int8).clients["up_bytes"].to_pylist()
    assert set(bytes_) == {(2 * p + 1) + 3 * 4}  # linear terms, precisions and the mark: a byte each, and three scales


@pytest.mark.parametrize("name", ["pvi", "ivon_admm"])
def test_draws_answer_and_with_none_the_mean_weights(name: str) -> None:
    """Training does not depend on how many there are; known clients answer as new ones do."""
    ten, one, none = (run(name, {"rounds": 1}, samples=n) for n in (10, 1, 0))
    assert torch.equal(ten.progress.state.models, none.progress.state.models)
    assert len({one.summary["metrics"]["nll"]["mean"] for one in (ten, one, none)}) == 3
    assert not ten.study.method.phase.is_personal


# pFedBayes


@pytest.mark.filterwarnings("ignore::fedray.core.errors.ScenarioWarning")  # zeta = 0 is told
def test_a_narrow_gaussian_that_is_near_nothing_is_plain_local_training() -> None:
    """With zeta -> 0 and sigma -> 0, over all rounds: a lone client's own mean is what FedAvg makes of it."""
    start, average = (train("fedavg", rounds, ALONE).models for rounds in (0, 3))
    p = average.shape[1]
    assert (average - start).abs().max() > 0.05
    near = train("pfedbayes", 3, ALONE, zeta=0.0, rho=-20.0).own[:, :p]
    torch.testing.assert_close(near, average, rtol=0, atol=1e-4)
    for zeta in (0.0, 50.0):
        assert (train("pfedbayes", 3, ALONE, zeta=zeta, rho=-2.0).own[:, :p] - average).abs().max() > 1e-3


@pytest.mark.filterwarnings("ignore::fedray.core.errors.ScenarioWarning")
def test_without_the_divergence_nothing_is_learned_from_others() -> None:
    """With zeta = 0 the global Gaussian stays where it began to the bit, and so the server changes nothing."""
    begun, alone = (train("pfedbayes", rounds, zeta=0.0) for rounds in (0, 3))
    assert torch.equal(alone.models, begun.models)
    half = {"server": {"optimizer": "momentum", "lr": 0.1}}
    assert torch.equal(alone.own, train("pfedbayes", 3, half, zeta=0.0).own)
    assert not torch.equal(train("pfedbayes", 3, zeta=1.0).models, begun.models)
