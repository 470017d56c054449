"""One network that has learned the answer of all models of a run: small enough to be sent, or to answer quickly.

The teacher is whatever answers for the run: an ensemble, FENS's networks behind their aggregator, a client's own. The
student starts at weights of its own and follows the teacher's probabilities on inputs without labels, by Adam at a
cosine rate (`fedray.components.fusion`). Nothing of the run changes.

Source: Allouah et al., *Revisiting Ensembling in One-Shot Federated Learning*, NeurIPS 2024 (FENS), the optional last
phase; Hinton, Vinyals, Dean 2015 at temperature 1.

Example:
    >>> import fedray
    >>> run = fedray.run({"rounds": 2, "clients": {"number": 4}}, runtime="inline", report=False)
    >>> images = run.study.shards.data.test.x
    >>> student = run.distil(images, {"name": "linear"}, steps=100)
    >>> student.predict(images[:3]).shape, student.net.layout.d
    ((3, 10), 650)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.assembly.models import make_network
from fedray.assembly.students import choose_students
from fedray.assembly.user_objects import UserObjects
from fedray.components.fusion import Fusion, ServerRows, follow_teacher
from fedray.components.student import ask_model
from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.types import FloatArray, Net
from fedray.data.forms.new_rows import read_inputs
from fedray.models.net import whole_state_dict
from fedray.scenario.loader import read_scenario
from fedray.simulation.study import Study


@dataclass(frozen=True)
class Distilled:
    """A network that has learned from a run.

    Attributes:
        study: The run's study, which standardizes inputs.
        world: The world whose statistics do that.
        net: The network.
        row: Its numbers, `[d]`.
    """

    study: Study
    world: int
    net: Net
    row: Tensor

    def predict(self, x: Any) -> FloatArray:
        """Probabilities `[n, C]` of raw inputs `[n, *sample]`, as `Run.predict` takes them."""
        inputs = _standardize(self.study, torch.as_tensor(read_inputs(self.study.shards.data, x)), self.world)
        found: FloatArray = ask_model(self.net, self.row, inputs).softmax(-1).numpy()
        return found

    def state_dict(self) -> dict[str, Tensor]:
        """A plain torch state dict of the network, which reads standardized inputs."""
        return whole_state_dict(self.net, self.row)


class Lesson(NamedTuple):
    """What a run says of some inputs.

    Attributes:
        x: Raw inputs, `[n, *sample]`.
        answers: Their probabilities, `[n, C]`.
        world: The world that has answered.
    """

    x: Any
    answers: FloatArray
    world: int


def teach_network(
    study: Study, own: UserObjects, lesson: Lesson, *, model: Mapping[str, Any] | None, how: Fusion
) -> Distilled:
    """Teaches a network what a run has answered.

    Args:
        study: The run's.
        own: The Python objects that the run was started with.
        lesson: What it has answered.
        model: The network, with the keys of the section `model`; None: that of the scenario.
        how: How it learns.

    Raises:
        BadInput: The run has no classes, the network is none for its data, or `how` says nonsense.
    """
    if how.steps < 0 or not how.lr > 0:
        raise BadInput(f"distil: steps = {how.steps}, lr = {how.lr:g}: give at least 0 steps, and a rate above 0")
    if not study.classes:
        raise BadInput(f"distil: {study.shards.data.name} has real targets: choose a run on data with classes")
    keys = study.scenario if model is None else {"model": dict(model), "data": study.scenario["data"]}
    scenario = read_scenario(keys, explicit=False)
    net = make_network(scenario, study.shards.data, own if model is None else UserObjects(), worlds=1)
    inputs = _standardize(study, torch.as_tensor(read_inputs(study.shards.data, lesson.x)), lesson.world)
    seed = int(study.seeds[lesson.world])
    start = net.init(int(rng.keys(seed, "distilled start") >> np.uint64(2)))
    rows = ServerRows(inputs, inputs[:0], torch.empty(0, dtype=torch.int64))
    target = torch.from_numpy(np.asarray(lesson.answers)).to(start.dtype)
    engine, key = choose_students(study.lanes)(net), rng.keys(seed, "distilled")
    row = follow_teacher(net, how, start, target, rows=rows, key=key, engine=engine)
    return Distilled(study, lesson.world, net, row)


def _standardize(study: Study, x: Tensor, world: int) -> Tensor:
    return study.shards.normalize(x[None], torch.tensor([world]))[0]
