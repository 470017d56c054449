"""FedAG, FedBE and their references: what the theory says of them, and scores against numerical integration."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import BayesianRidge
from small import scenario, spell_out
from uploads import begin, send

import fedray
from fedray.components.distillation import TORCH, Distil, ask_model, average_teachers, train_student
from fedray.components.gaussians import ModelSampler, TeacherSampler, gaussian_server
from fedray.components.servers import Rows
from fedray.core import rng
from fedray.core.method import StudentEngine, Teaching, Train
from fedray.core.types import Net
from fedray.evaluation.regression import propagate_variance
from fedray.methods.bayesian_linear import evidence_precisions, unit_precisions
from fedray.models.nets import build_net

CUBIC: dict[str, Any] = {"data": {"name": "cubic", "limit": None, "partition": None}, "predict": {"noise": "residual"}}
STILL = {"rounds": 2, "local": {"lr": 0.01, "epochs": 2}}


def of(name: str, *changes: dict[str, Any]) -> dict[str, Any]:
    return spell_out(scenario(CUBIC, STILL, {"method": {"name": name}}, *changes))


def test_linear_fedag_was_as_wide_as_its_target_scatters() -> None:
    """By default beta^-1 of eq. 6 is the residual variance of the fit; an NLL can be below 0.919 + log sd(y)."""
    run = fedray.run(of("fedag", {"model": {"name": "linear", "hidden": None}, "rounds": 20}))
    found = {name: entry["mean"] for name, entry in run.summary["metrics"].items()}
    assert "target_variance" not in run.progress.state.extra
    assert found["nll"] == pytest.approx(found["nll_residual"])
    target = run.study.pool_rows(0)[1].double().numpy()
    assert found["residual_sd"] < 0.8 * run.study.target_scale(0) * target.std()


def test_the_noise_of_a_linear_fedag_is_the_variance_of_its_target_where_asked() -> None:
    """`beta: target`, in the units the network sees; 1 only where targets are standardised."""
    run = fedray.run(of("fedag", {"data": {"name": "sine"}, "model": {"name": "rbf"}, "method": {"beta": "target"}}))
    target = run.study.pool_rows(0)[1].double()
    assert run.progress.state.extra["target_variance"].tolist() == [float(target.var(correction=0))]
    assert abs(float(target.var(correction=0)) - 1.0) > 0.1


def test_the_interval_of_one_model_is_that_of_its_residuals() -> None:
    """FE section V-B: it has no knowledge uncertainty."""
    toy = {"data": {"name": "sine"}, "model": {"name": "rbf"}, "predict": {"noise": "none"}, "rounds": 6}
    found = fedray.run(of("fedavg", toy)).summary["metrics"]
    assert 0.7 < found["coverage_95"]["mean"] <= 1.0
    assert found["nll"]["mean"] == pytest.approx(found["nll_residual"]["mean"])


def test_drawn_models_keep_the_moments_of_the_uploads_and_the_means_buffers() -> None:
    """What OMC tends to is the bootstrap's mean and population variance; statistics of BatchNorm are never drawn."""
    draws, uploaded = 4000, torch.randn(5, 6, generator=torch.Generator().manual_seed(3))
    server = gaussian_server(Rows(1, 1), ModelSampler("omc", draws, [0], 4))
    after = server.step(begin(server, torch.zeros(1, 6)), server.reduce(send(uploaded)), 0)
    sample, rows = after.extra["sample"][0].double(), uploaded.double()
    assert torch.equal(sample[:, 4:], after.models[:, 4:].double().expand(draws, -1))
    variance = rows.var(0, unbiased=False)[:4]  # 8 statistics: 6 standard errors of a mean, and of a variance
    assert bool(((sample.mean(0) - rows.mean(0))[:4].abs() <= 6 * (variance / draws).sqrt()).all())
    assert bool(((sample.var(0)[:4] / variance - 1).abs() <= 6 * (2 / draws) ** 0.5).all())


