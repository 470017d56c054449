"""FedBE: a Bayesian ensemble at the server, and its distillation into the next model.

Source: Chen, Chao, *FedBE: Making Bayesian Model Ensemble Applicable to Federated Learning*, ICLR 2021, Alg. 1. The
teachers of a round are the mean, S samples of a Gaussian (or Dirichlet) fitted to the uploads, and the uploads
themselves; their average is the prediction. `fedbe` distils them, on unlabelled inputs that the server holds, into the
model of the next round; `fedbe_nokd` sends one of the samples instead.

Deviations:
    1. The server's inputs are a share (`server_data`) of the training rows, taken from the clients at random (every
       client keeps at least one row); their labels are never read.
    2. The student averages its weights at the ends of the second half of the epochs, at a constant learning rate (the
       paper: a cyclical one).
    3. The Dirichlet is flat: clients weigh the same in it, also under `server.weighting: examples`.

Example:
    >>> import fedray
    >>> scenario = {"method": {"name": "fedbe_nokd", "samples": 5}, "rounds": 3, "clients": {"number": 10}}
    >>> run = fedray.run(scenario, local__lr=0.03, runtime="inline", report=False)
    >>> print(f"{run.summary['metrics']['accuracy']['mean']:.1f}")  # of 1 + 5 + 10 teachers
    0.9
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from fedray.components.gaussians import (
    Follow,
    Sampling,
    TeacherSampler,
    follow_random_sample,
    gaussian_server,
    teacher_server,
)
from fedray.components.schedule import permutation
from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.method import Method
from fedray.methods.base import federated
from fedray.methods.fedag import answer_with_sample
from fedray.methods.setting import Setting


def fedbe(setting: Setting) -> Method:
    """K models `[K, d]` (the paper: 1), 1 + S + clients teachers each; traffic is FedAvg's."""
    learn = setting.distil
    if learn is None:
        raise BadInput("method.server_data: the server holds no inputs to distil on: raise it, or choose fedbe_nokd")

    def follow(world: int, model: int, t: int, teachers: Tensor) -> Tensor:
        return learn(world, teachers[0], teachers, rng.keys(setting.seeds[world], "distil", t, model))

    return with_teachers(setting, "fedbe", follow)


def fedbe_nokd(setting: Setting) -> Method:
    """FedBE without distillation: the next model is a random sample."""
    return with_teachers(setting, "fedbe_nokd", follow_random_sample(setting.seeds, setting.options["samples"]))


def with_teachers(setting: Setting, name: str, follow: Follow) -> Method:
    """FedAvg with FedBE's server; every teacher answers.

    Args:
        setting: the pieces.
        name: of the method.
        follow: makes the next model of the teachers.
    """
    sampler = TeacherSampler(setting.options["sampler"], setting.options["samples"], setting.layout.trainable)
    kept = Sampling("bootstrap", setting.participants, setting.seeds, setting.layout.trainable)
    fitted = gaussian_server(setting.state_rows, kept, setting.weighting)  # line 8: N(mean, diag variance)
    phase = replace(
        federated(setting, assign=permutation),  # lines 2-6: clients train from the global model
        server=teacher_server(fitted, setting.state_rows, setting.seeds, sampler, follow),  # lines 7-13
    )
    return Method(
        name, phase, lambda state: answer_with_sample(state, setting.models, setting.clients.number, "teachers")
    )
