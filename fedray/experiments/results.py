"""Opens run directories as Python objects with scores, tables, models and predictions.

Example:
    >>> import fedray
    >>> run = fedray.run({"rounds": 1, "clients": {"number": 4}}, runtime="inline")
    >>> images = run.study.shards.data.test.x[:3]
    >>> run.predict(images).probabilities.shape
    (3, 10)
    >>> run = fedray.run({"rounds": 2, "clients": {"number": 4}}, runtime="inline", report=False)
    >>> images = run.study.shards.data.test.x
    >>> student = run.distil(images, {"name": "linear"}, steps=100)
    >>> student.predict(images[:3]).shape, student.net.layout.d
    ((3, 10), 650)
    >>> run.metrics["round"], run.checkpoint.name, run.error
    (2, 'round-000002', None)
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from fedray.assembly.features import check_withheld_rows, make_rule
from fedray.assembly.models import choose_students, make_network
from fedray.assembly.registry import UserObjects
from fedray.components.distillation import Fusion, ServerRows, ask_model, follow_teacher
from fedray.core import rng
from fedray.core.errors import BadInput, Damaged, FedrayError, FedrayWarning, quote_value, suggest_nearest, warn_user
from fedray.core.method import Answer
from fedray.core.types import EVALUATED_ROWS, VARIANCE_FLOOR, BoolArray, FloatArray, Net, State
from fedray.data.adaptation import read_inputs
from fedray.data.types import find_range, remark_on_scale
from fedray.evaluation import personal
from fedray.evaluation.answers import Residual, draw_uniform
from fedray.evaluation.conformal import Thresholds, calibrate, make_request
from fedray.evaluation.evaluate import find_client_weights, measure_models
from fedray.evaluation.regression import find_noise, predict_targets
from fedray.experiments import export
from fedray.experiments.run import reopen_study
from fedray.files.plain import expand_user_path, write_json, write_user_file
from fedray.files.run_files import BEST_FOLDER, FILES_KEY, SUMMARY_FILE, find_checkpoints, read_sealed, read_summary
from fedray.metrics import classification
from fedray.metrics.conformal import ConformalRule, score_labels
from fedray.metrics.scores import PairedDifference
from fedray.models.net import state_dict
from fedray.runtime.session import Inline
from fedray.scenario.loader import read_scenario
from fedray.simulation.rounds import collect_values
from fedray.simulation.study import Progress, Runtime, Study
from fedray.storage import checkpoint
from fedray.storage.directory import read_failure, require_run_directory
from fedray.storage.summary import read_drift

if TYPE_CHECKING:  # matplotlib is slow to import
    from matplotlib.figure import Figure

    from fedray.report.compare import RunPair
    from fedray.report.read import ReadRun

# ---------------------------------------------------------------------------------------------------------------------
# The newest scores of a run.


def average_last_rows(rounds: pa.Table) -> dict[str, Any]:
    """Returns the scores of the newest evaluated round, each averaged over replicates and folds.

    Example:
        >>> rows = [{"replicate": r, "fold": 0, "round": t, "accuracy": 0.1 * (r + t)} for r in (0, 1) for t in (0, 4)]
        >>> average_last_rows(pa.Table.from_pylist(rows))
        {'round': 4, 'accuracy': 0.45}
    """
    import pyarrow.compute as pc  # slow to import

    newest = rounds.filter(pc.equal(rounds["round"], pc.max(rounds["round"])))
    rows = newest.drop_columns(["replicate", "fold"]).to_pylist()
    if len(rows) == 1:
        return {name: value for name, value in rows[0].items() if value is not None}
    # lists, which have a value for each member, have no mean over worlds
    numbers = [{name: float(x) for name, x in row.items() if isinstance(x, int | float)} for row in rows]
    means = {name: sum(each) / len(each) for name, each in collect_values(numbers).items()}
    return means | {"round": rows[0]["round"]}


# ---------------------------------------------------------------------------------------------------------------------
# The rule of conformal sets, and the thresholds for a checkpoint.


def read_rule(study: Study, keys: Mapping[str, Any] | None) -> ConformalRule | None:
    """Returns the rule that makes conformal sets, or None if there is no rule.

    `keys` are keys of `predict.conformal` that define the rule. None means the rule of the scenario.

    Raises:
        BadInput: A key is wrong, or the run withheld too few samples from training.

    Example:
        >>> from fedray.assembly.study import build_study
        >>> from fedray.scenario.loader import read_scenario
        >>> study = build_study(read_scenario({"data": {"hold_out": 0.2}, "clients": {"number": 4}}))
        >>> read_rule(study, {"alpha": 0.2, "score": "aps"})[:3]
        (0.2, 'aps', 'exact')
        >>> read_rule(study, None) is None
        True
    """
    if keys is None:
        return study.evaluation.conformal
    if not study.hold_out:
        raise BadInput("conformal needs rows that no model is trained on, and data.hold_out = 0: train with 0.2, say")
    read = read_scenario({"data": {"hold_out": 0.2}, "predict": {"conformal": {"alpha": 0.1, **keys}}})
    assert read.predict.conformal is not None
    rule = make_rule(read.predict.conformal, study.classes, study.shards.data.name)
    check_withheld_rows(rule, study.shards, float(study.scenario["data"]["hold_out"]))
    return rule


def calibrate_answers(
    study: Study, runtime: Runtime, state: State, rule: ConformalRule
) -> tuple[list[Thresholds], dict[int, Residual]]:
    """Returns the thresholds for the conformal sets of a checkpoint's models.

    Returns:
        The thresholds by world (index of a replicate and fold), and a dictionary. For a regression, the dictionary maps
        each world to the variance of the residuals on training samples. For classification, the dictionary is empty.
    """
    study = replace(study, evaluation=replace(study.evaluation, conformal=rule, ood=False))
    measured = measure_models(study, runtime, state, test=False)
    own = personal.ask_own(runtime, state, make_request("hold_out", rule)) if study.method.phase.is_personal else None
    return [calibrate(study, w, measured, rule, own).whole for w in range(study.worlds)], measured.residual


# ---------------------------------------------------------------------------------------------------------------------
# Predictions for raw inputs.


@dataclass(frozen=True)
class Prediction:
    """The prediction of an ensemble for n inputs.

    Attributes:
        mean: The predicted probabilities `[n, C]`, in the order of `Run.class_names`. For a regression, the predicted
            targets `[n, q]` in original units.
        variance: The variance of the prediction without the noise of observations, in the shape of `mean`. It is the
            sum of two terms. The first is the population variance over the models' predictions (knowledge uncertainty,
            Fed-ensemble section V-B). The second is the mean of the variances that the models predict themselves
            (networks with a Gaussian head, models in closed form). A stack (base models whose predictions are combined)
            counts as one model, so its first term is 0.
        probabilities: Equal to `mean` for classification, and None for regression.
        members: The prediction of each model, `[K, n, C]` or `[K, n, q]`. The models are the members of the ensemble,
            the base models of a stack, or a client's own models.
        sets: Whether each label is in the conformal set of each input, `[n, C]`. It is None without a conformal rule,
            and for regression.
        interval: The lower and upper end of each input's conformal interval, `[n, 2]`, in original units. It is None
            without a conformal rule, and for classification.
    """

    mean: FloatArray
    variance: FloatArray
    probabilities: FloatArray | None
    members: FloatArray
    sets: BoolArray | None = None
    interval: FloatArray | None = None


class Predictor:
    """Predicts for raw inputs with the models of one checkpoint, any number of times."""

    def __init__(self, study: Study, state: State, private: dict[str, Tensor]) -> None:
        """Makes a worker in this process that computes the predictions.

        Args:
            study: The study of the run.
            state: The state of the checkpoint.
            private: The clients' private vectors (what clients keep between rounds) from the checkpoint.
        """
        self.study, self.state, self.answer = study, state, study.answer(state)
        self.runtime = Inline(study)
        self.worker = self.runtime.worker
        self._calibrated: dict[ConformalRule, tuple[list[Thresholds], dict[int, Residual]]] = {}
        data = study.shards.data
        self.range = None if data.kind == "tokens" or not len(data.train.x) else find_range(data.train.x)
        if study.method.phase.is_personal or study.method.phase.weighs:
            self.worker.private.restore(private)

    def ask(self, inputs: Tensor, world: int, client: int | None) -> tuple[Prediction, Answer]:
        """Returns the prediction for new clients or for a client of the run, and the models that predict.

        The prediction has no conformal sets.

        Args:
            inputs: Raw inputs `[n, *sample]`, as `Study.stored_split` returns them.
            world: The world (index of a replicate and fold) whose models predict.
            client: The id of a client of the run. None means the prediction for new clients.
        """
        study, answer, weights = self.study, self.answer, None
        models, first = slice(world * answer.models, (world + 1) * answer.models), 0
        rows, counters = answer.state.models[models], answer.state.counters[models]
        if client is not None and study.method.phase.is_personal:
            rows = personal.pick_own_models(self.worker, self.state, world, client)
            answer = Answer(State(rows, counters, {}), len(rows))
        elif study.parts:  # one network, whose first outputs are those of the stack
            assert answer.weights is not None
            weights, first = answer.weights[world], 1
        else:
            rows, counters = answer.drop_absent(rows, world), answer.drop_absent(counters, world)
            weights = answer.weigh_present(world)
            if client is not None:
                alone = [np.array([client] if one == world else [], dtype=np.int64) for one in range(study.worlds)]
                weights = find_client_weights(study, self.runtime, answer, alone)[world][0]
        pieces = [self.worker.forward(rows, counters, world, piece) for piece in torch.split(inputs, EVALUATED_ROWS)]
        outputs = torch.cat(pieces, dim=1)  # [A, n, C]
        if not study.classes:
            means, variances = predict_targets(study, world, outputs, inputs, answer)
            moments = classification.mixture_moments(means, weights, variances)
            return Prediction(*moments, None, means[first:]), answer
        members, mean = classification.answer_classes(outputs.numpy(), study.evaluation.average, weights)
        mean = mean if answer.combine is None else answer.combine(world, members)
        spread = classification.mixture_moments(members, weights).variance
        return Prediction(mean, spread, mean, members[first:]), answer

    def add_sets(
        self, found: Prediction, rule: ConformalRule, inputs: Tensor, world: int, *, answer: Answer, client: int | None
    ) -> Prediction:
        """Adds conformal sets or intervals to a prediction.

        Args:
            found: The prediction without sets.
            rule: The rule that makes sets.
            inputs: The raw inputs `[n, *sample]`.
            world: The world (index of a replicate and fold) whose models predicted.
            answer: The models that predicted.
            client: The id of the client of the run that the prediction is for. None means a new client.
        """
        study = self.study
        if rule not in self._calibrated:
            self._calibrated[rule] = calibrate_answers(study, self.runtime, self.state, rule)
        thresholds, residual = self._calibrated[rule]
        threshold = (thresholds[world].ensemble if client is None else thresholds[world].known_clients).value
        if found.probabilities is not None:
            draw = partial(draw_uniform, study, world, inputs)
            return replace(found, sets=~(score_labels(found.probabilities, draw, rule) > threshold))
        mean, variance = (each.reshape(len(each), -1)[:, 0] for each in (found.mean, found.variance))
        scale, known = study.target_scale(world) ** 2, residual.get(world)
        spread, alone = known and known.mean, len(found.members) == 1 or bool(study.parts)
        if client is not None and study.method.phase.is_personal:
            state = answer.state
            spread = personal.measure_own_residual(self.worker, state.models, state.counters, world, client)
        elif client is not None and known is not None and (own := known.of(client)) is not None:
            spread, alone = own, True
        alone = alone and answer.spread is None and study.net.objective != "gaussian_nll"
        noise = find_noise(study, world, answer, alone=alone, residual=spread)
        half = threshold * np.sqrt(np.maximum(variance + noise * scale, VARIANCE_FLOOR * scale))
        return replace(found, interval=np.stack([mean - half, mean + half], axis=1))


# ---------------------------------------------------------------------------------------------------------------------
# Distillation: one network, which may be smaller, learns the predictions of a run. The teacher is the run's ensemble,
# the networks of FENS with their aggregator, or a client's own models. The student starts from random weights, and
# learns the teacher's probabilities on inputs without labels, with Adam and a cosine learning rate
# (`fedray.components.distillation`). The run does not change.
#
# Source: Allouah et al., *Revisiting Ensembling in One-Shot Federated Learning*, NeurIPS 2024 (FENS), the optional
# last phase; Hinton, Vinyals, Dean 2015 at temperature 1.


@dataclass(frozen=True)
class Distilled:
    """A network that has learned the predictions of a run.

    Attributes:
        study: The study of the run.
        world: The world (index of a replicate and fold) whose statistics standardize inputs.
        net: The network.
        row: The parameters and buffers of the network, `[d]`.
    """

    study: Study
    world: int
    net: Net
    row: Tensor

    def predict(self, x: Any) -> FloatArray:
        """Returns probabilities `[n, C]` for raw inputs `[n, *sample]`. `Run.predict` takes the same inputs."""
        inputs = _read_standardized(self.study, x, self.world)
        return np.asarray(ask_model(self.net, self.row, inputs).softmax(-1))

    def state_dict(self) -> dict[str, Tensor]:
        """Returns a plain torch state dict of the network, which takes standardized inputs."""
        return state_dict(self.net, self.row)


def _read_standardized(study: Study, x: Any, world: int) -> Tensor:
    """Standardizes raw inputs with the statistics of one replicate and fold."""
    inputs = torch.as_tensor(read_inputs(study.shards.data, x))
    inputs = study.shards.scaling.normalize(inputs[None], torch.tensor([world]))[0]
    return inputs.to(study.dtype) if inputs.is_floating_point() else inputs


# ---------------------------------------------------------------------------------------------------------------------
# Run directories as Python objects with scores, tables, models and predictions.


class Run:
    """A run directory as an object. The run may be finished or not."""

    def __init__(
        self, path: Path, own: UserObjects | None = None, folder: str = "checkpoints", **sections: Any
    ) -> None:
        """Opens a run directory. No file is read before a property or method needs it.

        Args:
            path: The run directory.
            own: The Python objects with which the run was started.
            folder: The folder from which models are loaded: `checkpoints` (the newest models) or `best`.
            sections: Sections, such as `predict`, that replace those of the run's scenario for predictions (see
                `reopen_study`).
        """
        self.path, self._folder, self._own, self._sections = path, folder, own or UserObjects(), sections
        self._study: Study | None = None
        self._predictor: tuple[tuple[int, int] | None, Predictor] | None = None  # and which checkpoint it answers with

    @classmethod
    def from_path(cls, path: str | Path) -> Run:
        """Opens a run directory. If the run was started with Python objects, use `fedray.load` instead.

        Args:
            path: The run directory, which was the argument `out` of the run.

        Raises:
            BadInput: `path` is no run directory.
        """
        folder = expand_user_path("path", str(path))
        require_run_directory(folder)
        return cls(folder)

    @property
    def metrics(self) -> dict[str, Any]:
        """The scores and costs of the newest evaluated round, averaged over replicates and folds.

        If the run was opened with the models of its best round, the scores are of that round.
        """
        rounds, best = self.rounds, find_checkpoints(self.path / BEST_FOLDER)
        if self._folder == BEST_FOLDER and best:
            rounds = rounds.filter([round <= best[-1] for round in rounds["round"].to_pylist()])
        return average_last_rows(rounds)

    @property
    def metrics_dataframe(self) -> Any:
        """The table `rounds` as a pandas DataFrame."""
        return self.rounds.to_pandas()

    @property
    def checkpoint(self) -> Path | None:
        """The folder of the newest checkpoint, or None if there is no checkpoint."""
        folder = self.path / self._folder
        found = [folder / f"round-{round:06d}" for round in find_checkpoints(folder)]
        return found[-1] if found else None

    @property
    def best(self) -> Run:
        """The run with the models of its best round (`checkpoint.best`) instead of the newest models.

        Raises:
            FedrayError: The run keeps no best round.
        """
        if not find_checkpoints(self.path / BEST_FOLDER):
            raise FedrayError(f"{self.path} keeps no best round: start a run with checkpoint.best = accuracy, say")
        return Run(self.path, self._own, BEST_FOLDER, **self._sections)

    @property
    def error(self) -> FedrayError | None:
        """The error that ended the run, or None if the run is finished or a different process trains it."""
        return read_failure(self.path)

    @property
    def summary(self) -> dict[str, Any]:
        """The content of `summary.json`: final metrics, totals, hashes.

        Raises:
            BadInput: The run is not finished.
        """
        if not os.path.lexists(self.path / SUMMARY_FILE):
            raise BadInput(f"{self.path} has no summary.json: the run is not finished, `fedray resume {self.path}`")
        return {key: value for key, value in read_summary(self.path).items() if key != FILES_KEY}

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, in the order of `predict(x).probabilities`. The tuple is empty for regression."""
        study = read_sealed(self.path / "manifest.json").get("study", {})
        return tuple(study["class_names"]) if "class_names" in study else self.study.shards.data.class_names

    @property
    def rounds(self) -> pa.Table:
        """The table of scores and costs: one row per evaluated round, replicate and fold."""
        return checkpoint.read_table(self.path, "rounds")

    @property
    def clients(self) -> pa.Table:
        """The table of jobs: one row per job."""
        return checkpoint.read_table(self.path, "clients")

    @property
    def client_scores(self) -> pa.Table:
        """The table of single clients' scores. It has a row per evaluated round, replicate, fold and client.

        Raises:
            FedrayError: The scenario has no `evaluate.clients`.
        """
        return checkpoint.read_table(self.path, "client_scores")

    @property
    def drift(self) -> pa.Table:
        """The table of drift scores. A drift score says how unusual a client's data are to the final ensemble.

        There is one row per client of the run, replicate and fold. The column `z_knowledge` has the drift score, in
        standard deviations over the clients. The column `anomaly` says whether the drift score is above 3 or below -3.

        Raises:
            FedrayError: The run is not finished, has one model, or has more than 2,000 clients.
        """
        return read_drift(self.path)

    @property
    def study(self) -> Study:
        """The study, built again from the run's scenario.

        Raises:
            BadInput: The scenario, the data or the code has changed since the run began, or a Python object is missing.
        """
        self._study = self._study or reopen_study(self.path, self._own, predicts=True, **self._sections)
        return self._study

    @property
    def progress(self) -> Progress:
        """The state of training in the newest checkpoint."""
        self._require_newest_checkpoint()
        return checkpoint.load_checkpoint(self.path / self._folder)[0]

    @property
    def models(self) -> list[dict[str, torch.Tensor]]:
        """The trained models as torch state dicts, sorted by replicate, fold and model. Frozen parameters are included.

        FedAG, FedBE, FedCross and your own `Method.answer` may predict with other models than the trained ones. The
        parameters of the models that predict are in `run.study.method.answer(run.progress.state).state.models`. A
        stack, with its base models and its meta model, counts as one model.
        """
        state = self._read_state()
        return [state_dict(self.study.net, *row) for row in zip(state.models, state.counters, strict=True)]

    def _read_state(self) -> State:
        self._require_newest_checkpoint()
        return checkpoint.load_study_checkpoint(self.path, self.study, self._folder)[0].state

    def export(self, out: str | Path | None = None, format: str = "safetensors") -> list[Path]:
        """Writes the models as files that other programs load without fedray.

        The file `models.json` in the same folder describes the inputs, the classes, the models' weights in the
        prediction, and the statistics that standardize inputs (docs/how-to/serve.md).

        Args:
            out: The folder for the files. None means `export` in the run directory.
            format: `safetensors` writes a torch state dict of each trained model (see `models`). Load it with
                `module.load_state_dict(safetensors.torch.load_file(path))`. The network takes standardized inputs.
                `onnx` (for ONNX Runtime) and `pt2` (for `torch.export.load`) write programs that predict for new
                clients: one for each model, and one for the ensemble. A program takes raw inputs `[n, *sample]`, and
                returns probabilities or targets in original units.

        Returns:
            The paths of the files `replicate-R-fold-F-model-K.FORMAT`, and for programs
            `replicate-R-fold-F-ensemble.FORMAT`.

        Raises:
            BadInput: A package for the format is missing, or the exporter does not accept the run's networks.
            FedrayError: The predictions of a program and of `predict` differ by more than 1e-5 (for regression,
                relative to the largest prediction). Or a file cannot be written. An older file of the same name then
                stays.
        """
        folder = self.path / "export" if out is None else expand_user_path("out", str(out))
        if format not in export.FORMATS:
            raise BadInput(f"format = {quote_value(format)}: choose {', '.join(export.FORMATS)}")
        study = self.study
        answer = export.describe_answer(study, self._read_state())
        if format == "safetensors" and answer["models"] == "others":
            warn_user(
                f"these files hold the trained models, but {study.method.name} predicts with other models, made from "
                "them: the formats pt2 and onnx write those",
                FedrayWarning,
            )
        about = export.describe_inputs_and_outputs(study) | {"answer": answer}
        paths: list[Path] = []
        if format != "safetensors":
            predictor = self._newest_predictor()

            def predict(x: Tensor, world: int) -> tuple[FloatArray, FloatArray]:
                found = predictor.ask(x, world, None)[0]
                return found.mean, found.members

            paths = export.write_programs(study, predictor.answer, predict, folder, format)
        for m, model in enumerate(self.models if format == "safetensors" else []):
            world, k = divmod(m, study.method.phase.models)
            paths.append(folder / f"{export.name_world(study, world)}-model-{k}.safetensors")
            write_user_file(paths[-1], save_tensors({name: value.contiguous() for name, value in model.items()}))
        write_json(folder / "models.json", about)
        return paths

    def plot(self, name: str | None = None) -> Figure:
        """Returns one picture of the report as a Matplotlib figure.

        Args:
            name: The name of a picture (`calibration`, `clients` ...), or of a score in `rounds`. None means `accuracy`
                or `rmse`.

        Raises:
            BadInput: There is no picture of this name.
            FedrayError: The run has no data for the picture.
        """
        from fedray.report.page import draw_plot
        from fedray.report.read import read_run

        return draw_plot(read_run(self.path), name)

    def _repr_html_(self) -> str:
        from fedray.report.page import show_run
        from fedray.report.read import read_run

        return show_run(read_run(self.path), self.error)

    def predict(
        self,
        x: Any,
        client: int | str | None = None,
        replicate: int = 0,
        fold: int = 0,
        *,
        conformal: Mapping[str, Any] | None = None,
    ) -> Prediction:
        """Predicts for raw inputs with the ensemble of the newest checkpoint.

        Column c of the probabilities is for the class `class_names[c]`. A checkpoint is loaded only once.

        Args:
            x: Inputs `[n, *sample]` in the form in which the data set stores them, or a table, whose columns are found
                by name.
            client: A client of the run, as a name or an id from 0 to N - 1. If the client has its own models (`ditto`),
                these models predict. Otherwise the ensemble predicts, with the client's own weights (Fed-ensemble,
                equations 3 and 4) or the weights of the client's tier. None means the prediction for new clients.
            replicate: The replicate that predicts, from 0.
            fold: The fold that predicts: its position among the folds of the run, from 0.
            conformal: Keys of `predict.conformal` for a rule in place of the scenario's rule, such as `{"alpha": 0.2}`.

        Raises:
            BadInput: An argument does not fit the run.
            FedrayError: There is no checkpoint, or the checkpoint is damaged.
        """
        predictor = self._newest_predictor()
        study, spread = predictor.study, predictor.range
        inputs = torch.as_tensor(read_inputs(study.shards.data, x))
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
        if spread is not None and inputs.numel() and inputs.min() < inputs.max():  # and not blank
            for remark in remark_on_scale(spread, inputs.numpy(), "the rows of x", study.shards.data.features):
                warn_user(remark, FedrayWarning)
        rule, world = read_rule(study, conformal), replicate * study.per_replicate + fold
        known = None if client is None else study.find_client(client, world)
        found, answer = predictor.ask(inputs, world, known)
        return found if rule is None else predictor.add_sets(found, rule, inputs, world, answer=answer, client=known)

    def distil(
        self,
        x: Any,
        model: str | Mapping[str, Any] | Callable[[], nn.Module] | None = None,
        *,
        client: int | str | None = None,
        replicate: int = 0,
        steps: int = 2000,
        lr: float = 1e-3,
    ) -> Distilled:
        """Trains one network to predict as the run does, on inputs without labels. The run does not change.

        Args:
            x: Inputs `[n, *sample]` in the form in which the data set stores them.
            model: The network, in a form that `fedray.run` accepts. None means the network of the run.
            client: The client whose predictions are learned, as in `predict`. None means the predictions for new
                clients.
            replicate: The replicate whose predictions are learned, from 0.
            steps: The number of steps of Adam, with 128 inputs each. The learning rate follows a cosine.
            lr: The learning rate at the first step.

        Raises:
            BadInput: The run has no classes, or the network or an argument does not fit the run.
        """
        study, world = self.study, replicate * self.study.per_replicate
        if steps < 0 or not lr > 0:
            raise BadInput(f"distil: steps = {steps}, lr = {lr:g}: give at least 0 steps, and a rate above 0")
        if not study.classes:
            raise BadInput(f"distil: {study.shards.data.name} has real targets: choose a run on data with classes")
        keys = study.scenario if model is None else {"data": study.scenario["data"]}
        keys = {**keys, "model": model} if isinstance(model, str | Mapping) else keys
        own = self._own if model is None else UserObjects(model=model if callable(model) else None)
        scenario = read_scenario(keys, explicit=False)
        net = make_network(scenario, study.shards.data, own, worlds=1)
        answers = self.predict(x, client, replicate).mean
        if not len(answers):
            raise BadInput("x has no rows: give the student some")
        inputs, seed = _read_standardized(study, x, world), int(study.seeds[world])
        start = net.init(int(rng.keys(seed, "distilled start") >> np.uint64(2)))
        rows = ServerRows(inputs, inputs[:0], torch.empty(0, dtype=torch.int64))
        target = torch.from_numpy(answers).to(start.dtype)
        engine, key = choose_students(study.lanes)(net), rng.keys(seed, "distilled")
        row = follow_teacher(net, Fusion(steps, lr), start, target, rows=rows, key=key, engine=engine)
        return Distilled(study, world, net, row)

    def _require_newest_checkpoint(self) -> None:
        """Checks that a finished run still has its last checkpoint. An older checkpoint must not predict instead."""
        if self._folder != "checkpoints":
            return
        file, newest = self.path / SUMMARY_FILE, max(find_checkpoints(self.path / "checkpoints"), default=-1)
        summary = read_summary(self.path) if file.is_file() else {}
        if FILES_KEY in summary and newest != summary["rounds"]:
            folder = self.path / "checkpoints" / f"round-{summary['rounds']:06d}"
            raise Damaged(f"{folder} is missing", f"`fedray resume {self.path}` makes it again")

    def _newest_predictor(self) -> Predictor:
        """Returns the predictor of the newest checkpoint, and makes it only once for each checkpoint."""
        folder, version = self.path / self._folder, None
        for newest in find_checkpoints(folder)[-1:]:
            with suppress(FileNotFoundError):  # a run that still trains removes older checkpoints
                version = newest, (folder / f"round-{newest:06d}").stat().st_mtime_ns
        if self._predictor is None or version is None or self._predictor[0] != version:
            self._require_newest_checkpoint()
            progress, private = checkpoint.load_study_checkpoint(self.path, self.study, self._folder)
            self._predictor = version, Predictor(self.study, progress.state, private)
        return self._predictor[1]


