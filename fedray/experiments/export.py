"""Writes the models of a run to files for other programs: state dicts, and programs of torch's exporters.

A state dict holds the parameters of one network. A program (`onnx`, `pt2`) computes probabilities, or targets in
original units, from raw inputs. Each model that predicts becomes a program, and so does the ensemble.

Example:
    >>> import tempfile, fedray
    >>> run = fedray.run({"rounds": 1, "clients": {"number": 4}}, method="fedavg", runtime="inline", report=False)
    >>> paths = run.export(tempfile.mkdtemp(), "pt2")  # one model, and the ensemble of one
    >>> images = run.study.split("test", 0)[0].float()
    >>> answer = torch.export.load(paths[-1]).module()(images).numpy()
    >>> bool(np.abs(answer - run.predict(images).mean).max() < 1e-5)
    True
"""

import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedray.core.errors import BadInput, FedrayError
from fedray.core.method import Answer
from fedray.core.types import FloatArray, State
from fedray.data.types import add_back
from fedray.files.plain import write_user_file
from fedray.models.net import split_gaussian, state_dict
from fedray.simulation.stacking import find_bases
from fedray.simulation.study import Study

# ---------------------------------------------------------------------------------------------------------------------
# Facts that a state dict does not hold: inputs, classes, and the models' weights in the ensemble.


def name_world(study: Study, world: int) -> str:
    """Returns the beginning of the file names of one replicate and fold."""
    replicate, fold = study.place(world)
    return f"replicate-{replicate}-fold-{fold}"


def describe_answer(study: Study, state: State) -> dict[str, Any]:
    """Describes how the exported models predict together, for `models.json`.

    Returns:
        A dictionary with those of the following keys that apply to the run:

        - `models`: `exported` means that the exported models predict. `others` means that the method makes further
          models from the exported models, and only these further models predict.
        - `average`: the quantity that is averaged over the models, or `own` if the method has its own rule.
        - `weights`: the models' weights in the average, by replicate and fold. Their sum is 1.
        - `tiers`: for each tier, the weights for clients of this tier. The key exists only if the method has such
          weights.
        - `bases`: for a stack without a meta model, the weights of its bases in the average. A stack is exported as one
          module.
    """
    if study.parts:
        bases = find_bases(study)
        if len(bases) < len(study.parts) or bases[0].combine is not None:
            return {"models": "exported"}
        shares = [part.answers / sum(base.answers for base in bases) for part in bases]
        return {"models": "exported", "average": "probabilities", "bases": shares}
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
    """Returns the ensemble's weights by replicate and fold, divided by their sum."""
    shares = (weights / weights.sum(axis=1, keepdims=True)).tolist()
    return {name_world(study, world): each for world, each in enumerate(shares)}


def describe_inputs_and_outputs(study: Study) -> dict[str, Any]:
    """Describes inputs and outputs for predictions without fedray.

    Returns:
        A dictionary with these keys:

        - `network`: the torch module as text.
        - `inputs`: the kind and shape of the inputs. A table also has the columns, the values of each category in
          order, and the replacement of a missing input.
        - `outputs`: the loss and the classes.
        - `standardization`: the statistics of each fold. If the data of replicates differ, there are statistics for
          each replicate and fold. The input of a network is `(x - shift) / scale`, computed in float64 if x is large.
          Without statistics the input is x. A predicted target is `output * target_scale + target_shift`.

    Example:
        >>> import fedray
        >>> run = fedray.run({"rounds": 1, "clients": {"number": 4}}, runtime="inline", report=False)
        >>> about = describe_inputs_and_outputs(run.study)
        >>> about["outputs"]["loss"], about["inputs"]["shape"], list(about["standardization"]["0"])
        ('cross_entropy', [1, 8, 8], ['shift', 'scale'])
    """
    data = study.shards.data
    inputs: dict[str, Any] = {"kind": data.kind, "shape": list(study.input_shape)}
    if data.table:
        inputs |= {"names": list(data.features), "columns": data.table}
    if data.means is not None:
        inputs["missing"] = add_back(data.means, data.origin).tolist()
    shift, scale = data.scaling
    plain = data.kind == "tokens" or not data.standardized
    statistics = {} if plain else {"shift": add_back(shift, data.origin), "scale": scale}
    if not study.classes:
        statistics |= {"target_shift": data.y_shift, "target_scale": data.y_scale}
    each = study.shards.data_folds  # with `data.test_clients` replicates have different data
    several = len(set(each)) > study.per_replicate
    worlds = {name_world(study, w) if several else str(f): each[w] for w, f in enumerate(study.folds.tolist())}
    return {
        "network": str(study.net.module),
        "inputs": inputs,
        "outputs": {"loss": study.net.objective, "classes": list(data.class_names) if study.classes else None},
        "standardization": {
            place: {name: part[f].tolist() for name, part in statistics.items()} for place, f in worlds.items()
        },
    }


