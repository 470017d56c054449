"""Reads the files of a run directory into plain arrays."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedray.core.errors import name_score, show_line
from fedray.core.types import FloatArray, IntArray
from fedray.files import run_files
from fedray.methods import METHOD_SPECS
from fedray.metrics.scores import BudgetScore, read_at_budget
from fedray.scenario import shipped
from fedray.scenario.identity import IDENTITY_FILE, refuse_edited_scenario, refuse_lost_identity
from fedray.scenario.nested import read_mapping

# ---------------------------------------------------------------------------------------------------------------------
# `pictures.npz` is optional, and so is every array in it. There are N clients, K models and C classes.
#
# All tasks: client_scores `[N]` (z-scores), alpha `[N, K]`, clusters `[N]` (true cluster of each client), loss_plane
# `[g, g]`, client_ids `[N]` (only with `data.test_clients`), loss_plane_points `[3, 2]`, loss_plane_extent `[4]`
# (left, right, bottom, top), conformal_clients `[N, 2]` (coverage and size of the sets), conformal_alpha `[1]`,
# graph_edges `[E, 2]` of a random walk.
#
# Classification: confusion `[C, C]` (rows are true classes), calibration `[bins, 3]` (mean confidence, accuracy,
# count), label_counts `[N, C]`, class_names `[C]`, disagreement `[K, K]` (share of samples), client_accuracy `[N]`,
# ood_entropies `[bins, 3]` (lower end, share of the test samples, share of the unknown inputs), ood_auroc `[1]`.
#
# Regression: client_rmse `[N]`, client_rmse_equal `[N]` (with the common weights of the models), predictive `[n, 4]`
# (x, target, mean, standard deviation; x is NaN if there are several inputs), pit `[bins]`, coverage `[levels, 2]`
# (nominal, observed).
#
# A stack with n bases and F folds: confusion_average `[C, C]`, stack_folds `[n, F]`, stack_bases `[n]` (names),
# meta_weights `[C, n * C]`.

FOR_RARE_CLASSES = ("balanced_accuracy", "roc_auc", "average_precision")  # scores to read where one class is rare

CONTEXT = ("replicate", "fold", "round", "sim_seconds", "wall_seconds", "up_bytes", "down_bytes")


class Curve(NamedTuple):
    """A metric over rounds.

    Attributes:
        round: The T evaluated rounds in which at least one world (a replicate and a fold) has a value, `[T]`.
        values: The metric, `[worlds, T]`. It is NaN where a world has no value.

    Example:
        >>> curve = Curve(np.array([0.0, 1.0]), np.array([[0.1, 0.5], [np.nan, 0.7]]))  # two worlds
        >>> curve.mean.round(2).tolist(), curve.sd.round(2).tolist()
        ([0.1, 0.6], [0.0, 0.14])
    """

    round: FloatArray
    values: FloatArray

    @property
    def mean(self) -> FloatArray:
        """Returns for each of T rounds the mean over the replicates and folds that have a value, `[T]`."""
        known = np.isfinite(self.values)
        return np.asarray(np.where(known, self.values, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1))

    @property
    def sd(self) -> FloatArray:
        """Returns for each of T rounds the standard deviation over replicates and folds, `[T]`.

        It is 0 if only one replicate and fold has a value.
        """
        known = np.isfinite(self.values)
        squares = np.where(known, (self.values - self.mean) ** 2, 0.0).sum(axis=0)
        return np.asarray(np.sqrt(squares / np.maximum(known.sum(axis=0) - 1, 1)))


@dataclass(frozen=True)
class ReadRun:
    """The content of a run directory.

    Attributes:
        name: The name of the run on the page.
        scenario: The keys of the scenario.
        scenario_text: The text of `scenario.yaml`.
        manifest: Versions, machine and timings. It is empty if the run has no manifest.
        summary: Final metrics and totals. It is empty if the run was interrupted.
        rounds: The columns of `rounds.parquet` by name, `[rows]` each. There is one row for each evaluated round,
            replicate and fold.
        members: The headline metric of each member, `[rows, K]`. None means that it was not recorded.
        clients: The table of jobs, with a row for each job. None means that the run has no such table.
        pictures: The arrays of `pictures.npz` by name. A comment in this module lists them.
        client_scores: A table with one row per evaluated round, replicate, fold and recorded client
            (`evaluate.clients`). None means that no client was recorded.
        identity: Digests of the data and code with which the run began (`identity.json`). It is empty if there is no
            such file.
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
        """Returns the name of the headline metric, which is `accuracy` or, for a regression, `rmse`."""
        known = {**self.rounds, **self.summary.get("metrics", {})}
        return "rmse" if "rmse" in known and "accuracy" not in known else "accuracy"

    @property
    def worlds(self) -> int:
        """Returns the number of replicates times the number of folds."""
        if not self.rounds:
            return 1
        return len(np.unique(np.stack([self.rounds["replicate"], self.rounds["fold"]]), axis=1).T)

    @property
    def models(self) -> int:
        """Returns the number K of models in the ensemble."""
        return self._in_jobs if self.members is None else int(self.members.shape[1])

    @property
    def trained(self) -> int:
        """Returns the number of models that the jobs train.

        This is K. For a stack it is the number of sub models, plus 1 if there is a meta model.
        """
        return max(self.models, self._in_jobs)

    @property
    def _in_jobs(self) -> int:
        jobs = self.clients
        return int(pc.max(jobs["model"]).as_py()) + 1 if jobs is not None and len(jobs) else 1

    def client_ids(self, number: int) -> IntArray:
        """Returns the ids in the tables of the first `number` clients of the arrays in `pictures`."""
        return self.pictures.get("client_ids", np.arange(number))[:number]

    @property
    def client_keys(self) -> Mapping[str, Any]:
        """Returns the section `clients` of the scenario. It is empty if the scenario has no such section."""
        return dict(self.scenario.get("clients") or {})

    @property
    def tiers(self) -> list[str]:
        """Returns the names of the tiers, in the order of their clients. Tiers without jobs are included.

        A scenario without tiers has the single tier `client`, and the client of pooled data a tier of its own.
        """
        names = list(self.client_keys.get("tiers") or ("client",))
        found = [] if self.clients is None else self.clients["tier"].unique().to_pylist()
        return names if {*found} <= {*names} else found

    def curve(self, column: str) -> Curve | None:
        """Returns a column of `rounds.parquet`, or the bytes up and down, as a curve.

        Returns None if no value is a number.
        """
        values = read_axis(self, column)
        return None if values is None else pivot_rounds(self.rounds, values)

    def member(self, k: int) -> Curve | None:
        """Returns the headline metric of member k as a curve."""
        return None if self.members is None else pivot_rounds(self.rounds, self.members[:, k])

    def first_world(self) -> pa.Table | None:
        """Returns the jobs of the first replicate and fold."""
        table = self.clients
        if table is None or len(table) == 0:
            return None
        table = table.filter(pc.equal(table["replicate"], pc.min(table["replicate"])))
        return table.filter(pc.equal(table["fold"], pc.min(table["fold"])))


