"""A run directory as a Python object: its scores, tables, models and predictions.

Example:
    >>> import fedray
    >>> run = fedray.run({"rounds": 1, "clients": {"number": 4}}, runtime="inline", report=False)
    >>> run.metrics["round"], run.checkpoint.name, run.error
    (1, 'round-000001', None)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import torch

from fedray.assembly.user_objects import UserObjects
from fedray.components.fusion import Fusion
from fedray.core.errors import BadInput, Damaged, FedrayError
from fedray.core.types import State
from fedray.experiments.distil import Distilled, Lesson, teach_network
from fedray.experiments.export import make_state_dicts, write_models
from fedray.experiments.frames import average_last_rows, to_frame
from fedray.experiments.predict import Prediction, Predictor
from fedray.experiments.reopen import reopen_study
from fedray.files.checksums import BEST_FOLDER, FILES_KEY, find_checkpoints, refuse_links
from fedray.files.plain import expand_user_path
from fedray.files.run_files import SUMMARY_FILE, read_summary
from fedray.files.sealed import read_sealed
from fedray.simulation.interfaces import Progress
from fedray.simulation.study import Study
from fedray.storage import checkpoint, tables
from fedray.storage.drift import read_drift
from fedray.storage.failure import read_failure
from fedray.storage.places import require_run_directory
from fedray.storage.study_checkpoint import load_study_checkpoint

if TYPE_CHECKING:  # matplotlib is slow to import
    from matplotlib.figure import Figure


class Run:
    """A run directory, finished or still written."""

    def __init__(self, path: Path, own: UserObjects | None = None, folder: str = "checkpoints") -> None:
        """Opens a run directory; nothing is read yet.

        Args:
            path: the directory.
            own: the Python objects the run was started with.
            folder: where its models are read: `checkpoints`, the newest ones, or `best`.
        """
        self.path, self._folder, self._own = path, folder, own or UserObjects()
        self._study: Study | None = None
        self._predictor: tuple[tuple[int, int] | None, Predictor] | None = None  # and which checkpoint it answers with

    @classmethod
    def from_path(cls, path: str | Path) -> Run:
        """Opens a run directory; `fedray.load` takes the Python objects of a run that was started with some.

        Args:
            path: the directory, the `out` of a run.

        Raises:
            BadInput: this is no run directory.
        """
        folder = expand_user_path("path", str(path))
        require_run_directory(folder)
        refuse_links(folder)
        return cls(folder)

    @property
    def metrics(self) -> dict[str, Any]:
        """The last row of `rounds`: scores and costs of the newest evaluated round.

        With several replicates or folds each number is their mean. A run that is not finished gives what it has.
        """
        return average_last_rows(self.rounds)

    @property
    def metrics_dataframe(self) -> Any:
        """`rounds` as a pandas DataFrame: one row per evaluated round, replicate and fold."""
        return to_frame(self.rounds)

    @property
    def checkpoint(self) -> Path | None:
        """The folder of the newest checkpoint; None where the run has none."""
        folder = self.path / self._folder
        found = [folder / f"round-{round:06d}" for round in find_checkpoints(folder)]
        return found[-1] if found else None

    @property
    def best(self) -> Run:
        """The same run with the models of its best round (`checkpoint.best`) instead of the newest ones.

        Raises:
            FedrayError: the run keeps none.
        """
        if not find_checkpoints(self.path / BEST_FOLDER):
            raise FedrayError(f"{self.path} keeps no best round: start a run with checkpoint.best = accuracy, say")
        return Run(self.path, self._own, BEST_FOLDER)

    @property
    def error(self) -> FedrayError | None:
        """What ended the run; None where it is finished, or still written by another process."""
        return read_failure(self.path)

    @property
    def summary(self) -> dict[str, Any]:
        """`summary.json`: final metrics, totals, hashes."""
        if not os.path.lexists(self.path / SUMMARY_FILE):
            raise BadInput(f"{self.path} has no summary.json: the run is not finished, `fedray resume {self.path}`")
        return {key: value for key, value in read_summary(self.path).items() if key != FILES_KEY}

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the columns of `predict(x).probabilities`; empty for a regression."""
        study = read_sealed(self.path / "manifest.json").get("study", {})
        return tuple(study["class_names"]) if "class_names" in study else self.study.shards.data.class_names

    @property
    def rounds(self) -> pa.Table:
        """One row per evaluated round, replicate and fold."""
        return tables.read_table(self.path, "rounds")

    @property
    def clients(self) -> pa.Table:
        """One row per job."""
        return tables.read_table(self.path, "clients")

    @property
    def client_scores(self) -> pa.Table:
        """One row per evaluated round, replicate, fold and recorded client.

        Raises:
            FedrayError: the scenario has no `evaluate.clients`.
        """
        return tables.read_table(self.path, "client_scores")

    @property
    def drift(self) -> pa.Table:
        """One row per known client, replicate and fold: how unusual its data look to the final ensemble.

        `z_knowledge` is the drift score, in standard deviations over the clients; `anomaly` is true beyond 3.

        Raises:
            FedrayError: the run is not finished, has one model, or has more than 2,000 clients.
        """
        return read_drift(self.path)

    @property
    def study(self) -> Study:
        """The study, built again from the run's scenario.

        Raises:
            BadInput: the scenario, the data or the code is not what the run began with, or an object is missing.
        """
        self._study = self._study or reopen_study(self.path, self._own)
        return self._study

    @property
    def progress(self) -> Progress:
        """The newest checkpoint."""
        self._require_newest_checkpoint()
        return checkpoint.load_checkpoint(self.path / self._folder)[0]

    @property
    def models(self) -> list[dict[str, torch.Tensor]]:
        """Plain torch state dicts of the trained models, with frozen parameters: replicate, then fold, then model.

        Where others answer (samples of FedAG and FedBE, an own `Method.answer`), `predict` asks those; their rows are
        `run.study.method.answer(run.progress.state).state.models`. A stack is one model, with all its parts in it.
        """
        return make_state_dicts(self.study, self._read_state())

    def _read_state(self) -> State:
        self._require_newest_checkpoint()
        return load_study_checkpoint(self.path, self.study, self._folder)[0].state

    def export(self, out: str | Path | None = None) -> list[Path]:
        """Writes every trained model, as in `models`, as a plain torch state dict in safetensors.

        Torch reads it again without fedray: `module.load_state_dict(safetensors.torch.load_file(path))`. The networks
        take standardized inputs: `models.json` beside them has the numbers, the classes, and the weights of the models
        in the answer (`docs/how-to/resume_move_share.md`).

        Args:
            out: the directory; None means `export` in the run directory.

        Returns:
            The files, `replicate-R-fold-F-model-K.safetensors`.

        Raises:
            FedrayError: a file cannot be written; what was there before is as it was.
        """
        folder = self.path / "export" if out is None else expand_user_path("out", str(out))
        return write_models(self.study, self._read_state(), folder)

    def plot(self, name: str | None = None) -> Figure:
        """A picture of the report as a Matplotlib figure.

        Args:
            name: `calibration`, `clients` ..., or any score of `rounds`; None: its `accuracy` or `rmse`.

        Raises:
            BadInput: there is no such picture.
            FedrayError: the run has no numbers for it.
        """
        from fedray.report.plots import draw_plot
        from fedray.report.read import read_run

        return draw_plot(read_run(self.path), name)

    def _repr_html_(self) -> str:
        from fedray.report.notebook import show_run
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
        """The ensemble's answer for raw inputs; column c of its probabilities is for the class `class_names[c]`.

        The newest checkpoint answers. It is read once: later calls read it again only when the run has written another.

        Args:
            x: inputs `[n, *sample]`, as the data were given, or a table: its columns are found by name.
            client: a known client's name or id, 0 to N - 1: its own weights over the models (Fed-ensemble, equations 3
                and 4; or its tier's) instead of everybody's, or its own models where it has some (`ditto`).
            replicate: which replicate answers, from 0.
            fold: which of the folds that were run answers, from 0.
            conformal: keys of `predict.conformal` in place of the scenario's, such as `{"alpha": 0.2}`; nothing trains.

        Raises:
            BadInput: an argument does not fit the run.
            FedrayError: there is no checkpoint, or it is damaged.
        """
        return self._newest_predictor().predict(x, client=client, replicate=replicate, fold=fold, conformal=conformal)

    def distil(
        self,
        x: Any,
        model: Mapping[str, Any] | None = None,
        *,
        client: int | str | None = None,
        replicate: int = 0,
        steps: int = 2000,
        lr: float = 1e-3,
    ) -> Distilled:
        """One network that learns what the run says of inputs without labels; the run stays as it is.

        Args:
            x: inputs `[n, *sample]`, as the data set stores them.
            model: the network, with the keys of the section `model`; None: that of the scenario.
            client: a known client, who teaches as in `predict`; None: everybody.
            replicate: which replicate teaches, from 0.
            steps: of Adam at a cosine rate, 128 inputs each.
            lr: its first rate.

        Raises:
            BadInput: the run has no classes, or the network or an argument does not fit it.
        """
        lesson = Lesson(x, self.predict(x, client, replicate).mean, replicate * self.study.per_replicate)
        return teach_network(self.study, self._own, lesson, model=model, how=Fusion(steps, lr))

    def _require_newest_checkpoint(self) -> None:
        """Refuses to answer for a finished run with an older checkpoint, where the newest one is gone."""
        if self._folder != "checkpoints":
            return
        file, newest = self.path / SUMMARY_FILE, max(find_checkpoints(self.path / "checkpoints"), default=-1)
        summary = read_summary(self.path) if file.is_file() else {}
        if FILES_KEY in summary and newest != summary["rounds"]:
            folder = self.path / "checkpoints" / f"round-{summary['rounds']:06d}"
            raise Damaged(f"{folder} is missing", f"`fedray resume {self.path}` makes it again")

    def _newest_predictor(self) -> Predictor:
        """The worker and the models of the newest checkpoint, kept until there is a newer one."""
        folder, version = self.path / self._folder, None
        for newest in find_checkpoints(folder)[-1:]:
            with suppress(FileNotFoundError):  # a run that goes on removes the older ones
                version = newest, (folder / f"round-{newest:06d}").stat().st_mtime_ns
        if self._predictor is None or version is None or self._predictor[0] != version:
            self._require_newest_checkpoint()
            progress, private = load_study_checkpoint(self.path, self.study, self._folder)
            self._predictor = version, Predictor(self.study, progress.state, private)
        return self._predictor[1]