# ---------------------------------------------------------------------------------------------------------------------
# Programs. They are modules with standardization and weights, which are checked against the run's predictions.

FORMATS = ("safetensors", "onnx", "pt2")
CHECKED_ROWS = 64  # number of test samples on which a program is compared with the run
TOLERANCE = 1e-5


Predict = Callable[[Tensor, int], tuple[FloatArray, FloatArray]]


class Program(nn.Module):
    """An ensemble as one module that computes predictions from raw inputs."""

    origin: Tensor | None  # as in `Dataset`; a tensor is None if its step is not needed
    missing: Tensor | None
    shift: Tensor | None
    scale: Tensor | None
    y_shift: Tensor | None
    y_scale: Tensor | None
    weights: Tensor

    def __init__(self, study: Study, world: int, networks: Sequence[nn.Module], weights: FloatArray | None) -> None:
        """Collects the statistics and the weights of one replicate and fold.

        Args:
            study: The study of the run.
            world: The world (index of a replicate and fold) whose statistics standardize inputs.
            networks: The K networks.
            weights: Weights of the networks in the prediction, `[K]`. None means equal weights.
        """
        nn.Module.__init__(self)
        data, scaling = study.shards.data, study.shards.scaling.standardization(np.array([world]))
        self.networks = nn.ModuleList(networks)
        own = {"origin": data.origin, "missing": data.means}
        shares = np.full(len(networks), 1 / len(networks)) if weights is None else weights
        numbers = {name: None if rows is None else torch.from_numpy(rows) for name, rows in own.items()}
        for name in ("shift", "scale", "y_shift", "y_scale"):
            rows = getattr(scaling, name)
            numbers[name] = None if rows is None else rows[int(scaling.world[0])].clone()
        for name, value in numbers.items():  # torch.export takes a buffer that is None for a tensor
            if value is None:
                setattr(self, name, None)
            else:
                self.register_buffer(name, value)
        self.register_buffer("weights", torch.tensor(shares, dtype=torch.float32))
        self.average = study.evaluation.average if study.classes else "outputs"
        self.objective = study.net.objective

    def forward(self, x: Tensor) -> Tensor:
        """Returns probabilities `[n, C]`, or targets in original units `[n, q]`, for raw inputs `[n, *sample]`."""
        if self.origin is not None:
            x = (x - self.origin).float()
        if self.missing is not None:
            x = torch.where(x.isnan(), self.missing, x)
        if self.shift is not None and self.scale is not None:
            x = (x - self.shift) / self.scale
        each = torch.stack([network(x) for network in self.networks])  # [K, n, outputs]
        if self.average == "probabilities":
            each = each.softmax(-1)
        elif self.objective == "gaussian_nll":
            each = split_gaussian(each).mean
        joint: Tensor = torch.tensordot(self.weights, each, dims=1)
        if self.average == "logits":
            joint = joint.softmax(-1)
        return joint if self.y_shift is None or self.y_scale is None else joint * self.y_scale + self.y_shift