@pytest.mark.parametrize("beta", ["residual", "target"])
def test_omc_tends_to_the_closed_form_of_a_linear_model(beta: str) -> None:
    """Outputs of a linear model under N(mu, diag s2) are N(mu x, x s2 x): S draws are off by Monte-Carlo error."""
    draws = 1000
    linear = {"model": {"name": "linear", "hidden": None}, "rounds": 1, "method": {"beta": beta}}
    exact = fedray.run(of("fedag", linear))
    omc = fedray.run(of("fedag", linear, {"method": {"sampling": "omc", "samples": draws}}))
    x = np.linspace(-2, 2, 9)[:, None]
    given, drawn = exact.predict(x), omc.predict(x)
    sharpness = [run.summary["metrics"]["sharpness"]["mean"] for run in (exact, omc)]
    assert len(given.members) == 1
    assert len(drawn.members) == draws
    # 9 points of one 2-dimensional Gaussian: 6 standard errors of a mean, and of a variance (relative sqrt(2 / S))
    assert bool((np.abs(drawn.mean - given.mean) <= 6 * np.sqrt(given.variance / draws)).all())
    assert bool((np.abs(drawn.variance / given.variance - 1) <= 6 * (2 / draws) ** 0.5).all())
    assert sharpness[1] == pytest.approx(sharpness[0], rel=1e-3)  # nearly all of it is the noise beta^-1


def test_a_covariance_that_is_diagonal_gives_the_variance_of_its_diagonal() -> None:
    """FedAG eq. 6, to which samples tend (the test above)."""
    x, spread = torch.randn(4, 3).double(), torch.tensor([0.5, 0.1, 2.0, 0.3]).double()
    torch.testing.assert_close(propagate_variance(x, torch.diag(spread)), propagate_variance(x, spread))


def test_evidence_maximisation_is_scikit_learns_bayesian_ridge() -> None:
    generator = np.random.default_rng(2)
    x = generator.normal(size=(60, 5))
    y = x @ generator.normal(size=5) + 0.3 * generator.normal(size=60)
    flat = {"alpha_1": 0.0, "alpha_2": 0.0, "lambda_1": 0.0, "lambda_2": 0.0}  # no hyper-priors
    theirs = BayesianRidge(fit_intercept=False, tol=1e-12, max_iter=3000, **flat).fit(x, y)
    ours = evidence_precisions(x, y)
    assert ours.mean == pytest.approx(theirs.coef_, rel=1e-6)
    assert (ours.alpha, ours.beta) == pytest.approx((theirs.lambda_, theirs.alpha_), rel=1e-5)
    assert ours.covariance == pytest.approx(theirs.sigma_, rel=1e-4, abs=1e-9)
    at = generator.normal(size=(7, 5))
    sd = np.sqrt(1 / ours.beta + ((at @ ours.covariance) * at).sum(1))
    assert sd == pytest.approx(theirs.predict(at, return_std=True)[1], rel=1e-5)


def test_the_unit_prior_is_ridge_regression() -> None:
    generator = np.random.default_rng(3)
    x, y = generator.normal(size=(40, 3)), generator.normal(size=40)
    ridge = np.linalg.solve(x.T @ x + y.var() * np.eye(3), x.T @ y)
    assert unit_precisions(x, y).mean == pytest.approx(ridge, rel=1e-10)


def test_bayesian_linear_answers_from_the_first_round_and_sends_nothing() -> None:
    run = fedray.run(of("bayesian_linear", {"model": {"name": "linear", "hidden": None}, "rounds": 0}))
    assert run.summary["totals"]["up_bytes"] == 0
    x, y = run.study.pool_rows(0)
    design = np.column_stack([x.double().numpy(), np.ones(len(x))])
    assert run.progress.state.models[0].numpy() == pytest.approx(
        unit_precisions(design, y.double().numpy()[:, 0]).mean, rel=1e-5
    )


@pytest.mark.parametrize("name", ["centralized", "deep_ensemble"])
def test_references_train_on_every_row(name: str) -> None:
    models = {"deep_ensemble": {"method": {"models": 3}, "model": {"objective": "gaussian_nll"}}}.get(name, {})
    run = fedray.run(of(name, models))
    jobs = run.clients.to_pandas()
    assert set(jobs["client"]) == {0}
    assert set(jobs["samples"]) == {6 * 16}
    assert len(jobs) == 2 * run.study.method.phase.models


def test_local_only_shares_nothing() -> None:
    run = fedray.run(scenario({"method": {"name": "local_only"}, "evaluate": {"personal": True}}))
    jobs = run.clients.to_pandas()
    assert (jobs["client"] == jobs["model"]).all()
    assert set(jobs["up_bytes"]) == {4 * run.study.net.layout.d} and set(jobs["down_bytes"]) == {0}
    with np.load(run.path / "pictures.npz") as pictures:
        assert np.array_equal(pictures["alpha"], np.eye(6))
        assert np.nanmean(pictures["client_accuracy"]) == pytest.approx(run.metrics["personal_accuracy"])


