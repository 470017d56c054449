"""What the models of a run answer for raw inputs.

Example:
    >>> import fedray
    >>> run = fedray.run({"rounds": 1, "clients": {"number": 4}}, runtime="inline")
    >>> images = run.study.shards.data.test.x[:3]
    >>> run.predict(images).probabilities.shape
    (3, 10)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedray.core.errors import BadInput
from fedray.core.types import EVALUATED_ROWS, FloatArray, State
from fedray.evaluation.clients import find_best_pass, weigh_models
from fedray.evaluation.regression import predict_targets
from fedray.metrics import ensemble
from fedray.runtime.evaluation import mean_losses, score_known_clients
from fedray.runtime.personal import own_models
from fedray.runtime.stacking import make_worker
from fedray.simulation.study import Study


@dataclass(frozen=True)
class Prediction:
    """What an ensemble answers for n inputs.

    Attributes:
        mean: probabilities `[n, C]`, in the order of `Run.class_names`, or targets `[n, q]` in original units.
        variance: of the same shape: the population variance of the models' answers (knowledge uncertainty, Fed-ensemble
            section V-B), plus the mean of the variances that the models predict themselves (Gaussian heads, closed
            forms), without observation noise.
        probabilities: the same as `mean` for classification; None for regression.
    """

    mean: FloatArray
    variance: FloatArray
    probabilities: FloatArray | None


class Predictor:
    """Answers raw inputs with the models of one checkpoint; it is made once and can be called many times."""

    def __init__(self, study: Study, state: State, private: dict[str, Tensor]) -> None:
        """Builds the worker that holds the data and the clients' private vectors.

        Args:
            study: what was trained.
            state: the models of the checkpoint.
            private: the clients' private vectors, saved with it.
        """
        self.study, self.state, self.answer = study, state, study.answer(state)
        self.worker = make_worker(study)
        if study.method.phase.is_personal:
            self.worker.private.restore(private)

    def predict(self, x: Any, *, client: int | None, replicate: int, fold: int) -> Prediction:
        """The answer of the ensemble, or of a client's own models.

        Args:
            x: raw inputs `[n, *sample]`, as the data set stores them.
            client: a known client, 0 to N - 1, whose weights or models answer; None: everybody's.
            replicate: 0 to R - 1.
            fold: the place of the fold among those that were run, from 0.

        Raises:
            BadInput: an argument does not fit the run.
        """
        study, answer = self.study, self.answer
        inputs, world = torch.as_tensor(np.asarray(x)), replicate * study.per_replicate + fold
        _check(study, inputs, client, replicate, fold)
        models, weights = slice(world * answer.models, (world + 1) * answer.models), None
        rows, counters = answer.state.models[models], answer.state.counters[models]
        if client is not None and study.method.phase.is_personal:
            rows = self._own_models(world, client)
        elif client is not None and not study.parts:
            weights = self._weights(world, client)
        elif answer.weights is not None:
            weights = answer.weights[world] / answer.weights[world].sum()
        pieces = [self.worker.forward(rows, counters, world, piece) for piece in torch.split(inputs, EVALUATED_ROWS)]
        outputs = torch.cat(pieces, dim=1)  # [A, n, C]
        if not study.classes:
            means, variances = predict_targets(study, world, outputs, inputs, answer)
            return Prediction(*ensemble.mixture_moments(means, weights, variances), None)
        members, mean = ensemble.answer_classes(outputs.numpy(), study.evaluation.average, weights)
        return Prediction(mean, ensemble.mixture_moments(members, weights).variance, mean)

    def _weights(self, world: int, client: int) -> FloatArray:
        """A known client's weights over the A models, `[A]`; a model that does not answer has none."""
        weights = np.zeros(self.answer.models)
        if self.study.method.one_model_per_client:
            weights[client] = 1.0
            return weights
        losses = mean_losses(self.worker, self.answer.state, world, np.array([client]), len(weights))
        present = self.answer.weights
        answers = np.ones(len(weights), dtype=np.bool_) if present is None else present[world] > 0
        weights[answers] = weigh_models(self.study, losses[torch.from_numpy(answers)])[0]
        return weights

    def _own_models(self, world: int, client: int) -> Tensor:
        """A client's models `[K, d]`: of several personal passes those that are best on its held-out rows."""
        study, phase = self.study, self.study.method.phase
        rows = own_models(self.worker.private, study, self.state, world, client)
        passes = rows.view(-1, phase.models, rows.shape[1])
        if len(passes) == 1:
            return passes[0]
        held_out = score_known_clients(self.worker, self.state, [(world, client)])[world, client][1]
        return passes[int(find_best_pass(held_out.numpy()[None], lowest=not study.classes)[0])]


def _check(study: Study, inputs: Tensor, client: int | None, replicate: int, fold: int) -> None:
    """Raises `BadInput` where the arguments of `predict` do not fit the run."""
    if tuple(inputs.shape[1:]) != study.input_shape:
        raise BadInput(
            f"x has shape {list(inputs.shape)}, but the model takes [n, {', '.join(map(str, study.input_shape))}]"
        )
    if not (0 <= replicate < study.replicates and 0 <= fold < study.per_replicate):
        raise BadInput(
            f"replicate = {replicate}, fold = {fold}: the run has {study.replicates} x {study.per_replicate}"
        )
    if client is not None and not 0 <= client < study.clients.number:
        raise BadInput(f"client = {client}, but the run has clients 0 to {study.clients.number - 1}")
