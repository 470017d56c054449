"""The Python API: `fedray.run`, `fedray.load`, and what they return."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from safetensors.torch import save as save_tensors

from fedray.assembly.study import build_study
from fedray.assembly.user_objects import UserObjects
from fedray.core.errors import BadInput
from fedray.core.files import write_atomically
from fedray.core.method import Answer
from fedray.core.types import EVALUATED_ROWS, FloatArray, State
from fedray.data.types import Dataset
from fedray.evaluation.evaluate import client_weights
from fedray.evaluation.regression import predict_targets
from fedray.metrics import ensemble
from fedray.models import net as nets
from fedray.runtime.personal import own_models
from fedray.runtime.session import Snapshot
from fedray.runtime.stacking import make_worker
from fedray.runtime.worker import Worker
from fedray.scenario.loader import read_scenario
from fedray.simulation.interfaces import Progress
from fedray.simulation.study import Study
from fedray.storage import checkpoint, tables


@dataclass(frozen=True)
class Prediction:
    """What an ensemble answers for n inputs.

    mean `[n, C]` probabilities or `[n, q]` targets in original units; variance, likewise: the population variance of
    the models' answers (knowledge uncertainty, FE section V-B) and the mean of the variances that they predict
    themselves (Gaussian heads, closed forms), without observation noise; probabilities `[n, C]` for classification,
    else None.
    """

    mean: FloatArray
    variance: FloatArray
    probabilities: FloatArray | None


class Run:
    """A finished (or running) run directory."""

    def __init__(self, path: Path, own: UserObjects = UserObjects()) -> None:  # noqa: B008 (frozen)
        self.path = path
        self._own = own
        self._study: Study | None = None

    @property
    def summary(self) -> dict[str, Any]:
        """`summary.json`: final metrics, totals, hashes."""
        file = self.path / "summary.json"
        if not file.is_file():
            raise BadInput(f"{self.path} has no summary.json: the run is not finished, `fedray resume {self.path}`")
        loaded: dict[str, Any] = json.loads(file.read_text())
        return loaded

    @property
    def rounds(self) -> pa.Table:
        """One row per evaluated round, replicate and fold."""
        return tables.read_table(self.path, "rounds")

    @property
    def clients(self) -> pa.Table:
        """One row per job."""
        return tables.read_table(self.path, "clients")

    @property
    def study(self) -> Study:
        """The study, built again from the run's scenario."""
        if self._study is None:
            self._study = build_study(read_scenario(self.path / "scenario.yaml"), self._own)
        return self._study

    @property
    def progress(self) -> Progress:
        """The newest checkpoint."""
        return checkpoint.load_checkpoint(self.path / "checkpoints")[0]

    @property
    def models(self) -> list[dict[str, torch.Tensor]]:
        """Plain torch state dicts, one a model: replicate, then fold, then model."""
        state, layout = self.progress.state, self.study.net.layout
        return [nets.state_dict(layout, row, count) for row, count in zip(state.models, state.counters, strict=True)]

    def export(self, out: str | Path | None = None) -> list[Path]:
        """Writes every model as a plain torch state dict in safetensors, which torch alone can read again::

            module.load_state_dict(safetensors.torch.load_file(path))

        Args:
            out: the directory; default: `export` in the run directory.

        Returns:
            The files, `replicate-R-fold-F-model-K.safetensors`.

        Raises:
            FedrayError: a file cannot be written; what was there before is as it was.
        """
        study, folder = self.study, self.path / "export" if out is None else Path(out)
        paths = []
        for m, state in enumerate(self.models):
            world, k = divmod(m, study.method.phase.models)
            replicate, fold = world // study.per_replicate, int(study.folds[world])
            path = folder / f"replicate-{replicate}-fold-{fold}-model-{k}.safetensors"
            write_atomically(path, save_tensors({name: value.contiguous() for name, value in state.items()}))
            paths.append(path)
        return paths

    def predict(self, x: Any, client: int | None = None, replicate: int = 0, fold: int = 0) -> Prediction:
        """The ensemble's answer for raw inputs `[n, *sample]` (as the data set stores them).

        Args:
            client: a known client's id: its own weights over the models (FE eqs. 3-4) instead of equal ones, or its own
                models where the method keeps some (Ditto, LG-FedAvg, `local_only`).
        """
        study, state = self.study, self.progress.state
        inputs = torch.as_tensor(np.asarray(x))
        if tuple(inputs.shape[1:]) != study.input_shape:
            raise BadInput(
                f"x has shape {list(inputs.shape)}, but the model takes [n, {', '.join(map(str, study.input_shape))}]"
            )
        world = replicate * study.per_replicate + fold
        if not (0 <= replicate < study.replicates and 0 <= fold < study.per_replicate):
            raise BadInput(
                f"replicate = {replicate}, fold = {fold}: the run has {study.replicates} x {study.per_replicate}"
            )
        if client is not None and not 0 <= client < study.clients.number:
            raise BadInput(f"client = {client}, but the run has clients 0 to {study.clients.number - 1}")
        host, answer, weights = make_worker(study), study.answer(state), None
        here = slice(world * answer.models, (world + 1) * answer.models)
        rows, counters = answer.state.models[here], answer.state.counters[here]
        if client is not None and study.method.phase.is_personal:
            rows = self._own_models(host, state, world, client)
        elif client is not None and not study.parts:
            weights = self._weights(host, answer, world, client)
        elif answer.weights is not None:
            weights = answer.weights[world] / answer.weights[world].sum()
        outputs = torch.cat([host.forward(rows, counters, world, part) for part in inputs.split(EVALUATED_ROWS)], dim=1)
        if study.classes:
            members = ensemble.probabilities(outputs.numpy())
            kind = "logits" if study.evaluation.average == "logits" else "probabilities"
            said = ensemble.average(outputs.numpy(), kind, weights)  # type: ignore[arg-type]
            return Prediction(said, ensemble.mixture_moments(members, weights).variance, said)
        means, variances = predict_targets(study, world, outputs, inputs, answer)
        return Prediction(*ensemble.mixture_moments(means, weights, variances), None)

    def _weights(self, host: Worker, answer: Answer, world: int, client: int) -> FloatArray:
        """A known client's weights over the models that answer, `[A]`; those that are not there have none."""
        if self.study.method.one_model_per_client:
            return np.eye(answer.models)[client]
        losses = host.losses_of(answer.state, world, np.array([client]), answer.models)
        there = np.ones(answer.models, dtype=np.bool_) if answer.weights is None else answer.weights[world] > 0
        own = np.zeros(answer.models)
        own[there] = client_weights(self.study, losses[torch.from_numpy(there)])[0]
        return own

    def _own_models(self, host: Worker, state: State, world: int, client: int) -> torch.Tensor:
        """A client's models `[K, d]`: of several passes those that are best on its held-out rows."""
        host.private.restore(checkpoint.load_checkpoint(self.path / "checkpoints")[1])
        study, phase = self.study, self.study.method.phase
        rows = own_models(host.private, study.net.layout, phase, state, world, client)
        passes = rows.view(-1, phase.models, rows.shape[1])
        if len(passes) == 1:
            return passes[0]
        held = host.known(state, [(world, client)])[world, client][1]
        return passes[int(torch.nan_to_num(held, nan=-1.0).argmax())]