# ---------------------------------------------------------------------------------------------------------------------
# The comparison of runs (`fedray.compare`).

COLUMNS = ("metric", "run", "baseline", "run_mean", "baseline_mean", "difference", "low", "high", "p", "n", "over")


class Comparison:
    """The comparison of each run with the first run, for each score, over the seeds that both runs share.

    Attributes:
        pairs: The paired differences from the first run. There is one for each score and each further run.
        notes: Warnings of one line each, for example if the runs have different data, lengths or seeds.
    """

    def __init__(self, runs: Sequence[ReadRun], cost: str | None = None, metrics: Sequence[str] | None = None) -> None:
        """Computes the differences.

        Args:
            runs: The contents of at least two run directories.
            cost: The cost at which runs are compared (`fedray.report.compare`). None means equal rounds, if the runs
                have rounds.
            metrics: The scores to compare, as names of columns of `rounds.parquet`. None means the usual scores and the
                user's metrics.
        """
        from fedray.report.compare import compare_with_first, list_caveats, list_compared_metrics

        self._runs = list(runs)
        wanted = list_compared_metrics(self._runs) if metrics is None else metrics
        pairs = compare_with_first(self._runs, wanted, over=cost)
        self.pairs: list[RunPair] = [pair for pair in pairs if "-" not in pair.read]
        self.notes: list[str] = list_caveats(self._runs, cost)

    @property
    def dataframe(self) -> Any:
        """Returns a pandas DataFrame with one row for each score and each run after the first.

        A row has the means of both runs over their shared seeds, the difference with its 95 % interval, the p-value of
        the paired t test, and the number of pairs. If a score on test samples chose the last round of a run, the
        column `chosen_on_test` names this run in its rows. Otherwise there is no such column.
        """
        import pandas as pd  # slow to import

        from fedray.report.read import list_chosen_on_test

        rows = []
        for pair in self.pairs:
            d = pair.difference or PairedDifference(math.nan, math.nan, math.nan, 0, "seeds")
            found = (d.mean, d.low, d.high, d.p, d.n, d.over)
            rows.append((pair.metric, pair.run, pair.baseline, pair.run_mean, pair.baseline_mean, *found))
        frame = pd.DataFrame(rows, columns=COLUMNS)
        if chosen := list_chosen_on_test(self._runs):
            each = [(pair.run, pair.baseline) for pair in self.pairs]
            frame["chosen_on_test"] = [", ".join(name for name in both if name in chosen) for both in each]
        return frame

    def to_latex(self) -> str:
        """Returns the paired differences as a LaTeX table (package booktabs), with a line for each score and run."""
        frame = self.dataframe
        ends = zip(frame["low"], frame["high"], strict=True)
        spans = ["-" if math.isnan(low) else f"[{low:.4f}, {high:.4f}]" for low, high in ends]
        shown = frame[["metric", "run", "baseline", "difference"]].assign(interval=spans, p=frame["p"], n=frame["n"])
        numbers = {"difference": "{:+.4f}".format, "p": "{:.2g}".format}
        return str(shown.to_latex(index=False, escape=True, formatters=numbers, na_rep="-"))

    def plot(self, metric: str | None = None, over: str = "rounds") -> Figure:
        """Returns a picture with the curves of all runs.

        Args:
            metric: A score in `rounds.parquet`. None means accuracy or RMSE. If clients of a run predict with their own
                models or weights, and all runs have the personalized score, None means this score.
            over: The horizontal axis: `rounds`, `bytes` (up and down) or `seconds` (of virtual time).

        Raises:
            BadInput: `over` is wrong, or no run has a curve of this score.
        """
        from fedray.report.compare import overlay_curves
        from fedray.report.page import draw_alone
        from fedray.report.read import find_headline

        wanted = metric or find_headline(self._runs)
        if over not in ("rounds", "bytes", "seconds"):
            raise BadInput(f"over = {quote_value(over)}: choose rounds, bytes or seconds")
        figure = draw_alone(lambda: overlay_curves(self._runs, wanted, over))
        if figure is None:
            known = ", ".join(dict.fromkeys(pair.metric for pair in self.pairs))
            raise BadInput(f"plot {quote_value(wanted)} over {over}: no run has this curve: choose one of {known}")
        return figure

    def __str__(self) -> str:
        return "\n".join([*self.notes, self.dataframe.to_string(index=False)])

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return notes + str(self.dataframe.to_html(index=False, border=0))


