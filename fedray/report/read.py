"""A run directory as plain arrays: only files are read, nothing of the engine.

`pictures.npz` is optional, and so is every key of it (N clients, K models, C classes):
    confusion `[C, C]` (row: true class), calibration `[bins, 3]` (mean confidence, accuracy, count), label_counts
    `[N, C]`, class_names `[C]`, disagreement `[K, K]` (share of samples), client_scores `[N]` (z), client_accuracy
    `[N]`, alpha `[N, K]`; in a regression client_rmse `[N]` and client_rmse_equal `[N]` (all models weigh the same);
    predictive `[n, 4]` (x, target, mean, sd; x is NaN where there is no single input), pit `[bins]`, coverage
    `[levels, 2]` (nominal, observed); loss_plane `[g, g]`, loss_plane_points `[3, 2]`, loss_plane_extent `[4]`
    (left, right, bottom, top); graph_edges `[E, 2]` of a random walk; clusters `[N]`, the true one of each client;
    conformal_clients `[N, 2]` (coverage and size of their sets), conformal_alpha `[1]`;
    ood_entropies `[bins, 3]` (lower end, shares of the rows and of unknown inputs), ood_auroc `[1]`;
    of a stack with n bases and F folds: confusion_average `[C, C]`, stack_folds `[n, F]`, stack_bases `[n]` (names),
    meta_weights `[C, n * C]`.

Example:
    >>> curve = Curve(np.array([0.0, 1.0]), np.array([[0.1, 0.5], [np.nan, 0.7]]))  # two worlds
    >>> curve.mean.round(2).tolist(), curve.sd.round(2).tolist()
    ([0.1, 0.6], [0.0, 0.14])
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedray.core.errors import BadInput
from fedray.core.text import show_line
from fedray.core.types import FloatArray
from fedray.files.bounded import RESTORE, is_present, name_file, read_sealed
from fedray.files.checksums import check_final_file
from fedray.files.tables import MEMBER_COLUMNS, SUMMARY_FILE, read_parts, read_pictures, read_summary
from fedray.scenario.identity import IDENTITY_FILE, refuse_edited_scenario, refuse_lost_identity
from fedray.scenario.yaml_text import read_mapping

CONTEXT = ("replicate", "fold", "round", "sim_seconds", "wall_seconds", "up_bytes", "down_bytes")


class Curve(NamedTuple):
    """A metric over rounds.

    Attributes:
        round: the T evaluated rounds in which any world has a value, `[T]`.
        values: `[worlds, T]`; NaN where a world has none.
    """

    round: FloatArray
    values: FloatArray

    @property
    def mean(self) -> FloatArray:
        """Mean over the worlds that have a value, `[T]`."""
        return _reduce_worlds(self.values, "mean")

    @property
    def sd(self) -> FloatArray:
        """Standard deviation over these worlds, `[T]`; 0 for a single one."""
        return _reduce_worlds(self.values, "sd")


@dataclass(frozen=True)
class ReadRun:
    """What a run directory says.

    Attributes:
        name: of the run, on the page.
        scenario: its keys.
        scenario_text: as it was written.
        manifest: versions, machine and timings; empty where there is none.
        summary: final metrics and totals; empty where the run was interrupted.
        rounds: column -> `[rows]`, one row an evaluated round and world.
        members: headline metric of each member, `[rows, K]`; None where there is none.
        clients: one row a job; None where there is none.
        pictures: the arrays of `pictures.npz`, as the module says.
        client_scores: one row per evaluated round, replicate, fold and recorded client (`evaluate.clients`); None
            where none were recorded.
        identity: digests of what it began with (`identity.json`); empty where there is none.
    """

    name: str
    scenario: dict[str, Any]
    scenario_text: str
    manifest: dict[str, Any]
    summary: dict[str, Any]
    rounds: dict[str, FloatArray]
    members: FloatArray | None
    clients: pa.Table | None
    pictures: dict[str, NDArray[Any]]
    client_scores: pa.Table | None = None
    identity: dict[str, Any] = field(default_factory=dict)

    @property
    def metric(self) -> str:
        """The headline metric: accuracy, or rmse in regression."""
        known = {**self.rounds, **self.summary.get("metrics", {})}
        return "rmse" if "rmse" in known and "accuracy" not in known else "accuracy"

    @property
    def worlds(self) -> int:
        """Replicates times folds."""
        if not self.rounds:
            return 1
        return len(np.unique(np.stack([self.rounds["replicate"], self.rounds["fold"]]), axis=1).T)

    @property
    def models(self) -> int:
        """K: how many models the ensemble has."""
        if self.members is not None:
            return int(self.members.shape[1])
        if self.clients is not None and len(self.clients):
            return int(pc.max(self.clients["model"]).as_py()) + 1
        return 1

    @property
    def trained(self) -> int:
        """How many models the jobs train: K, and a stack's meta model behind its sub models."""
        if self.clients is None or not len(self.clients):
            return self.models
        return max(self.models, int(pc.max(self.clients["model"]).as_py()) + 1)

    @property
    def tiers(self) -> list[str]:
        """Tiers in the order of their clients."""
        if self.clients is None:
            return []
        first = self.clients.group_by("tier").aggregate([("client", "min")]).sort_by("client_min")
        return [str(name) for name in first["tier"].to_pylist()]

    def curve(self, column: str) -> Curve | None:
        """A column of `rounds.parquet`, or None where it holds no number."""
        return self._pivot(self.rounds[column]) if column in self.rounds else None

    def member(self, k: int) -> Curve | None:
        """Member k's headline metric."""
        return None if self.members is None else self._pivot(self.members[:, k])

    def first_world(self) -> pa.Table | None:
        """The jobs of the first replicate and fold."""
        table = self.clients
        if table is None or len(table) == 0:
            return None
        table = table.filter(pc.equal(table["replicate"], pc.min(table["replicate"])))
        return table.filter(pc.equal(table["fold"], pc.min(table["fold"])))

    def _pivot(self, values: FloatArray) -> Curve | None:
        if not np.isfinite(values).any():
            return None
        pairs = np.stack([self.rounds["replicate"], self.rounds["fold"]])
        _, world = np.unique(pairs, axis=1, return_inverse=True)
        rounds, place = np.unique(self.rounds["round"], return_inverse=True)
        table = np.full((int(world.max()) + 1, len(rounds)), np.nan)
        table[world.ravel(), place.ravel()] = values
        known = np.isfinite(table).any(axis=0)
        return Curve(rounds[known], table[:, known])


