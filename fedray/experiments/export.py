"""The models of a run as files for plain torch, and beside them what a state dict lacks: inputs, classes, weights.

Example:
    >>> import fedray
    >>> run = fedray.run({"rounds": 1, "clients": {"number": 4}}, runtime="inline", report=False)
    >>> about = describe_inputs_and_outputs(run.study)
    >>> about["outputs"]["loss"], about["inputs"]["shape"], list(about["standardization"]["0"])
    ('cross_entropy', [1, 8, 8], ['shift', 'scale'])
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as save_tensors
from torch import Tensor

from fedray.core.types import FloatArray, State
from fedray.data.origins import add_back
from fedray.evaluation.stacking import find_bases
from fedray.files.plain import make_parent, write_atomically, write_json
from fedray.models.net import whole_state_dict
from fedray.simulation.study import Study

MODELS_FILE = "models.json"


def make_state_dicts(study: Study, state: State) -> list[dict[str, Tensor]]:
    """A plain state dict for each model of a state, with frozen parameters: replicate, then fold, then model."""
    return [whole_state_dict(study.net, *row) for row in zip(state.models, state.counters, strict=True)]


def write_models(study: Study, state: State, folder: Path) -> list[Path]:
    """Writes each model as a state dict in safetensors, and `models.json`: how rows become inputs, and who answers.

    Args:
        study: what was trained.
        state: holds the models.
        folder: where the files go; it is made.

    Returns:
        The models' files, `replicate-R-fold-F-model-K.safetensors`.

    Raises:
        Unwritable: a file cannot be written; what was there before is as it was.
    """
    paths = []
    make_parent(folder / MODELS_FILE)
    write_json(folder / MODELS_FILE, describe_inputs_and_outputs(study) | {"answer": describe_answer(study, state)})
    for m, model in enumerate(make_state_dicts(study, state)):
        world, k = divmod(m, study.method.phase.models)
        path = folder / f"{_name_world(study, world)}-model-{k}.safetensors"
        write_atomically(path, save_tensors({name: value.contiguous() for name, value in model.items()}))
        paths.append(path)
    return paths


def _name_world(study: Study, world: int) -> str:
    replicate, fold = study.place(world)
    return f"replicate-{replicate}-fold-{fold}"


def describe_answer(study: Study, state: State) -> dict[str, Any]:
    """What new clients are answered, and known ones where tiers have weights of their own.

    Returns:
        `models`: `exported`, or `others` where models answer that the method makes of the exported ones. And of those
        that are exported, where there are several: `average`, what is averaged over them, and their `weights`, which
        sum to 1, by replicate and fold, or `average: own`, where a method joins them by a rule of its own. `tiers`,
        where a method has them, are the weights for known clients of each tier. Of a stack, which is one module,
        `bases` are the weights of its base models in the average, where no meta model answers.
    """
    if study.parts:
        return {"models": "exported"} | _describe_bases(study)
    answer, models = study.answer(state), study.method.phase.models
    if answer.models != models or not torch.equal(answer.state.models, state.models):
        return {"models": "others"}
    if answer.combine is not None:
        return {"models": "exported", "average": "own"}
    weights = np.ones((study.worlds, models)) if answer.weights is None else answer.weights
    found = {
        "models": "exported",
        "average": study.evaluation.average if study.classes else "outputs",
        "weights": _share_out(study, weights),
    }
    if answer.tiers is None:
        return found
    tiers = enumerate(study.clients.tiers)
    return found | {"tiers": {tier.name: _share_out(study, answer.tiers[:, t]) for t, tier in tiers}}


def _share_out(study: Study, weights: FloatArray) -> dict[str, list[float]]:
    """Weights `[R, K]` that sum to 1, by replicate and fold."""
    shares = (weights / weights.sum(axis=1, keepdims=True)).tolist()
    return {_name_world(study, world): each for world, each in enumerate(shares)}


def _describe_bases(study: Study) -> dict[str, Any]:
    """What is averaged over the networks of a stack; empty where something else joins them."""
    bases = find_bases(study)
    if len(bases) < len(study.parts) or bases[0].combine is not None:
        return {}
    heard = sum(part.answers for part in bases)
    return {"average": "probabilities", "bases": [part.answers / heard for part in bases]}


def describe_inputs_and_outputs(study: Study) -> dict[str, Any]:
    """What one must know beside the weights to ask the models without fedray.

    Returns:
        `network`: the torch module as text. `inputs`: kind, shape, and of a table the columns, the values of each
        category in order, and what replaces a missing input. `outputs`: the loss, the classes. And
        `standardization`, by fold: a network takes `(x - shift) / scale` (or, without these, x as it is), computed in
        float64 where x is large, and what it says of targets is `output * target_scale + target_shift`.
    """
    data = study.shards.data
    inputs: dict[str, Any] = {"kind": data.kind, "shape": list(study.input_shape)}
    if data.table:
        inputs |= {"names": list(data.features), "columns": data.table}
    if data.means is not None:
        inputs["missing"] = add_back(data.means, data.origin).tolist()
    shift = add_back(data.shift, data.origin)
    statistics = {} if data.kind == "tokens" or not data.standardized else {"shift": shift, "scale": data.scale}
    if not study.classes:
        statistics |= {"target_shift": data.y_shift, "target_scale": data.y_scale}
    folds = sorted(set(study.folds.tolist()))
    return {
        "network": str(study.net.module),
        "inputs": inputs,
        "outputs": {"loss": study.net.objective, "classes": list(data.class_names) if study.classes else None},
        "standardization": {str(f): {name: part[f].tolist() for name, part in statistics.items()} for f in folds},
    }