def load(path: str | Path, *, data: Any = None, model: Any = None, method: Any = None) -> Run:
    """Opens a run directory.

    Args:
        data, model, method: the same Python objects the run was started with, if any.
    """
    folder = Path(path)
    if not (folder / "scenario.yaml").is_file():
        raise BadInput(f"{folder} is no run directory (it has no scenario.yaml): give the --out of a run")
    return Run(folder, _own(data, model, method))


def _own(data: Any, model: Any, method: Any, modules: tuple[str, ...] = ()) -> UserObjects:
    """The user's objects, each of the kind that is asked for."""
    if data is not None and not isinstance(data, Dataset):
        raise BadInput(
            f"data is a {type(data).__name__}: give what fedray.data.types.classification makes, or data__name"
        )
    for key, value in (("model", model), ("method", method)):
        if value is not None and not callable(value):
            made = "makes the network" if key == "model" else "composes the method from a Setting"
            raise BadInput(f"{key} is a {type(value).__name__}: give a function that {made}, or {key}__name")
    return UserObjects(data, model, method, modules)


def run(
    scenario: Mapping[str, Any] | str | Path,
    *,
    out: str | Path | None = None,
    data: Any = None,
    model: Any = None,
    method: Any = None,
    address: str | None = None,
    watch: Callable[[Snapshot], None] | None = None,
    modules: Sequence[str] = (),
    **overrides: Any,
) -> Run:
    """Runs a scenario and returns the finished run.

    Args:
        scenario: a dict, a YAML file, or YAML text.
        out: the run directory (a fresh one; default: a temporary directory).
        data: a `fedray.data.types.Dataset` instead of a name. model: a function that makes an `nn.Module`. method: a
            function from `fedray.methods.Setting` to `fedray.core.method.Method`. Names and mappings are overrides.
        address: of an existing Ray cluster; default: a local one, started and stopped here.
        watch: called with a snapshot after each evaluated round.
        overrides: scenario keys, nested or with `__` for the dots: `rounds=3`, `method__name="fedavg"`.

    Raises:
        BadInput: one line with the key, its value and the remedy.
        FedrayError: the run failed.
    """
    from fedray.experiments.run import start_run

    folder = Path(tempfile.mkdtemp(prefix="fedray-")) / "run" if out is None else Path(out)
    named = {"data": data, "model": model, "method": method}
    dotted = {name.replace("__", "."): value for name, value in overrides.items()}
    for key, value in named.items():
        if isinstance(value, str | Mapping):  # keys of the scenario, as any other override
            dotted |= {f"{key}.name": value} if isinstance(value, str) else {key: value}
            named[key] = None
    own = _own(**named, modules=tuple(modules))
    start_run(read_scenario(scenario, dotted), folder, own, watch or (lambda shown: None), address)
    return Run(folder, own)


def resume(path: str | Path, *, data: Any = None, model: Any = None, method: Any = None) -> Run:
    """Continues a run from its newest checkpoint; the same Python objects must be passed again."""
    from fedray.experiments.run import resume_run as again

    own = _own(data, model, method)
    again(Path(path), own, lambda shown: None)
    return Run(Path(path), own)