def pivot_rounds(rows: Mapping[str, Any], values: Any) -> Curve | None:
    """Arranges a value for each round, replicate and fold as a curve. Returns None if no value is a number.

    `rows` has the columns `round`, `replicate` and `fold`, `[rows]` each.

    Example:
        >>> rows = {"round": np.array([0, 5, 5]), "replicate": np.array([0, 0, 1]), "fold": np.zeros(3)}
        >>> pivot_rounds(rows, np.array([0.1, 0.7, 0.9])).values.tolist()
        [[0.1, 0.7], [nan, 0.9]]
    """
    if not np.isfinite(values).any():
        return None
    pairs = np.stack([rows["replicate"], rows["fold"]])
    _, world = np.unique(pairs, axis=1, return_inverse=True)
    rounds, place = np.unique(rows["round"], return_inverse=True)
    table = np.full((int(world.max()) + 1, len(rounds)), np.nan)
    table[world.ravel(), place.ravel()] = values
    known = np.isfinite(table).any(axis=0)
    return Curve(rounds[known].astype(np.float64), table[:, known])


def read_run(folder: Path, name: str | None = None) -> ReadRun:
    """Reads a run directory. The run may be interrupted.

    Raises:
        BadInput: A key of `scenario.yaml` was edited.
        Damaged: A file of the directory is missing or damaged.
    """
    text, scenario = read_mapping(folder / "scenario.yaml")
    files = (folder / name for name in (IDENTITY_FILE, "manifest.json"))
    began, manifest = (run_files.read_sealed(path, run_files.RESTORE) if path.exists() else {} for path in files)
    if began:
        refuse_edited_scenario(str(folder), began, scenario)
    else:
        refuse_lost_identity(folder, manifest, run_files.RESTORE)
    summary = run_files.read_summary(folder) if (folder / run_files.SUMMARY_FILE).exists() else {}
    run_files.check_files(folder, summary.get(run_files.FILES_KEY, {}), "pictures.npz")
    table = run_files.read_parts(folder, "rounds")
    rounds, members = ({}, None) if table is None else _split_columns(table)
    return ReadRun(
        name=show_line(name or folder.resolve().name, 200),
        scenario=scenario,
        scenario_text=text,
        manifest=manifest,
        summary=summary,
        rounds=rounds,
        members=members,
        clients=run_files.read_parts(folder, "clients"),
        pictures=run_files.read_pictures(folder / "pictures.npz"),
        client_scores=run_files.read_parts(folder, "client_scores"),
        identity=began,
    )


