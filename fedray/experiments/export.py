"""The models of a run as files for plain torch, and beside them what a state dict does not say.

Example:
    >>> import fedray
    >>> run = fedray.run({"rounds": 1, "clients": {"number": 4}}, runtime="inline", report=False)
    >>> about = describe_inputs_and_outputs(run.study)
    >>> about["outputs"]["loss"], about["inputs"]["shape"], list(about["standardization"]["0"])
    ('cross_entropy', [1, 8, 8], ['shift', 'scale'])
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save as save_tensors
from torch import Tensor

from fedray.files.plain import make_parent, write_atomically, write_json
from fedray.simulation.study import Study

MODELS_FILE = "models.json"


def write_models(study: Study, models: Sequence[dict[str, Tensor]], folder: Path) -> list[Path]:
    """Writes each model as a state dict in safetensors, and `models.json`, which says how rows become inputs.

    Args:
        study: what was trained.
        models: one state dict each: replicate, then fold, then model.
        folder: where the files go; it is made.

    Returns:
        The models' files, `replicate-R-fold-F-model-K.safetensors`.

    Raises:
        Unwritable: a file cannot be written; what was there before is as it was.
    """
    paths = []
    make_parent(folder / MODELS_FILE)
    write_json(folder / MODELS_FILE, describe_inputs_and_outputs(study))
    for m, state in enumerate(models):
        world, k = divmod(m, study.method.phase.models)
        replicate, fold = study.place(world)
        path = folder / f"replicate-{replicate}-fold-{fold}-model-{k}.safetensors"
        write_atomically(path, save_tensors({name: value.contiguous() for name, value in state.items()}))
        paths.append(path)
    return paths


def describe_inputs_and_outputs(study: Study) -> dict[str, Any]:
    """What one must know beside the weights to ask the models without fedray.

    Returns:
        `network`: the torch module as text. `inputs`: kind, shape, and of a table the columns, the values of each
        category in order, and what stands in the place of a missing input. `outputs`: the loss, the classes. And
        `standardization`, by fold: a network takes `(x - shift) / scale` (tokens as they are), and what it says of
        targets is `output * target_scale + target_shift`.
    """
    data = study.shards.data
    inputs: dict[str, Any] = {"kind": data.kind, "shape": list(study.input_shape)}
    if data.table:
        inputs |= {"names": list(data.features), "columns": data.table}
    if data.means is not None:
        inputs["missing"] = data.means.tolist()
    statistics = {} if data.kind == "tokens" else {"shift": data.shift, "scale": data.scale}
    if not study.classes:
        statistics |= {"target_shift": data.y_shift, "target_scale": data.y_scale}
    folds = sorted(set(study.folds.tolist()))
    return {
        "network": str(study.net.module),
        "inputs": inputs,
        "outputs": {"loss": study.net.objective, "classes": list(data.class_names) if study.classes else None},
        "standardization": {str(f): {name: part[f].tolist() for name, part in statistics.items()} for f in folds},
    }