def read_run(folder: Path, name: str | None = None) -> ReadRun:
    """Reads a run directory; a run that was interrupted gives what it has.

    Raises:
        BadInput: the directory is not a run's, or a file of it is damaged.
    """
    path = folder / "scenario.yaml"
    if not is_present(path):
        raise BadInput(
            f"report {name_file(folder)}: no scenario.yaml there: give run directories, as `fedray run` writes them"
        )
    text, scenario = read_mapping(path)
    began, manifest = (_read_json(folder / name) for name in (IDENTITY_FILE, "manifest.json"))
    if began:
        refuse_edited_scenario(name_file(folder), began, scenario)
    else:
        refuse_lost_identity(folder, manifest, RESTORE)
    summary = read_summary(folder) if is_present(folder / SUMMARY_FILE) else {}
    check_final_file(folder, "pictures.npz", summary)
    table = read_parts(folder, "rounds")
    rounds, members = ({}, None) if table is None else _split_columns(table)
    return ReadRun(
        name=show_line(name or folder.resolve().name, 200),
        scenario=scenario,
        scenario_text=text,
        manifest=manifest,
        summary=summary,
        rounds=rounds,
        members=members,
        clients=read_parts(folder, "clients"),
        pictures=read_pictures(folder / "pictures.npz"),
        client_scores=read_parts(folder, "client_scores"),
        identity=began,
    )


def _reduce_worlds(values: FloatArray, what: str) -> FloatArray:
    known = np.isfinite(values)
    n = known.sum(axis=0)
    filled = np.where(known, values, 0.0)
    mean = filled.sum(axis=0) / np.maximum(n, 1)
    if what == "mean":
        return np.asarray(mean)
    squares = np.where(known, (values - mean) ** 2, 0.0).sum(axis=0)
    return np.asarray(np.sqrt(squares / np.maximum(n - 1, 1)))


def _split_columns(table: pa.Table) -> tuple[dict[str, FloatArray], FloatArray | None]:
    rounds: dict[str, FloatArray] = {}
    members = None
    for name in table.column_names:
        kind = table.schema.field(name).type
        if name in MEMBER_COLUMNS:
            members = _pad_rows(table[name].combine_chunks())
        elif pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind):
            values = table[name].cast(pa.float64(), safe=False).to_numpy()
            rounds[name] = np.array(values, dtype=np.float64)
    for name in CONTEXT:
        rounds.setdefault(name, np.zeros(len(table)))
    return rounds, members


def _pad_rows(rows: pa.Array) -> FloatArray | None:
    """Lists of numbers `[rows]` as one array; NaN where a list is shorter than the longest."""
    wide = 0 if pa.types.is_null(rows.type) else pc.max(pc.list_value_length(rows)).as_py() or 0
    if wide == 0:
        return None
    padded = [[*(row or []), *[None] * (wide - len(row or []))] for row in rows.to_pylist()]
    return np.array(padded, dtype=np.float64)


def _read_json(path: Path) -> dict[str, Any]:
    return read_sealed(path, RESTORE) if is_present(path) else {}
