"""Scores and pictures of a stack: its own answer, the plain average of its sub models, and each sub model's."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from fedray.core.types import FloatArray, IntArray, State
from fedray.data.stacking import LeaveOut
from fedray.metrics import classification
from fedray.simulation.parts import is_trained, read_part
from fedray.simulation.study import Part, Study

TOLD = 50  # folds up to which each one's accuracy is a metric of its own


def base_answers(study: Study) -> list[Part]:
    """The parts that are bases."""
    return [part for part in study.parts if isinstance(part.study.shards, LeaveOut)]


def accuracy_by_fold(study: Study, members: FloatArray) -> list[FloatArray]:
    """The sub models' probabilities `[P, n, C]` as `[F, n, C]` a base: averaged over its x models."""
    out = []
    for part in base_answers(study):
        own = members[part.first : part.first + part.folds * part.models]
        out.append(own.reshape(part.folds, part.models, *own.shape[1:]).mean(axis=1))
    return out


def average_of_bases(study: Study, members: FloatArray) -> FloatArray:
    """The plain average of the bases, `[n, C]`: what a stack is to beat."""
    return np.asarray(np.mean([each.mean(axis=0) for each in accuracy_by_fold(study, members)], axis=0))


def score_stack(study: Study, probs: FloatArray, y: IntArray) -> dict[str, float]:
    """Scores of a stack from `[1 + P, n, C]`: its answer, then its sub models'."""
    members = probs[1:]
    scores = classification.classification_scores(members, y, probs[0])
    average = average_of_bases(study, members)
    scores |= {
        "accuracy_average": classification.accuracy(average, y),
        "f1_average": classification.weighted_f1(average, y),
    }
    for i, each in enumerate(accuracy_by_fold(study, members)):
        scores[f"accuracy_base_{i}"] = classification.accuracy(each.mean(axis=0), y)
        if len(each) <= TOLD:
            scores |= {f"accuracy_base_{i}_fold_{f}": classification.accuracy(one, y) for f, one in enumerate(each)}
    return scores


def stack_report_data(study: Study, state: State, probs: FloatArray, y: IntArray) -> dict[str, Any]:
    """Arrays of the report: confusion of the plain average, accuracy by base and fold `[n, F]`, and the weights of a
    softmax meta model `[C, n * C]`."""
    each = accuracy_by_fold(study, probs[1:])
    arrays = {
        "confusion_average": classification.confusion(average_of_bases(study, probs[1:]), y),
        "stack_folds": np.array([[classification.accuracy(one, y) for one in base] for base in each]),
        "stack_bases": np.array([f"{i} ({part.study.net.name})" for i, part in enumerate(base_answers(study))]),
    }
    top = study.parts[-1]
    single = [part for part in top.study.net.module.modules() if isinstance(part, nn.Linear)]
    if len(study.parts) > len(each) and len(single) == 1 and is_trained(state.counters[0]):
        rows = top.study.net.layout.views(read_part(state, top).models[0])
        arrays["meta_weights"] = next(v for v in rows.values() if v.dim() == 2).numpy()
    return arrays