def compare(
    runs: Sequence[Run | str | Path],
    names: Sequence[str] | None = None,
    *,
    at_equal: str = "rounds",
    metrics: str | Sequence[str] | None = None,
) -> Comparison:
    """Compares each run with the first run, over the seeds that both runs share.

    Args:
        runs: At least two runs or run directories.
        names: A name for each run. None means the first of the following that distinguishes the runs: the methods, the
            values of the only key in which the runs differ, or the directories.
        at_equal: The quantity at which runs are compared. `rounds` compares scores at equal rounds, or at the end for a
            method with phases. `uplink`, `bytes` (up and down) and `seconds` (of virtual time) compare scores at equal
            cost per seed and fold. This cost is the total cost of the cheapest seed and fold of all runs. Scores are
            interpolated linearly between evaluations. If a run has no evaluation near this cost, the run is left out,
            and `notes` names it. If a run has no rounds, `rounds` means `seconds`.
        metrics: The scores to compare, as names of numeric columns of `rounds.parquet`. None means accuracy, RMSE, the
            other usual scores, and your own metrics that all runs have. Personalized accuracy comes first if clients of
            a run predict with their own models or weights.

    Raises:
        BadInput: There are fewer than two runs, two runs have the same name, or a run is `Run.best`. The error is also
            raised if the cost is unknown or missing in a run, or if the first run shares a score of `metrics` with no
            other run.

    Example:
        >>> import fedray
        >>> keys = {"rounds": 4, "clients": {"number": 4}, "runtime": "inline", "report": False}
        >>> runs = [fedray.run(keys, **{"method.name": name}) for name in ("shefl", "fedavg")]
        >>> compare(runs, at_equal="uplink").notes[0]
        'Compared at equal cost, 94.8 kB up a seed.'
    """
    from fedray.report.read import read_run

    if isinstance(runs, str | Path | Run | Mapping) or len(runs) < 2:
        raise BadInput("compare takes a list of at least two runs: fedray.compare([run, other])")
    opened = [run if isinstance(run, Run) else Run.from_path(run) for run in runs]
    if chosen := [run for run in opened if run._folder == BEST_FOLDER]:
        raise BadInput(f"compare reads last rounds, and {chosen[0].path} is opened with its best: give the run itself")
    paths = [run.path for run in opened]
    read = [read_run(path) for path in paths]
    known = _name_runs(read) if names is None else list(names)
    if len(known) != len(paths) or len(set(known)) != len(known):
        raise BadInput(f"names = {quote_value(known)}: give {len(paths)} names, each of them once")
    named = [replace(one, name=name) for one, name in zip(read, known, strict=True)]
    return Comparison(named, _find_cost(named, at_equal), _read_metrics(named, metrics))


