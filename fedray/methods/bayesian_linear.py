r"""Bayesian linear regression on the pooled data in closed form: the linear reference of FedAG's paper.

FedAG's paper reports this reference in its Tables 2 to 4. The key `precisions` sets the precisions alpha of the weights
and beta of the noise. `unit` is FedAG's choice (section 4). `evidence` maximizes the marginal likelihood by fixed-point
steps (MacKay 1992; Bishop, *Pattern Recognition*, section 3.5.2).

Formulas of bayesian_linear:
    The weights $w$ include the bias. With $w \sim N(0, \alpha^{-1} I)$ and $y \sim N(w^\top x, \beta^{-1})$ on the
    pooled samples $X, y$, the posterior of $w$ is $N(m, S)$:

    $$
    S = (\alpha I + \beta X^\top X)^{-1}, \qquad m = \beta \, S X^\top y, \qquad
    y \mid x \sim N\bigl(m^\top x,\; \beta^{-1} + x^\top S \, x\bigr).
    $$

    With `unit`, $\alpha = 1$, and $\beta^{-1}$ is the variance of the $n$ training targets. Let $\lambda_l$ be the
    eigenvalues of $\beta X^\top X$. `evidence` repeats these updates: $\gamma = \sum_l \frac{\lambda_l}{\lambda_l +
    \alpha}$, $\alpha = \gamma / \lVert m \rVert^2$, $\beta^{-1} = \lVert y - X m \rVert^2 / (n - \gamma)$.

Deviations:
    1. There are no rounds. The posterior is known from the start, and nothing is sent.

Example:
    >>> import fedray
    >>> scenario = {"method": {"name": "bayesian_linear"}, "data": {"name": "cubic"}}
    >>> run = fedray.run(scenario, runtime="inline", report=False)
    >>> {name: round(run.summary["metrics"][name]["mean"]) for name in ("rmse", "nll")}
    {'rmse': 56, 'nll': 7}
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fedray.core.errors import BadInput
from fedray.core.options import MethodSpec, Option, one_of
from fedray.methods import kit

SPECS = {
    "bayesian_linear": MethodSpec(
        "Bayesian linear regression on the pooled data, in closed form",
        family="references",
        models="one",
        options={
            "precisions": Option(
                "unit",
                one_of("unit", "evidence"),
                "the precisions of prior and noise: fixed (`unit`), or by the marginal likelihood (`evidence`)",
            ),
        },
        defaults={"method": {"models": 1}, "rounds": 0, "model": {"name": "linear"}},
        fixed=("robust", "optimizer", "averages", "coefficients", "schedules"),
        pooled=True,
        trains=False,
        own_models=True,
    ),
}

STEPS, TOLERANCE = 1000, 1e-10  # of the fixed point


class Posterior(NamedTuple):
    """A Gaussian posterior.

    Attributes:
        mean: Mean of the weights, `[d]`.
        covariance: Covariance of the weights, `[d, d]`.
        alpha: Precision of the prior of the weights.
        beta: Precision of the noise.
    """

    mean: kit.types.FloatArray
    covariance: kit.types.FloatArray
    alpha: float
    beta: float


def bayesian_linear(setting: kit.Setting) -> kit.Method:
    """Composes one linear model `[1, d]`. The state also has the posterior's covariance and the noise variance."""
    if setting.features is None:
        raise BadInput(
            "method.name = bayesian_linear needs data with one real target, and a linear network: choose linear or rbf "
            "as model.name, or other data"
        )
    read, worlds = setting.features, len(setting.seeds)
    has_bias = len(setting.layout.names) > 1
    nobody = kit.Plan(*(kit.numpy.empty(0, dtype=kit.numpy.int64) for _ in kit.Plan._fields))

    def init(models: kit.torch.Tensor) -> dict[str, kit.torch.Tensor]:
        d = models.shape[1]
        return {
            "covariance": kit.torch.zeros(worlds, d, d, dtype=kit.torch.float64),
            "noise": kit.torch.zeros(worlds).double(),
        }

    def prepare(state: kit.State, pooled: kit.Pooled) -> kit.State:
        found = [_fit(setting.options, read, has_bias, *pooled(world)) for world in range(worlds)]
        mean = kit.torch.from_numpy(kit.numpy.stack([one.mean for one in found])).to(state.models.dtype)
        covariance = kit.torch.from_numpy(kit.numpy.stack([one.covariance for one in found]))
        noise = kit.torch.tensor([1.0 / one.beta for one in found], dtype=kit.torch.float64)
        return state._replace(models=mean, extra={"covariance": covariance, "noise": noise})

    def answer(state: kit.State) -> kit.Answer:
        return kit.Answer(state, 1, None, state.extra["covariance"], state.extra["noise"].numpy())

    server = kit.base.make_server(setting)._replace(init=init)
    phase = kit.Phase(1, lambda _t, _state: nobody, setting.local, server, kit.base.make_compressor(setting))
    return kit.Method("bayesian_linear", phase, answer, prepare)


def _fit(options: Any, read: Any, has_bias: bool, x: kit.torch.Tensor, y: kit.torch.Tensor) -> Posterior:
    design, target = read(x).double().numpy(), y.double().numpy().reshape(len(y), -1)
    if target.shape[1] != 1:
        raise BadInput(f"data: bayesian_linear predicts one target, but there are {target.shape[1]}: choose one")
    if has_bias:
        design = kit.numpy.column_stack([design, kit.numpy.ones(len(design))])
    find = evidence_precisions if options.get("precisions", "unit") == "evidence" else unit_precisions
    return find(design, target[:, 0])


def posterior(x: kit.types.FloatArray, y: kit.types.FloatArray, alpha: float, beta: float) -> Posterior:
    """Computes the posterior for inputs x `[n, d]`, targets y `[n]`, and positive precisions alpha and beta."""
    precision = alpha * kit.numpy.eye(x.shape[1]) + beta * x.T @ x
    covariance = kit.numpy.asarray(kit.numpy.linalg.inv(precision), dtype=kit.numpy.float64)
    mean = kit.numpy.asarray(beta * kit.numpy.linalg.solve(precision, x.T @ y), dtype=kit.numpy.float64)
    return Posterior(mean, covariance, alpha, beta)


def unit_precisions(x: kit.types.FloatArray, y: kit.types.FloatArray) -> Posterior:
    """Computes the posterior for a standard normal prior. The noise has the variance of the targets."""
    return posterior(x, y, 1.0, 1.0 / max(float(y.var()), 1e-12))


def evidence_precisions(x: kit.types.FloatArray, y: kit.types.FloatArray) -> Posterior:
    """Computes the posterior for the precisions that maximize the marginal likelihood.

    Example:
        >>> x = kit.numpy.linspace(-1, 1, 50)[:, None]
        >>> evidence_precisions(x, 2 * x[:, 0]).mean.round(3).tolist()
        [2.0]
    """
    n = len(y)
    gram = kit.numpy.maximum(kit.numpy.linalg.eigvalsh(x.T @ x), 0.0)
    now = unit_precisions(x, y)
    for _ in range(STEPS):
        used = float((now.beta * gram / (now.alpha + now.beta * gram)).sum())  # well-determined weights
        alpha = used / max(float(now.mean @ now.mean), 1e-12)
        beta = max(n - used, 1e-12) / max(float(((y - x @ now.mean) ** 2).sum()), 1e-12)
        settled = abs(alpha / now.alpha - 1) + abs(beta / now.beta - 1) < TOLERANCE
        now = posterior(x, y, alpha, beta)
        if settled:
            break
    return now