def write_programs(study: Study, answer: Answer, predict: Predict, folder: Path, kind: str) -> list[Path]:
    """Writes the models that predict for new clients, and the ensemble of each replicate and fold, as programs.

    Args:
        study: The study of the run.
        answer: The models that predict.
        predict: A function that takes inputs of the data set and a world. It returns the predictions of the ensemble,
            `[n, ...]`, and of its members, `[K, n, ...]`.
        folder: The folder for the files.
        kind: The format, `onnx` or `pt2`.

    Returns:
        For each replicate and fold, the paths of the files `replicate-R-fold-F-model-K.KIND` and then
        `replicate-R-fold-F-ensemble.KIND`. A model with weight 0 has no file. A stack is one program.

    Raises:
        BadInput: A package for the format is missing, the exporter does not accept a network, or predictions are no
            plain averages of networks.
        FedrayError: A program does not predict as the run does.
    """
    refused, paths, data = f"export in the format {kind}: ", list[Path](), study.shards.data
    if answer.combine is not None or study.evaluation.dropout_at_test:
        more = "its method joins predictions by code" if answer.combine is not None else "predict.dropout_at_test"
        raise BadInput(f"{refused}the run does more than average networks ({more}): use Run.predict")
    for world in range(study.worlds):
        rows, counters = (part[world * answer.models :][: answer.models] for part in answer.state[:2])
        present = list[int]()
        if not study.parts:  # a stack is one network, with the weights inside
            rows, counters = answer.drop_absent(rows, world), answer.drop_absent(counters, world)
            present = answer.drop_absent(torch.arange(answer.models), world).tolist()
        networks = [_make_network(study, row, counter) for row, counter in zip(rows, counters, strict=True)]
        x = study.stored_split("test", world)[0][:CHECKED_ROWS]
        mean, members = predict(x, world)
        weights = None if study.parts else answer.weigh_present(world)
        each = zip(present, networks, members, strict=False)  # no member of a stack has a file
        parts = {f"model-{k}": ([one], None, expected) for k, one, expected in each}
        raw = torch.from_numpy(add_back(x.numpy(), data.origin))
        raw = raw.long() if data.kind == "tokens" else raw if data.origin is not None else raw.float()
        for name, (some, shares, expected) in (parts | {"ensemble": (networks, weights, mean)}).items():
            path = folder / f"{name_world(study, world)}-{name}.{kind}"
            program = Program(study, world, some, shares).eval()
            try:
                content, ask = EXPORTERS[kind](program, raw)
            except ImportError as error:
                raise BadInput(f"{refused}a package is missing ({error}): pip install 'fedray[onnx]'") from None
            except Exception as error:
                reason = (str(error) or type(error).__name__).strip().splitlines()[0]
                raise BadInput(
                    f"{refused}torch does not export {study.net.name} ({reason}): use Run.predict"
                ) from error
            unit = 1.0 if study.classes else float(np.abs(expected).max())
            off = max(float(np.abs(ask(raw[:n]) - expected[:n]).max()) for n in (1, len(raw))) / unit
            if not off <= TOLERANCE:
                raise FedrayError(f"{refused}{path.name} would differ from Run.predict by {off:.1g}: use Run.predict")
            write_user_file(path, content)
            paths.append(path)
    return paths


def _make_network(study: Study, row: Tensor, counters: Tensor) -> nn.Module:
    """Returns a network with the parameters of a model.

    Integer buffers become constants. Exporters can then trace branches that depend on these buffers.
    """
    module = copy.deepcopy(study.net.module).cpu().requires_grad_(False)
    module.load_state_dict(state_dict(study.net, row, counters))
    for place, value in zip(study.net.layout.counters, counters.tolist(), strict=True):
        owner, _, name = place.rpartition(".")
        layer = module.get_submodule(owner)
        del layer._buffers[name]
        setattr(layer, name, value)
    return module


PredictExported = Callable[[Tensor], FloatArray]  # raw inputs -> predictions of the exported program


def _export_pt2(program: nn.Module, x: Tensor) -> tuple[bytes, PredictExported]:
    """Returns the content of a file for `torch.export.load`, and a function that predicts with the file."""
    content = io.BytesIO()
    torch.export.save(_trace(program, x), content)
    loaded = torch.export.load(io.BytesIO(content.getvalue())).module()
    return content.getvalue(), lambda rows: np.asarray(loaded(rows))


def _export_onnx(program: nn.Module, x: Tensor) -> tuple[bytes, PredictExported]:
    """Returns the content of an ONNX file, and a function that predicts with the file in ONNX Runtime."""
    import onnxruntime
    import onnxscript  # noqa: F401  (torch's exporter needs it, and says so less well)

    with _silence():
        made = torch.onnx.export(
            _trace(program, x), dynamo=True, verbose=False, input_names=["inputs"], output_names=["prediction"]
        )
    assert made is not None
    content = made.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(content)
    return content, lambda rows: np.asarray(session.run(None, {"inputs": rows.numpy()})[0])


def _trace(program: nn.Module, x: Tensor) -> torch.export.ExportedProgram:
    """Exports a module for any number of samples. Removes the paths of this machine's files from the result."""
    with torch.no_grad(), _silence():
        rows = x[:2].expand(2, *x.shape[1:])  # from one sample, torch would make a program for one sample only
        shapes = ({0: torch.export.Dim("samples")},)
        try:
            traced = torch.export.export(program, (rows,), dynamic_shapes=shapes)
        except Exception:  # `len(x)` is a fixed number unless Python's code itself is read
            traced = torch.export.export(program, (rows,), dynamic_shapes=shapes, strict=True)
    for graph in traced.graph_module.modules():
        for node in graph.graph.nodes if isinstance(graph, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)
    return traced


@contextmanager
def _silence() -> Iterator[None]:
    """Hides the warnings of torch's exporters about their own operations. Errors are still raised."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


EXPORTERS: dict[str, Callable[[nn.Module, Tensor], tuple[bytes, PredictExported]]] = {
    "onnx": _export_onnx,
    "pt2": _export_pt2,
}