def _read_metrics(runs: list[ReadRun], metrics: str | Sequence[str] | None) -> list[str] | None:
    """Returns the requested scores as a list. None means the usual scores.

    Raises:
        BadInput: The first run shares a requested score with no other run. Or `metrics` is None, and the first run
            shares neither accuracy nor RMSE with another run (trials of a sweep have only scores of held-out samples).
    """
    from fedray.report.read import CONTEXT

    each = [[name for name, values in run.rounds.items() if not np.isnan(values).all()] for run in runs]
    shared = [name for name in each[0] if name not in CONTEXT and any(name in names for names in each[1:])]
    both = f"{runs[0].name} and another run have"
    if metrics is None:
        if shared and runs[0].metric not in shared:
            raise BadInput(f"{runs[0].metric} is no score that {both}: give metrics, of {', '.join(shared)}")
        return None
    wanted = [metrics] if isinstance(metrics, str) else list(metrics)
    if unknown := next((name for name in wanted if name not in shared), None):
        remedy = suggest_nearest(unknown, shared, f"choose of {', '.join(shared)}")
        raise BadInput(f"metrics: {quote_value(unknown)} is no score that {both}: {remedy}")
    return wanted


def _find_cost(runs: list[ReadRun], at_equal: str) -> str | None:
    """Returns the cost at which runs are compared, as `fedray.report.compare` names it, or None for rounds.

    Raises:
        BadInput: The cost is unknown, or missing in a run.
    """
    from fedray.report.read import BYTES, SECONDS, UPLINK, find_end

    known = {"rounds": None, "uplink": UPLINK, "bytes": BYTES, "seconds": SECONDS}
    if at_equal not in known:
        raise BadInput(f"at_equal = {quote_value(at_equal)}: choose {', '.join(known)}")
    cost = known[at_equal]
    for run in runs:
        if cost is not None and not 0 < find_end(run, cost) < math.inf:
            raise BadInput(
                f"at_equal = {at_equal}: {run.name} has no {at_equal} to compare by: leave at_equal out, to "
                "compare at equal rounds"
            )
    return cost


def _name_runs(runs: list[ReadRun]) -> list[str]:
    """Returns names that distinguish the runs: methods, values of the only key that differs, or directories."""
    from fedray.report.compare import find_differences

    keys = find_differences(runs)
    methods = [values for key, values in keys if key in ("method", "method.name")]
    alone = [f"{keys[0][0]}={value}" for value in keys[0][1]] if len(keys) == 1 else []
    folders = [run.name for run in runs]
    for names in (*methods, alone, folders):
        if len(set(names)) == len(runs):
            return [str(name) for name in names]
    return [f"{name} ({place})" for place, name in enumerate(folders, 1)]
