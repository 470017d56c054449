"""FedDF: FedAvg whose server teaches its mean what all uploads say together, on inputs that no client has.

Source: Lin, Kong, Stich, Jaggi, *Ensemble Distillation for Robust Model Fusion in Federated Learning*, NeurIPS 2020,
arXiv 2006.07242, Alg. 1; `teacher: confidence` is the weighted teacher of Fed-ET (Cho, Manoel, Joshi, Sim, Dimitriadis,
IJCAI 2022). The inputs are a share of the training rows that the server holds instead of the clients (`inputs:
withheld`), the rows of another data set of the same shape, or noise.

Deviations:
    1. All clients and the student have one architecture (the paper: also one student for each of several).
    2. `validation` is a share of the training rows, with their labels; the student that scores best on them stays, and
       so does the mean if none is better (the authors' option `return_best_model_on_val`).
    3. Normalization layers keep the mean's statistics in distillation.
    4. Noise is one fixed set of standard normal inputs for each world; the paper draws new noise for every batch.
    5. `confidence` takes Fed-ET's weights alone: its student is a larger network that aims at hard labels, with a term
       for the diversity of the clients.

Example:
    >>> import fedray
    >>> scenario = {"method": {"name": "feddf", "distil_steps": 50}, "rounds": 3, "clients": {"number": 10}}
    >>> run = fedray.run(scenario, local__lr=0.03, runtime="inline", report=False)
    >>> print(f"{run.summary['metrics']['accuracy']['mean']:.1f}")
    0.9
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from fedray.components.fusion import distilling_server
from fedray.components.schedule import permutation
from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.method import Method
from fedray.methods.base import federated
from fedray.methods.setting import Setting


def feddf(setting: Setting) -> Method:
    """K models `[K, d]` (the paper: 1), each taught by the clients that trained it; traffic is FedAvg's."""
    learn = setting.distil
    if learn is None:
        raise BadInput("method.inputs: the server holds no inputs to distil on: raise method.server_data")

    def fuse(world: int, model: int, t: int, start: Tensor, teachers: Tensor) -> Tensor:
        return learn(world, start, teachers, rng.keys(setting.seeds[world], "distil", t, model))

    phase = federated(setting, assign=permutation)  # lines 3-5: clients train from the global model; line 6: the mean
    return Method("feddf", replace(phase, server=distilling_server(phase.server, setting.state_rows, fuse)))  # 7-10