def test_fedag_keeps_one_gaussian_a_model_under_the_permutation_schedule() -> None:
    """K Gaussians: the means are Fed-ensemble's models, and the answer is the mixture of all uploads."""
    run = fedray.run(of("fedag", {"method": {"models": 3}, "rounds": 3}))
    base = fedray.run(of("fed_ensemble", {"method": {"models": 3}, "rounds": 3}))
    state = run.progress.state
    assert torch.equal(state.models, base.progress.state.models)
    weight = run.study.answer(state).weights
    assert weight is not None
    jobs = run.clients.to_pandas()
    last = jobs[jobs["round"] == 3].groupby("model").size().reindex(range(3), fill_value=0).to_numpy()
    counted = weight.reshape(3, -1).sum(axis=1)
    assert (counted[last > 0] == last[last > 0]).all()
    for k in np.flatnonzero(last > 0):
        members = state.extra["sample"][k][state.extra["sample_weight"][k] > 0].double().numpy()
        assert state.extra["variance"][k].numpy() == pytest.approx(members.var(axis=0), rel=1e-4, abs=1e-12)


def test_samples_keep_the_mean_of_the_uploads() -> None:
    """Gaussian: mean and variance of the uploads, within 6 standard errors; Dirichlet: inside their hull."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(8, 6, generator=generator)
    middle, spread = rows.mean(0), rows.var(0, unbiased=False)
    number, key = 4000, rng.keys(0, "test", np.arange(4000))
    drawn = TeacherSampler("gaussian", number, 4).draw(key, middle, spread, rows)
    assert bool(((drawn.mean(0) - middle)[:4].abs() <= 6 * (spread[:4] / number).sqrt()).all())
    assert bool(((drawn.var(0)[:4] / spread[:4] - 1).abs() <= 6 * (2 / number) ** 0.5).all())
    assert torch.equal(drawn[:, 4:], middle[4:].expand(number, -1))  # buffers are never sampled
    hull = TeacherSampler("dirichlet", number, 6).draw(key, middle, spread, rows)
    assert bool((hull <= rows.amax(0) + 1e-6).all())
    assert bool((hull >= rows.amin(0) - 1e-6).all())
    assert bool(((hull.mean(0) - middle).abs() <= 6 * (spread / 9 / number).sqrt()).all())  # Var = s2 / (n + 1)


def small_net() -> Net:
    return build_net("mlp", (3,), 4, "cross_entropy", hidden=[8])


def test_one_teacher_at_temperature_one_teaches_itself() -> None:
    net, x = small_net(), torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
    row = net.init(0)[None]
    how = Distil(epochs=4, lr=0.1, batch_size=8, temperature=1.0)
    assert torch.allclose(train_student(net, how, x, row, rng.keys(0, "test")), row[0], atol=1e-5)


def test_distillation_moves_the_student_to_the_sharpened_average() -> None:
    net, x = small_net(), torch.randn(60, 3, generator=torch.Generator().manual_seed(2))
    teachers = torch.stack([net.init(k) for k in range(4)])
    how = Distil(epochs=60, lr=0.1, batch_size=16)
    target = average_teachers(net, how, x, teachers).double()
    assert target.sum(-1).numpy() == pytest.approx(np.ones(60), abs=1e-6)

    def distance(row: torch.Tensor) -> float:
        said = ask_model(net, row, x).log_softmax(-1)
        return float((target * (target.clamp(min=1e-12).log() - said)).sum(-1).mean())

    assert distance(train_student(net, how, x, teachers, rng.keys(0, "test"))) < 0.3 * distance(teachers[0])


@pytest.mark.parametrize(("epochs", "kept"), [(4, [2, 3]), (5, [2, 3, 4])])
def test_the_student_is_the_mean_of_its_epochs_in_the_second_half(epochs: int, kept: list[int]) -> None:
    """As stochastic weight averaging of FedBE is; the student behind epoch e is e here."""
    net, x = small_net(), torch.zeros(8, 3)
    behind = iter(range(epochs))

    def begin(_net: Net, start: torch.Tensor, _teaching: Teaching) -> Train:
        return lambda _batches, _rates: torch.full_like(start, next(behind))

    engine = StudentEngine(TORCH.ask, begin)
    student = train_student(net, Distil(epochs), x, net.init(0)[None], rng.keys(0, "test"), engine=engine)
    assert student.tolist() == pytest.approx([np.mean(kept)] * len(student))


def test_the_next_model_of_fedbe_without_distillation_is_one_of_distinct_samples() -> None:
    state = fedray.run(scenario({"method": {"name": "fedbe_nokd", "samples": 5}})).progress.state
    drawn = state.extra["teachers"][0][1:6]
    assert any(torch.equal(state.models[0], row) for row in drawn)
    assert len({tuple(row) for row in drawn.tolist()}) == 5  # each sample has noise of its own
