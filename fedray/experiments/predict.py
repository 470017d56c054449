"""What the models of a run answer for raw inputs.

Example:
    >>> import fedray
    >>> run = fedray.run({"rounds": 1, "clients": {"number": 4}}, runtime="inline")
    >>> images = run.study.shards.data.test.x[:3]
    >>> run.predict(images).probabilities.shape
    (3, 10)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedray.core.errors import BadInput, FedrayWarning, warn_user
from fedray.core.method import Answer
from fedray.core.types import EVALUATED_ROWS, FloatArray, State
from fedray.data.client_names import find_client
from fedray.data.forms.new_rows import read_inputs
from fedray.data.ranges import find_range, tell_scale
from fedray.evaluation.client_weights import rank_own_models, weigh_models
from fedray.evaluation.mixture import read_weights
from fedray.evaluation.regression import predict_targets
from fedray.experiments.conformal import Calibrated, calibrate_answers, find_intervals, find_sets, read_rule
from fedray.metrics import ensemble
from fedray.metrics.conformal import ConformalRule
from fedray.runtime.evaluation import fit_mixtures, mean_losses, pick_own_models
from fedray.runtime.inline import Inline
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
        members: the answer of each model by itself, `[K, n, C]` or `[K, n, q]`: of those that answer for everybody, of
            the base models of a stack, or of a client's own models.
        sets: which labels are in the conformal set of each input, `[n, C]`; None without `predict.conformal`.
        interval: lower and upper end of its conformal interval, `[n, 2]`, in original units; None likewise.
    """

    mean: FloatArray
    variance: FloatArray
    probabilities: FloatArray | None
    members: FloatArray
    sets: NDArray[np.bool_] | None = None
    interval: FloatArray | None = None


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
        self.runtime = Inline(study)
        self.worker = self.runtime.worker
        self._calibrated: dict[ConformalRule, Calibrated] = {}
        data = study.shards.data
        self._range = None if data.kind == "tokens" or not len(data.train.x) else find_range(data.train.x)
        if study.method.phase.is_personal or study.method.phase.mixture:
            self.worker.private.restore(private)

    def predict(
        self, x: Any, *, client: int | str | None, replicate: int, fold: int, conformal: Mapping[str, Any] | None = None
    ) -> Prediction:
        """The answer of the ensemble, or of a client's own models.

        Args:
            x: raw inputs `[n, *sample]`, as the data were given, or a table with the columns they were read from.
            client: a known client, its name or 0 to N - 1, whose weights or models answer; None: everybody's.
            replicate: 0 to R - 1.
            fold: the place of the fold among those that were run, from 0.
            conformal: keys of `predict.conformal` instead of the scenario's.

        Raises:
            BadInput: an argument does not fit the run.
        """
        study = self.study
        inputs = torch.as_tensor(read_inputs(study.shards.data, x))
        world = replicate * study.per_replicate + fold
        _check(study, inputs, replicate, fold)
        if self._range is not None and inputs.numel() and inputs.min() < inputs.max():  # and not blank
            for remark in tell_scale(self._range, inputs.numpy(), "the rows of x", study.shards.data.features):
                warn_user(remark, FedrayWarning)
        known = None if client is None else find_client(client, study.client_names, study.clients.number)
        rule = read_rule(study, conformal)
        found, answer = self.ask(inputs, world, known)
        return found if rule is None else self._add_sets(found, rule, world, answer, known=client is not None)

    def ask(self, inputs: Tensor, world: int, client: int | None) -> tuple[Prediction, Answer]:
        """The answer of a world's ensemble, or of a known client, without sets, and the models that gave it.

        Args:
            inputs: raw inputs `[n, *sample]`, as the study's splits have them.
            world: the world.
            client: the client's id; None: everybody's answer.
        """
        study, answer = self.study, self.answer
        models, weights = slice(world * answer.models, (world + 1) * answer.models), None
        rows, counters = answer.state.models[models], answer.state.counters[models]
        if client is not None and study.method.phase.is_personal:
            rows = pick_own_models(self.worker, self.state, world, client)
            answer = Answer(State(rows, counters, {}), len(rows))
        elif client is not None and not study.parts:
            weights = self._weights(world, client)
        elif answer.weights is not None:
            weights = answer.weights[world] / answer.weights[world].sum()
        pieces = [self.worker.forward(rows, counters, world, piece) for piece in torch.split(inputs, EVALUATED_ROWS)]
        outputs = torch.cat(pieces, dim=1)  # [A, n, C]
        if not study.classes:
            means, variances = predict_targets(study, world, outputs, inputs, answer)
            moments = ensemble.mixture_moments(means, weights, variances)
            return Prediction(*moments, None, _pick_members(study, answer, world, means)), answer
        members, mean = ensemble.answer_classes(outputs.numpy(), study.evaluation.average, weights)
        mean = mean if answer.combine is None else answer.combine(world, members)
        spread = ensemble.mixture_moments(members, weights).variance
        return Prediction(mean, spread, mean, _pick_members(study, answer, world, members)), answer

    def _add_sets(
        self, found: Prediction, rule: ConformalRule, world: int, answer: Answer, *, known: bool
    ) -> Prediction:
        """The prediction with its conformal sets or intervals; the withheld rows are answered once for each rule."""
        if rule not in self._calibrated:
            self._calibrated[rule] = calibrate_answers(self.study, self.runtime, self.state, rule)
        calibrated = self._calibrated[rule]
        if found.probabilities is not None:
            sets = find_sets(self.study, world, calibrated, found.probabilities, known=known)
            return replace(found, sets=sets)
        moments = found.mean, found.variance
        return replace(found, interval=find_intervals(self.study, world, calibrated, moments, answer, known=known))

    def _weights(self, world: int, client: int) -> FloatArray:
        """A known client's weights over the A models, `[A]`; a model that does not answer has none."""
        weights = np.zeros(self.answer.models)
        if self.study.method.phase.mixture:
            known = read_weights(self.worker.private.state(), world, client + 1, len(weights))[client]
            new = fit_mixtures(self.worker, self.answer.state, world, np.array([client]), len(weights)).numpy()[:, 0]
            return new if np.isnan(known).any() else known
        if self.study.method.one_model_per_client:
            losses = rank_own_models(len(weights), np.array([client]))
        else:
            losses = mean_losses(self.worker, self.answer.state, world, np.array([client]), len(weights))
        present = self.answer.weights
        answers = np.ones(len(weights), dtype=np.bool_) if present is None else present[world] > 0
        weights[answers] = weigh_models(self.study, self.answer, world, losses, np.array([client]))[0]
        return weights


def _pick_members(study: Study, answer: Answer, world: int, each: FloatArray) -> FloatArray:
    """Of the answers of all models of a world, `[A, n, ...]`, those of its members."""
    if study.parts:  # the answer of a stack comes first
        return each[1:]
    return each if answer.weights is None else each[answer.weights[world] > 0]


def _check(study: Study, inputs: Tensor, replicate: int, fold: int) -> None:
    """Raises `BadInput` where the arguments of `predict` do not fit the run."""
    if tuple(inputs.shape[1:]) != study.input_shape:
        raise BadInput(
            f"x has shape {list(inputs.shape)}, but the model takes [n, {', '.join(map(str, study.input_shape))}]: "
            "give inputs of that shape"
        )
    if not (0 <= replicate < study.replicates and 0 <= fold < study.per_replicate):
        raise BadInput(
            f"replicate = {replicate}, fold = {fold}: give a replicate from 0 to {study.replicates - 1} and a fold "
            f"from 0 to {study.per_replicate - 1}"
        )