def _split_columns(table: pa.Table) -> tuple[dict[str, FloatArray], FloatArray | None]:
    rounds: dict[str, FloatArray] = {}
    members = None
    for name in table.column_names:
        kind = table.schema.field(name).type
        if name in run_files.MEMBER_COLUMNS:
            columns = [*zip_longest(*(row or [] for row in table[name].to_pylist()))]  # None fills the shorter lists
            members = np.array(columns, dtype=np.float64).T if columns else None
        elif pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind):
            values = table[name].cast(pa.float64(), safe=False).to_numpy()
            rounds[name] = np.array(values, dtype=np.float64)
    for name in CONTEXT:
        rounds.setdefault(name, np.zeros(len(table)))
    return rounds, members


# ---------------------------------------------------------------------------------------------------------------------
# Scores of untrained models are used only if runs are compared at round 0, and scores before the last phase of a method
# are never used. The rounds of stacking, FENS and β-Predictive Bayes cannot be compared with rounds of other methods.
# The scores of such a run are taken at its own end.

ROUNDS, SECONDS, UPLINK = "round", "sim_seconds", "up_bytes"  # columns of `rounds.parquet` over which runs are compared
BYTES = "bytes"  # bytes up and down: the sum of two columns
Worlds = dict[tuple[int, int], BudgetScore]  # (seed, fold) -> score


def read_axis(run: ReadRun, over: str) -> FloatArray | None:
    """Returns the round of each row of `rounds.parquet`, or a cost since the start.

    Returns None if the table has no such column.
    """
    if over == BYTES:
        up, down = run.rounds.get(UPLINK), run.rounds.get("down_bytes")
        return None if up is None or down is None else up + down
    return run.rounds.get(over)


def read_worlds(run: ReadRun, metric: str, last: float = math.inf, over: str = ROUNDS) -> Worlds:
    """Returns a score for each replicate and fold that has it, by (seed, fold).

    `last` is the round, or the cost, at which the score is taken. `over` is the unit of `last`: rounds or a cost. The
    score is taken at the end of the run if `last` is infinity. A round `last` also means the end of the run if the
    rounds of its method cannot be compared with the rounds of other methods.

    Example:
        >>> columns = {"round": np.arange(3.0), "accuracy": np.array([0.1, 0.5, 0.7])}
        >>> columns |= {"up_bytes": 4e6 * columns["round"], "replicate": np.zeros(3), "fold": np.zeros(3)}
        >>> run = ReadRun("one", {}, "", {}, {}, columns, None, None, {})
        >>> read_worlds(run, "accuracy", 6e6, UPLINK)
        {(0, 0): BudgetScore(value=0.6, used=0.6666666666666666, after=1.3333333333333333)}
        >>> explain_position(run, 6e6, UPLINK)
        'one is read at 67 to 133 % (between two evaluations).'
    """
    at = read_axis(run, over)
    if at is None or not {metric, ROUNDS} <= run.rounds.keys():
        return {}
    if over == ROUNDS and shipped.has_own_rounds(run.scenario):
        last = math.inf
    names = ("replicate", "fold", ROUNDS, metric)
    rows = np.stack([at, *(run.rounds[name] for name in names)], axis=1)
    begins, trains = shipped.find_last_phase_start(run.scenario), shipped.begins_untrained(run.scenario)
    first = begins + 1 if begins or (trains and last) else 0  # scores of untrained models count only if `last` is 0
    rows = rows[~np.isnan(rows[:, 4]) & (rows[:, 3] >= first)]
    rows, found = rows[np.lexsort((rows[:, 3], rows[:, 0]))], {}
    for r, f in np.unique(rows[:, 1:3], axis=0).tolist():
        mine = rows[(rows[:, 1] == r) & (rows[:, 2] == f)]
        score = read_at_budget(mine[:, 0].tolist(), mine[:, 4].tolist(), last)
        if score is not None:
            found[run.scenario.get("seed", 0) + int(r), int(f)] = score
    return found


