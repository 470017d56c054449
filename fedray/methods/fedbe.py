r"""FedBE: a Bayesian ensemble at the server, and its distillation into the next model.

Source: Chen, Chao, *FedBE: Making Bayesian Model Ensemble Applicable to Federated Learning*, ICLR 2021, Alg. 1. The
teachers of a round (the uploads, their mean, and models drawn around this mean) predict together. `fedbe` distils the
teachers into the model of the next round, on unlabelled inputs that the server holds. `fedbe_nokd` takes one of the
drawn models as the next model instead.

Formulas of fedbe:
    $\bar w = \sum_i p_i u_i$ is the mean of the uploads, and $\sigma^2 = \sum_i p_i (u_i - \bar w)^2$ is their
    variance. The teachers $T$ of a round are the mean, $S$ (`samples`) drawn models $v_s$, and the $n$ uploads:

    $$
    T = \{\bar w\} \cup \{v_1, \dots, v_S\} \cup \{u_1, \dots, u_n\}, \qquad v_s \sim N(\bar w, \operatorname{diag}
    \sigma^2)
    \quad\text{or}\quad v_s = \sum_i \gamma_i u_i,\; \gamma \sim \mathrm{Dirichlet}(1, \dots, 1).
    $$

    The prediction is the average of the teachers' probabilities, $\bar p(x) = \frac{1}{|T|} \sum_{v \in T} p_v(x)$.
    With $K > 1$ the teachers of all models predict together, with equal weights. A model with more teachers thus has a
    larger weight.

    A student starts from $\bar w$. On the server's inputs $x$, the student learns $q(x)$, which is $\bar p(x)$
    sharpened by the `temperature` $\tau$:

    $$
    w \leftarrow \operatorname*{argmin}_v \sum_x \mathrm{KL}\bigl(q(x) \,\Vert\, p_v(x)\bigr), \qquad
    q_c(x) \propto \bar p_c(x)^{1 / \tau}.
    $$

    The student's weights are stored at the end of each epoch in the second half of training. The next model is the
    average of these weights.

Formulas of fedbe_nokd:
    `fedbe_nokd` is FedBE without distillation: the next model is one of the draws $v_s$.

Deviations:
    1. The server's inputs are a random share (`server_data`) of the clients' training samples. Every client keeps at
       least one sample. The labels of the server's samples are never used.
    2. The student trains by SGD with momentum 0.9 at a constant learning rate. The paper uses a cyclical rate.
    3. The Dirichlet distribution gives all clients equal weights on average, even with `server.weighting: examples`.
    4. Without rounds an upload is the server's model plus the change times its staleness factor.

Example:
    >>> import fedray
    >>> scenario = {"method": {"name": "fedbe_nokd", "samples": 5}, "rounds": 3, "clients": {"number": 10}}
    >>> run = fedray.run(scenario, local__lr=0.03, runtime="inline", report=False)
    >>> print(f"{run.summary['metrics']['accuracy']['mean']:.1f}")  # of 1 + 5 + 10 teachers
    0.9
"""

from __future__ import annotations

from dataclasses import replace

from fedray.core.options import MethodSpec, Option, one_of, real, whole
from fedray.methods import kit
from fedray.methods.fedag import answer_with_sample

_SAMPLER = {
    "sampler": Option("gaussian", one_of("gaussian", "dirichlet"), "the distribution from which models are drawn"),
    "samples": Option(10, whole(1, 10**4), "S, the models that are drawn"),
}
_FEDBE = MethodSpec(
    "FedBE: a Bayesian ensemble at the server, distilled into the next model (Chen and Chao 2021)",
    family="Bayesian",
    options={
        **_SAMPLER,
        "temperature": Option(
            0.5, real("(0, inf)"), "temperature of the teachers' probabilities; below 1 it sharpens them"
        ),
        "server_data": Option(
            0.1, real("(0, 1)"), "share of the training rows that the server holds instead of the clients"
        ),
        "distil_epochs": Option(20, whole(0, 10**6), "passes over the server's inputs"),
        "distil_lr": Option(0.01, real("(0, inf)"), "learning rate of the student"),
        "distil_batch": Option(32, whole(1, 10**6), "inputs of a batch of distillation"),
    },
    defaults={"method": {"models": 1}, "server": {"weighting": "examples"}},
    fixed=("robust", "optimizer", "coefficients"),
    samples=True,
    server_steps=True,
)
SPECS = {
    "fedbe": _FEDBE,
    "fedbe_nokd": replace(
        _FEDBE,
        text="FedBE without distillation: the next model is a random sample",
        options=_SAMPLER,
        server_steps=False,
    ),
}


def fedbe(setting: kit.Setting) -> kit.Method:
    """Composes FedBE with K models, `[K, d]`. The paper has K = 1."""
    learn = setting.distil
    assert learn is not None, "the method has the option `distil_epochs`"

    def follow(world: int, model: int, t: int, teachers: kit.torch.Tensor) -> kit.torch.Tensor:
        return learn(world, teachers[0], teachers, kit.rng.keys(setting.seeds[world], "distil", t, model))

    method, teachers = with_teachers(setting, "fedbe", follow), 1 + setting.options["samples"]
    work = kit.base.count_distillation(setting, teachers)
    return replace(method, phase=replace(method.phase, server_work=work))


def fedbe_nokd(setting: kit.Setting) -> kit.Method:
    """Composes FedBE without distillation. The next model is one of the drawn models."""
    drawn = kit.numpy.uint64(setting.options["samples"])

    def follow(world: int, model: int, t: int, teachers: kit.torch.Tensor) -> kit.torch.Tensor:
        return teachers[1 + int(kit.rng.keys(setting.seeds[world], "fedbe next", t, model) % drawn)]

    return with_teachers(setting, "fedbe_nokd", follow)


def with_teachers(setting: kit.Setting, name: str, follow: kit.gaussians.Follow) -> kit.Method:
    """Composes FedAvg with FedBE's server. All teachers predict together.

    `follow` is a function that takes (world, model, round, teachers) and returns the next model.
    """
    sampler = kit.gaussians.TeacherSampler(
        setting.options["sampler"], setting.options["samples"], setting.layout.trainable
    )
    kept = kit.gaussians.ModelSampler("bootstrap", setting.participants, setting.seeds, setting.layout.trainable)
    # line 8: N(mean, diag variance)
    fitted = kit.gaussians.gaussian_server(setting.state_rows, kept, setting.weighting)
    phase = replace(
        kit.federated(setting, assign=kit.permutation),  # lines 2-6: clients train from the global model
        server=kit.gaussians.teacher_server(fitted, setting.state_rows, setting.seeds, sampler, follow),  # lines 7-13
    )
    return kit.Method(
        name, phase, lambda state: answer_with_sample(state, setting.models, setting.clients.number, "teachers")
    )
