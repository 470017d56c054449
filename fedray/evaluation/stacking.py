"""Scores and report data of a stack: of its own prediction, of the plain average of its sub models, and of each."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from fedray.core.types import FloatArray, IntArray, State
from fedray.features.stacking import FeatureShards
from fedray.metrics import classification
from fedray.simulation.stacking import is_trained, read_part
from fedray.simulation.study import Part, Study

MOST_REPORTED_FOLDS = 50  # with more folds, the accuracy of each fold is no metric


def find_bases(study: Study) -> list[Part]:
    """Returns the parts of a stack that are bases, and not the meta model."""
    return [part for part in study.parts if not isinstance(part.study.shards, FeatureShards)]


def split_by_base(study: Study, members: FloatArray) -> list[FloatArray]:
    """Returns for each base the mean probabilities of each fold's models, `[F, n, C]`, given those of all models."""
    found = []
    for part in find_bases(study):
        own = members[part.first : part.first + part.folds * part.models]
        found.append(own.reshape(part.folds, part.models, *own.shape[1:]).mean(axis=1))
    return found


def average_bases(bases: list[FloatArray]) -> FloatArray:
    """Returns the average of the bases, `[n, C]`, from their probabilities `[F, n, C]`; a stack should beat this."""
    return np.asarray(np.mean([folds.mean(axis=0) for folds in bases], axis=0))


def score_stack(study: Study, probs: FloatArray, y: IntArray) -> dict[str, float]:
    """Returns the scores of a stack's prediction, of the plain average of its bases, and of each base and fold.

    Args:
        study: The study of the stack.
        probs: Probabilities of the stack, followed by those of its sub models, `[1 + P, n, C]`.
        y: True labels, `[n]`.
    """
    bases = split_by_base(study, probs[1:])
    average = average_bases(bases)
    scores = classification.classification_scores(probs[1:], y, probs[0])
    scores |= {
        "accuracy_average": classification.accuracy(average, y),
        "f1_average": classification.f1_scores(average, y)["f1_weighted"],
    }
    for i, folds in enumerate(bases if study.parts[0].combine is None else []):
        scores[f"accuracy_base_{i}"] = classification.accuracy(folds.mean(axis=0), y)
        if 1 < len(folds) <= MOST_REPORTED_FOLDS:
            scores |= {f"accuracy_base_{i}_fold_{f}": classification.accuracy(one, y) for f, one in enumerate(folds)}
    return scores


def collect_stack_report(study: Study, state: State, probs: FloatArray, y: IntArray) -> dict[str, Any]:
    """Returns the arrays for the report of a stack.

    Args:
        study: The study of the stack.
        state: The state with the models of the stack.
        probs: Probabilities on the test samples of the stack, followed by those of its sub models, `[1 + P, n, C]`.
        y: True labels, `[n]`.

    Returns:
        Confusion of the plain average, accuracy by base and fold `[bases, F]`, names of the bases, and the weights of a
        softmax meta model `[C, bases * C]` if there is one.
    """
    bases = split_by_base(study, probs[1:])
    arrays = {"confusion_average": classification.confusion(average_bases(bases), y)}
    if study.parts[0].combine is not None:
        return arrays
    arrays |= {
        "stack_folds": np.array([[classification.accuracy(one, y) for one in folds] for folds in bases]),
        "stack_bases": np.array([f"{i} ({part.study.net.name})" for i, part in enumerate(find_bases(study))]),
    }
    meta = study.parts[-1]
    layers = [module for module in meta.study.net.module.modules() if isinstance(module, nn.Linear)]
    if len(study.parts) > len(bases) and len(layers) == 1 and is_trained(state.counters[0]):
        tensors = meta.study.net.layout.views(read_part(state, meta).models[0])
        arrays["meta_weights"] = next(tensor for tensor in tensors.values() if tensor.dim() == 2).numpy()
    return arrays