def find_end(run: ReadRun, over: str) -> float:
    """Returns where a run ends: its last round, or what its cheapest replicate and fold cost.

    `over` is the axis: rounds, bytes or seconds. If the run has no evaluation, the end is infinity.
    """
    curve = run.curve(over)
    if curve is None:
        return math.inf
    ends = np.nanmax(curve.values, axis=1)
    return float(ends.max() if over == ROUNDS else ends.min())


def find_common_end(runs: Sequence[ReadRun], over: str = ROUNDS) -> float:
    """Returns the end at which runs are compared: the last round of the shortest run, or the cost of the cheapest run.

    The end is infinity if no run has evaluations. The cost of a run is the cost of its cheapest replicate and fold. For
    rounds, two kinds of runs are left out: runs whose methods have phases, and untrained runs if others were trained.
    """
    ends = [find_end(run, over) for run in runs]
    if over == ROUNDS and any(ends):
        ends = [end for end, run in zip(ends, runs, strict=True) if end and not shipped.has_own_rounds(run.scenario)]
    return min(ends, default=math.inf)


def find_headline(runs: Sequence[ReadRun]) -> str:
    """Returns the score by which runs are compared first.

    If clients of some run predict with their own models or weights, and all runs have a score of personal predictions,
    the result is this score. Otherwise the result is the accuracy or RMSE of the common ensemble.
    """
    plain = runs[0].metric
    personal = f"personal_{plain}"
    return personal if list_personal_runs(runs) and all(has_score(run, personal) for run in runs) else plain


def list_personal_runs(runs: Sequence[ReadRun]) -> list[ReadRun]:
    """Lists the runs whose clients predict with their own models or weights.

    A run with a user's own method is listed, too, if it recorded personal scores that its scenario did not request.
    """
    return [run for run in runs if shipped.answers_clients_apart(run.scenario) or _has_own_answers(run)]


def _has_own_answers(run: ReadRun) -> bool:
    evaluate, method = (run.scenario.get(section) or {} for section in ("evaluate", "method"))
    name = None if method.get("object") else method.get("name")
    return has_score(run, f"personal_{run.metric}") and not evaluate.get("personal") and name not in METHOD_SPECS


def list_answer_notes(runs: Sequence[ReadRun]) -> list[str]:
    """Returns notes for a comparison in which clients of some run predict with their own models.

    A note says which score is compared first, or that some run lacks this score.
    """
    apart, plain = list_personal_runs(runs), name_score(runs[0].metric)
    personal = f"personal_{runs[0].metric}"
    if not apart:
        return []
    whose = ", ".join(run.name for run in apart)
    lacking = ", ".join(run.name for run in runs if not has_score(run, personal))
    if not lacking:
        more = f"{name_score(personal)} comes first, {plain} is of a common answer"
        return [f"Clients of {whose} answer by themselves: {more}."]
    return [
        f"Clients of {whose} answer by themselves, but there is no {name_score(personal)} of {lacking} "
        "(evaluate.personal=true records it, but not for pooled data, nor where all test rows are of new clients; a "
        f"finished run is not measured again). So {plain} is compared, which is "
        f"of a common answer that known clients of {whose} do not use."
    ]


def name_compared(runs: Sequence[ReadRun], metric: str, *, unit: bool = False) -> str:
    """Returns the name of a score in a comparison.

    If clients of some run predict with their own models or weights, the name of the common ensemble's headline score
    ends with `of the common answer`.
    """
    common = " of the common answer" if metric == runs[0].metric and list_personal_runs(runs) else ""
    return name_score(metric, unit=unit) + common


def has_score(run: ReadRun, metric: str) -> bool:
    """Returns whether a score was recorded in the rounds of a run."""
    return metric in run.rounds and not np.isnan(run.rounds[metric]).all()


