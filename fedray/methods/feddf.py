r"""FedDF: FedAvg, whose server then trains the averaged model to predict like the ensemble of the uploads.

Source: Lin, Kong, Stich, Jaggi, *Ensemble Distillation for Robust Model Fusion in Federated Learning*, NeurIPS 2020,
arXiv 2006.07242, Alg. 1. `teacher: confidence` is the weighted teacher of Fed-ET (Cho, Manoel, Joshi, Sim, Dimitriadis,
IJCAI 2022). The key `inputs` chooses the server's inputs: training samples that no client gets (`withheld`), a
different data set with the same shape, or noise.

With the key `networks` the clients have several architectures. The clients of an architecture train it, and the server
averages their uploads (Alg. 3). Each architecture has its own student. All students learn the mean logits of all
uploads.

Formulas of feddf:
    The student starts at the averaged model $\bar w$. On the server's inputs $x$, the student learns the prediction $q$
    of the ensemble of the uploads:

    $$
    \bar w = \sum_{i \in S} p_i u_i, \qquad
    w \leftarrow \operatorname*{argmin}_v \sum_x \mathrm{KL}\bigl(q(x) \,\Vert\, p_v(x)\bigr),
    \qquad
    q(x) = \mathrm{softmax}\Bigl(\sum_{i \in S} a_i(x) \, f_{u_i}(x)\Bigr).
    $$

    $f$ are logits. The weights $a_i$ are equal with `teacher: mean_logits`. With `confidence` they are proportional to
    the variance of the logits $f_{u_i}(x)$ over the classes.

    With `networks` a student starts at the mean $\bar w$ of the uploads of its architecture. The sum in $q(x)$ runs
    over the participants of all architectures.

Deviations:
    1. With `networks`, clients without data get no jobs.
    2. The key `validation` gives the server a share of the training samples, with labels. The server scores the student
       on these samples during its training, and keeps the best version. If no version is better than the averaged
       model, the server keeps the averaged model.
    3. In distillation, the normalization layers keep the statistics of the averaged model.
    4. Noise is one fixed set of standard normal inputs for each world (a combination of a seed and a fold). The paper
       draws new noise for every batch.
    5. From Fed-ET only the weighting of the uploads is taken (`confidence`). In Fed-ET the student is a larger network
       that learns hard labels, with a loss term for the diversity of the clients.
    6. Without rounds an upload is the server's model plus the change times its staleness factor.

Example:
    >>> import fedray
    >>> scenario = {"method": {"name": "feddf", "distil_steps": 50}, "rounds": 3, "clients": {"number": 10}}
    >>> run = fedray.run(scenario, local__lr=0.03, runtime="inline", report=False)
    >>> print(f"{run.summary['metrics']['accuracy']['mean']:.1f}")
    0.9
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedray.core.options import MethodSpec, Needs, Option, ReadSections, flag, means, one_of, real, text, whole
from fedray.methods import kit


@means("list of sections", "like `model`, with the `tier` of its clients")
def check_networks(value: Any, read: ReadSections) -> list[dict[str, Any]]:
    """Checks a list of architectures. Each architecture is a section like `model`.

    The section may also name the `tier` of the clients that train the architecture. With `answers: false` in the
    section, the architecture is trained but does not predict.

    Raises:
        ValueError: The value is not a list of sections.
        BadInput: A section is wrong. The message names the key.
    """
    if not isinstance(value, list | tuple) or len(value) > 100 or not all(isinstance(one, Mapping) for one in value):
        raise ValueError("is not a list of models: write it as [{name: mlp}, {name: linear}]")
    more = {"tier": text, "answers": flag}
    checked = [read.network(f"method.networks[{i}]", one, more) for i, one in enumerate(value)]
    if checked and not any(one.get("answers", True) for one in checked):
        raise ValueError("has no network that answers: leave answers out in one of them")
    return checked


SPECS = {
    "feddf": MethodSpec(
        "FedDF: on server inputs, the averaged model learns to predict like the ensemble of uploads (Lin et al. 2020)",
        family="distillation",
        options={
            "networks": Option(
                [],
                check_networks,
                "M architectures, each a section like `model` with the `tier` of its clients; without tiers, "
                "client i has architecture i modulo M. One with `answers: false` does not predict",
                sections=True,
            ),
            "inputs": Option(
                "withheld",
                text,
                "the inputs of the server: `withheld` training rows, `noise`, or the name of a data set "
                "of the same shape",
            ),
            "server_data": Option(
                0.1,
                real("(0, 1)"),
                "share of the training rows that the server holds instead of the clients",
                Needs("method.inputs", ("withheld",)),
            ),
            "input_rows": Option(10**4, whole(1, 10**7), "how many inputs the server takes of a data set, or of noise"),
            "validation": Option(
                0.05, real("[0, 1)"), "share of the training rows whose labels tell the server when the student stops"
            ),
            "teacher": Option(
                "mean_logits", one_of("mean_logits", "confidence"), "how the uploads' answers become one"
            ),
            "distil_steps": Option(10**4, whole(0, 10**7), "batches of distillation in a round, at most"),
            "distil_lr": Option(0.001, real("(0, inf)"), "learning rate of the student"),
            "distil_batch": Option(128, whole(1, 10**6), "inputs of a batch of distillation"),
            "patience": Option(1000, whole(1, 10**7), "steps without a better score after which the student stops"),
        },
        defaults={"method": {"models": 1}, "server": {"weighting": "examples"}},
        fixed=("robust",),
        server_steps=True,
    ),
}


def feddf(setting: kit.Setting) -> kit.Method:
    """Composes FedDF with K models, `[K, d]`. The paper has K = 1."""
    if setting.stack is not None:
        return _feddf_of_several(setting, setting.stack)
    learn = setting.distil
    assert learn is not None, "the method has the option `distil_steps`"

    def fuse(world: int, model: int, t: int, start: kit.torch.Tensor, teachers: kit.torch.Tensor) -> kit.torch.Tensor:
        return learn(world, start, teachers, kit.rng.keys(setting.seeds[world], "distil", t, model))

    # lines 3-5: clients train from the global model; line 6: the mean
    phase = kit.federated(setting, assign=kit.permutation)
    # 7-10
    server = kit.distillation.distilling_server(phase.server, setting.state_rows, fuse)
    return kit.Method("feddf", replace(phase, server=server, server_work=kit.base.count_distillation(setting)))


def _feddf_of_several(setting: kit.Setting, stack: kit.stacking.Stack) -> kit.Method:
    """Composes one federated training for each architecture (Alg. 3)."""
    learn = setting.fuse
    assert learn is not None, "the method has the option `distil_steps`"

    def fuse(world: int, model: int, t: int, students: list[kit.distillation.Student]) -> list[kit.torch.Tensor]:
        return learn(world, students, kit.rng.keys(setting.seeds[world], "distil", t, model))

    # the clients of one architecture, and the mean of their uploads
    each = kit.federated_each(setting, assign=kit.permutation)
    work = kit.base.count_distillation(setting)  # for the student of each architecture
    parts = tuple(
        replace(phase, server=kit.distillation.keeping_server(phase.server), server_work=work) for phase in each
    )
    nets = [base.net for base in stack.bases]
    return kit.Method(
        "feddf", parts[0], parts=parts, join=kit.distillation.join_architectures(nets, setting.state_rows, fuse)
    )
