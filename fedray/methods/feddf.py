"""FedDF: FedAvg whose server trains its mean to answer as the ensemble of the uploads, on inputs that no client has.

Source: Lin, Kong, Stich, Jaggi, *Ensemble Distillation for Robust Model Fusion in Federated Learning*, NeurIPS 2020,
arXiv 2006.07242, Alg. 1; `teacher: confidence` is the weighted teacher of Fed-ET (Cho, Manoel, Joshi, Sim, Dimitriadis,
IJCAI 2022). The inputs are a share of the training rows that the server holds instead of the clients (`inputs:
withheld`), the rows of another data set of the same shape, or noise.

`networks` gives the clients several architectures. Each is trained and averaged by its own clients (Alg. 3 of the
paper), and has a student of its own; all students aim at the mean of all uploads' logits, whatever their architecture.

Deviations:
    1. With several architectures (`networks`) the answer is the mean of their students' probabilities, and a client
       without data counts for none of them.
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

from fedray.core.errors import BadInput
from fedray.methods import kit


def feddf(setting: kit.Setting) -> kit.Method:
    """K models `[K, d]` (the paper: 1), each taught by the clients that trained it; traffic is FedAvg's."""
    if setting.stack is not None:
        return _feddf_of_several(setting, setting.stack)
    learn = setting.distil
    if learn is None:
        raise BadInput("method.inputs: the server holds no inputs to distil on: raise method.server_data")

    def fuse(world: int, model: int, t: int, start: kit.torch.Tensor, teachers: kit.torch.Tensor) -> kit.torch.Tensor:
        return learn(world, start, teachers, kit.rng.keys(setting.seeds[world], "distil", t, model))

    # lines 3-5: clients train from the global model; line 6: the mean
    phase = kit.federated(setting, assign=kit.permutation)
    # 7-10
    return kit.Method(
        "feddf", replace(phase, server=kit.distillation.distilling_server(phase.server, setting.state_rows, fuse))
    )


def _feddf_of_several(setting: kit.Setting, stack: kit.stacking.Stack) -> kit.Method:
    """One federated training for each architecture (Alg. 3), and what the students learn from all of them.

    `fedray.simulation.stacking` makes one study of these parts.
    """
    learn = setting.fuse
    if learn is None:
        raise BadInput("method.inputs: the server holds no inputs to distil on: raise method.server_data")

    def fuse(world: int, model: int, t: int, students: list[kit.distillation.Student]) -> list[kit.torch.Tensor]:
        return learn(world, students, kit.rng.keys(setting.seeds[world], "distil", t, model))

    # the clients of one architecture and their mean, as above
    each = kit.federated_each(setting, assign=kit.permutation)
    parts = tuple(replace(phase, server=kit.distillation.keeping_server(phase.server)) for phase in each)
    nets = [base.net for base in stack.bases]
    return kit.Method(
        "feddf", parts[0], parts=parts, join=kit.distillation.join_architectures(nets, setting.state_rows, fuse)
    )