def explain_position(run: ReadRun, last: float, over: str) -> str:
    """Says in a sentence at which share of `last` a run's score is taken, or why the run has no score there.

    `last` is a round or a cost, and `over` is its unit. The text is empty if the score is taken exactly at the round
    `last`.
    """
    worlds = list(read_worlds(run, run.metric, last, over).values())
    begins, end = shipped.find_last_phase_start(run.scenario), f"round {find_end(run, ROUNDS):.0f}"
    planned = int(run.scenario.get("rounds") or 0) + shipped.count_last_phase_rounds(run.scenario)
    if not worlds and find_end(run, ROUNDS) <= begins:
        what = "begun the last phase of its method" if begins else "been trained"
        return f"{run.name} has not {what} ({end}{f' of {planned}' if begins else ''}), and is not compared."
    if over == ROUNDS and shipped.has_own_rounds(run.scenario):
        more = f" of {planned}: it is not finished" if find_end(run, ROUNDS) < planned else ""
        return f"{run.name} trains in phases, which are no rounds of others, and is read at its end ({end}{more})."
    if len(worlds) < run.worlds:
        which = f" in {run.worlds - len(worlds)} of its {run.worlds} replicates and folds" if worlds else ""
        what = "the last phase of its method" if begins else "trained models"
        remedy = ": lower evaluate.every." if run.scenario.get("evaluate", {}).get("every", 1) != 1 else "."
        return f"{run.name} has no evaluation of {what} near enough{which}, and no score there{remedy}"
    share = tell_share(worlds)
    return f"{run.name} is read at {share}." if over != ROUNDS or share != "100 %" else ""


def tell_share(worlds: Sequence[BudgetScore]) -> str:
    """Returns a text with the share of a budget that was used when scores were measured.

    For a score between two evaluations, the text has the shares at both evaluations.

    Example:
        >>> tell_share([BudgetScore(0.9, 0.96, 0.96), BudgetScore(0.8, 1.0, 1.0)])
        '96 to 100 %'
        >>> tell_share([BudgetScore(0.9, 0.625, 1.25)]), tell_share([])
        ('62 to 125 % (between two evaluations)', '-')
    """
    if not worlds:
        return "-"
    low, high = min(world.used for world in worlds), max(world.after for world in worlds)
    text = f"{100 * low:.0f} %" if f"{low:.2f}" == f"{high:.2f}" else f"{100 * low:.0f} to {100 * high:.0f} %"
    return f"{text} (between two evaluations)" if any(world.after > world.used for world in worlds) else text


# ---------------------------------------------------------------------------------------------------------------------
# Marks the scores of a round that was chosen by test samples, and explains the marks.

MARK = "\u2020"


class Best(NamedTuple):
    """A highlighted cell of a table.

    Attributes:
        text: The text of the cell.
    """

    text: str

    def __str__(self) -> str:
        return self.text


Table = tuple[list[str], Sequence[Sequence[str | Best]]]  # header and rows
BEST = "checkpoint.best"  # chooses the models to keep, not the end of a run


def is_chosen_on_test(summary: Mapping[str, Any]) -> bool:
    """Returns whether test samples chose the last round of a run. If so, its final scores are too optimistic.

    Example:
        >>> summary = {"chosen_on_test": {"stop.metric": "accuracy"}}
        >>> is_chosen_on_test(summary), mark_score("90.0 %", summary)
        (True, '90.0 % †')
        >>> list_score_notes(summary)
        ['†: of a round that the test rows chose (stop.metric = accuracy), so that it is too good.']
    """
    return any(key != BEST for key in summary.get("chosen_on_test", ()))


def mark_score(text: str, summary: Mapping[str, Any]) -> str:
    """Adds a dagger to the text of a final score if test samples chose the last round of the run."""
    return f"{text} {MARK}" if is_chosen_on_test(summary) else text


def list_score_notes(summary: Mapping[str, Any], whose: str = "") -> list[str]:
    """Returns notes on the scores of a run.

    If scores have a dagger (`mark_score`), a note explains it. Other notes warn that test samples chose the best
    round, or that the models are no better than a constant class.
    """
    found, of = summary.get("chosen_on_test", {}), f" of {whose}" if whose else ""
    ends = ", ".join(f"{key} = {name}" for key, name in found.items() if key != BEST)
    lines = [f"{MARK}: of a round{of} that the test rows chose ({ends}), so that it is too good."] if ends else []
    if BEST in found:
        lines.append(f"The best round{of} was chosen by the test rows ({BEST} = {found[BEST]}): its score is too good.")
    if beaten := summary.get("most_frequent"):
        advice = "add evaluate.metrics=[balanced_accuracy]" + ", or roc_auc" * (beaten["classes"] == 2)
        if known := [name for name in FOR_RARE_CLASSES if name in summary.get("metrics", {})]:
            advice = f"read {', '.join(known)} instead"
        lines.append(
            f"The accuracy{of} is no better than that of always answering {beaten['class']} ({beaten['share']:.4f}): "
            f"{advice}."
        )
    return lines


def list_chosen_on_test(runs: Sequence[ReadRun]) -> frozenset[str]:
    """Returns the names of the runs whose last round was chosen by test samples."""
    return frozenset(run.name for run in runs if is_chosen_on_test(run.summary))
