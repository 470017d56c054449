"""Models as plain torch state dicts in safetensors: loadable with torch alone."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save

from fedray.api import load
from fedray.core.files import write_atomically


def export_models(folder: Path, out: Path) -> list[Path]:
    """Writes `replicate-R-fold-F-model-K.safetensors` for every model of a run and returns the paths.

    Loading one again needs torch and safetensors only::

        module.load_state_dict(safetensors.torch.load_file(path))

    Raises:
        FedrayError: a file cannot be written; what was there before is as it was.
    """
    run = load(folder)
    study, models = run.study, run.study.method.phases[0].models
    states, paths = run.models, []
    for m, state in enumerate(states):
        world, k = divmod(m, models)
        replicate, fold = world // study.per_replicate, int(study.folds[world])
        path = out / f"replicate-{replicate}-fold-{fold}-model-{k}.safetensors"
        write_atomically(path, save({name: value.contiguous() for name, value in state.items()}))
        paths.append(path)
    return paths
