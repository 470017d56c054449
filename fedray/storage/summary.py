"""Writes and checks `summary.json`, `manifest.json` and `identity.json` of a run directory, and makes run loggers.

A *study* is everything that a run needs. A *world* is a combination of a seed and a fold of the data.

Example:
    >>> logged = []
    >>> log: Logger = lambda round, metrics: logged.append((round, metrics["accuracy"]))
    >>> log(10, {"accuracy": 0.9})
    >>> logged
    [(10, 0.9)]
"""

import importlib
import math
import os
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from fedray.core import sums
from fedray.core.errors import BadInput, Damaged, Enough, FedrayError, FedrayWarning, show_line, warn_user
from fedray.core.types import BoolArray, Lanes, State
from fedray.data.deal import FILE_NAME, MOST_ROWS, pack_partition
from fedray.data.shards import StoredShards
from fedray.files import plain, run_files
from fedray.metrics.classification import Drift
from fedray.metrics.scores import reaches_target
from fedray.scenario import identity, names
from fedray.scenario.nested import load_yaml, write_yaml
from fedray.scenario.schema import Scenario
from fedray.simulation.rounds import collect_values, draw_first_state, find_best, list_test_choices, name_watched_score
from fedray.simulation.stacking import read_part
from fedray.simulation.study import Progress, Study, cost_answer
from fedray.storage.checkpoint import read_table, write_parquet

# ---------------------------------------------------------------------------------------------------------------------
# `summary.json` and `manifest.json` of a run directory: the results, and the software and machine that computed them.

JOB_MODEL = ("replicate", "fold", "model")  # columns of the table `clients` that name a model
PACKAGES = ("fedray", "torch", "torchvision", "numpy", "pyarrow", "ray", "optuna")


def pool_metrics(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float | int | None]]:
    """Returns for each metric the mean, the standard deviation and the number of its values in the given rows.

    The standard deviation of a single value is None.

    Example:
        >>> pool_metrics([{"accuracy": 0.5}, {"accuracy": 0.75, "rounds_to_target": 9.0}])["rounds_to_target"]
        {'mean': 9.0, 'sd': None, 'n': 1}
    """
    metrics: dict[str, dict[str, float | int | None]] = {}
    for name, values in collect_values(rows).items():
        with np.errstate(invalid="ignore"):  # infinite values have no standard deviation
            sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
            metrics[name] = {"mean": float(np.mean(values)), "sd": sd, "n": len(values)}
    return metrics


def collect_course_metrics(study: Study, out: Path) -> list[dict[str, float]]:
    """Returns metrics that depend on several evaluated rounds, as a dict for each replicate and fold.

    If the method has phases, only the rounds of the last phase count. The first metric is the mean accuracy or RMSE
    over the last 3 evaluated rounds (Fed-ensemble, section V). The other metrics are the round, the virtual second and
    the uploaded bytes when `evaluate.target` was first reached. These three are absent if it was not reached.
    """
    found, first = [], study.last_phase_start + 1 if study.last_phase_start else 0
    rows, rules = read_table(out, "rounds").to_pylist(), study.evaluation
    end = max((row["round"] for row in rows), default=0)
    if rules.every_seconds is None:  # without rounds that were evaluated as the last ones of a shorter run
        rows = [row for row in rows if row["round"] in (0, end) or row["round"] % rules.every == 0]
    for world in range(study.worlds):
        where = study.place(world)
        course = [row for row in rows if (row["replicate"], row["fold"]) == where and row["round"] >= first]
        values: dict[str, float] = {}
        for name in ("accuracy", "rmse"):
            scores = [row[name] for row in course if row["round"] and row.get(name) is not None]
            if len(scores) >= 3:  # round 0, before any training, does not count
                values[f"{name}_last3"] = float(np.mean(scores[-3:]))
        if rules.target is not None:
            name, wanted = rules.target
            if rules.target == rules.stop_at and course:  # then the target is the score that ended the run
                name = name_watched_score(course[0], name)
            told = (row for row in course if row.get(name) is not None)
            met = next((row for row in told if reaches_target(name, row[name], wanted)), None)
            if met is not None:
                values["rounds_to_target"] = float(met["round"])
                values["seconds_to_target"] = float(met["sim_seconds"])
                values["bytes_to_target"] = float(met["up_bytes"])
        found.append(values)
    return found


def count_lost_models(out: Path) -> int:
    """Returns for how many models the server used no upload, although clients had jobs to train them.

    The models of each replicate and fold are counted separately, and the largest of these counts is returned.
    """
    import pyarrow.compute as pc  # slow to import, and a check needs none of it

    model, used = list(JOB_MODEL), dict[tuple[int, ...], bool]()
    for path in run_files.list_parts(out, "clients.parquet").values():  # one after the other, because parts may be long
        jobs = run_files.read_parquet_file(path, (*JOB_MODEL, "status"))
        jobs = jobs.append_column("ok", pc.equal(jobs["status"], "ok"))
        for row in jobs.group_by(model, use_threads=False).aggregate([("ok", "any")]).to_pylist():
            key = tuple(row[name] for name in JOB_MODEL)
            used[key] = used.get(key, False) or row["ok_any"]
    lost = Counter(key[:2] for key, taken in used.items() if not taken)
    return max(lost.values(), default=0)


def count_untrained_answers(study: Study, progress: Progress) -> int:
    """Returns the number of models that predict although they still equal an initial model at the end of a run.

    Models are counted only if the method or the schedule is the user's own, or if clients choose their models.
    Otherwise `fedray.advice` finds such models before the run.

    Returns:
        The number in the replicate and fold with the most such models. It is 0 for a run without rounds, and for a
        stack with a method of fedray.
    """
    method, schedule = (study.scenario.get(section, {}) for section in ("method", "schedule"))
    own = bool(method.get("object")) or names.is_own("method", method.get("name", ""))
    own = own or study.method.phase.choose is not None
    scheduled = bool(schedule.get("object")) or names.is_own("schedule", schedule.get("kind", ""))
    if not progress.round or not (own or (scheduled and not study.parts)):
        return 0
    if study.parts:
        each = [
            _find_equal_initial_model(one.study, read_part(progress.state, one)) for one in study.parts if one.answers
        ]
        return int(sum((e.reshape(study.worlds, -1).sum(axis=1) for e in each), np.zeros(study.worlds, np.int64)).max())
    answer = study.answer(progress.state)
    drawn = _find_equal_initial_model(study, answer.state).reshape(study.worlds, -1)
    weigh = np.ones((study.worlds, answer.models)) if answer.weights is None else answer.weights
    return int((drawn & (weigh > 0)).sum(axis=1).max())


def _find_equal_initial_model(study: Study, state: State) -> BoolArray:
    """Returns for the K models of each replicate and fold whether they equal an initial model, `[worlds * K]`."""
    first = draw_first_state(study).models
    drawn = {row.numpy().tobytes() for row in first}
    return np.array([row.numpy().tobytes() in drawn for row in state.models.to(first.dtype)])


def make_summary(study: Study, progress: Progress, out: Path, model_hash: str, state_hash: str) -> dict[str, Any]:
    """Returns the content of `summary.json`: final metrics over replicates and folds, totals, and hashes."""
    metrics = {**pool_metrics(progress.metrics), **pool_metrics(collect_course_metrics(study, out))}
    more: dict[str, Any] = {"stopped": progress.stopped} if progress.stopped else {}
    if lost := count_lost_models(out):
        more["untrained_models"] = lost
    if (drawn := count_untrained_answers(study, progress)) > lost:
        more["drawn_models"] = drawn - lost
    if study.evaluation.best is not None and (best := find_best(study, progress)):
        value, round = best[0]
        name = name_watched_score(progress.metrics[0] if progress.metrics else {}, study.evaluation.best)
        more["best"] = {"metric": name, "value": value, "round": int(round)}
    if chosen := list_test_choices(study, progress):
        more["chosen_on_test"] = chosen
    accuracy = metrics.get("accuracy") if study.classes else None  # trials of a sweep do not score test samples
    if accuracy and (most := find_most_frequent(study))["share"] >= (accuracy["mean"] or 0.0):
        more["most_frequent"] = most
    return {
        "method": study.method.name,
        "data": study.scenario.get("data", {}).get("name", study.name),
        "rounds": progress.round,
        "failed_jobs": progress.failed,
        "seed": int(study.scenario.get("seed", study.seeds[0])),
        "metrics": metrics,
        "totals": {
            "up_bytes": int(progress.up_bytes.sum()),
            "down_bytes": int(progress.down_bytes.sum()),
            "sim_seconds": float(progress.sim_seconds.max()),
            "wall_seconds": progress.wall_seconds,
        },
        "answer": cost_answer(study, progress.state)._asdict(),
        "model_hash": model_hash,
        "state_hash": state_hash,
        **more,
    }


def find_most_frequent(study: Study) -> dict[str, Any]:
    """Returns the most frequent class of the test samples (`class`), its share (`share`) and the number of classes.

    Shares are means over all replicates and folds.
    """
    labels = [study.split("test", world)[1].numpy() for world in range(study.worlds)]
    shares = np.mean([np.bincount(y, minlength=study.classes) / len(y) for y in labels], axis=0)
    best = int(shares.argmax())
    return {"class": study.shards.data.class_names[best], "share": float(shares[best]), "classes": study.classes}


def make_manifest(extra: dict[str, Any]) -> dict[str, Any]:
    """Returns the content of the manifest: versions, machine, commit, and the entries of `extra`.

    Environment variables are not written, because they may hold secrets.
    """
    host = {"machine": platform.machine(), "system": platform.platform(), "python": sys.version.split()[0]}
    return {"versions": dict(_versions()), "host": host, "git_commit": _commit(), **extra}


@cache
def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


@cache
def _commit() -> str | None:
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():  # an installed package, perhaps inside the repository of another project
        return None
    with suppress(OSError):  # there is no git here
        command = ["git", "-C", str(root), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or None
    return None


# ---------------------------------------------------------------------------------------------------------------------
# `partition.parquet` of a run directory lists the samples of each client. `data.partition.file` reads such a file.
#
# The file is written for stored data sets of at most 50 million samples, but not for generated clients. Without the
# file, the partition can be computed again from the scenario and the seed. The manifest says whether there is a file
# (`study.partition`).


def describe_partition(study: Study) -> str:
    """Returns the name of the file that lists the training samples of each client, or says why there is no such file.

    Example:
        >>> from fedray.assembly.study import build_study
        >>> from fedray.scenario.loader import read_scenario
        >>> study = build_study(read_scenario({"data": {"name": "synthetic"}, "clients": {"number": 10}}))
        >>> describe_partition(study)
        'generated: the rows of a client follow from data.seed, the seed and its number (scenario.yaml)'
    """
    shards = study.shards
    if not isinstance(shards, StoredShards):
        return "generated: the rows of a client follow from data.seed, the seed and its number (scenario.yaml)"
    rows = sum(len(cut.rows) for cut in shards.dealt.owned)
    if rows > MOST_ROWS:
        return f"not written ({rows:,} rows): it follows from data.partition and the seed (scenario.yaml)"
    return FILE_NAME


def write_partition(out: Path, study: Study) -> None:
    """Writes which client holds which training samples in every replicate and fold.

    A file that already has this content is not written again.

    Raises:
        BadInput: The file exists, but this user may not read it.
    """
    shards = study.shards
    if describe_partition(study) != FILE_NAME or not isinstance(shards, StoredShards):
        return
    clusters = [shards.clusters(world) for world in range(study.worlds)]
    data = pack_partition(shards.data, shards.dealt, [int(fold) for fold in study.folds], clusters)
    path = out / FILE_NAME
    if not path.is_file() or run_files.read_or_explain(path, "") != data:
        plain.write_atomically(path, data)


# ---------------------------------------------------------------------------------------------------------------------
# `drift.parquet` has one row for each client of the run. It says how unusual the client's data are for the final
# ensemble. The columns are in `files/run_files.py`.

DRIFT_FILE = "drift.parquet"


def write_drift(out: Path, study: Study, worlds: Sequence[Drift]) -> None:
    """Writes the table `drift.parquet`. `worlds` has the drift scores of the clients for each replicate and fold."""
    tables = []
    for world, drift in enumerate(worlds):
        client = np.arange(len(drift.total))
        replicate, fold = study.place(world)
        columns = {"replicate": np.full_like(client, replicate), "fold": np.full_like(client, fold)}
        columns["client"] = study.client_ids(world, client)
        columns["samples"] = study.shards.sizes(np.full_like(client, world), client)
        # NaN, of clients without data, becomes null
        tables.append(run_files.make_table("drift", {**columns, **drift._asdict()}))
    write_parquet(out / DRIFT_FILE, pa.concat_tables(tables))


def read_drift(out: Path) -> pa.Table:
    """Returns the table of drift scores of a run directory.

    Raises:
        FedrayError: The run has no drift scores.
    """
    path, summary = out / DRIFT_FILE, out / "summary.json"
    if summary.is_file():
        run_files.check_files(out, run_files.read_sealed(summary).get(run_files.FILES_KEY, {}), DRIFT_FILE)
    if not path.is_file():
        raise FedrayError(
            f"{out} has no {DRIFT_FILE}: only finished runs in which several trained models predict have one"
        )
    return run_files.read_parquet_file(path)


# ---------------------------------------------------------------------------------------------------------------------
# Run loggers, which send the metrics of each evaluated round to a different tool. By default there are none.
#
# A logger is a function (round, metrics) -> None. A tool is imported only when its logger is made. Beside the logger
# stands a function that is told how the run ended, FINISHED or FAILED, unless a signal ended the process.

Logger = Callable[[int, Mapping[str, float]], None]
Opened = tuple[Logger, Callable[[str], object]]


def tensorboard(dir: str | Path) -> Opened:
    """Makes a logger that writes metrics as event files of TensorBoard.

    Args:
        dir: The folder of the event files, for `tensorboard --logdir`.
    """
    _import_tool("tensorboard", "tensorboard")
    writer = _import_tool("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(dir))

    def log(round: int, metrics: Mapping[str, float]) -> None:
        for name, value in _finite_numbers(metrics).items():
            writer.add_scalar(name, value, round)
        writer.flush()  # so that nothing is lost if the run is killed

    return log, lambda _ended: writer.close()


def wandb(project: str, dir: str | Path | None = None, name: str | None = None) -> Opened:
    """Makes a logger that sends metrics to a new run of Weights & Biases.

    The environment variables of Weights & Biases decide whether the run is online.

    Args:
        project: The project to which the run belongs.
        dir: The folder of the run's local files. None means the working directory.
        name: Name of the run. None means a random name.
    """
    where = None if dir is None else str(dir)
    run = _import_tool("wandb", "wandb").init(project=project, dir=where, name=name, reinit="create_new")
    return (
        lambda round, metrics: run.log(_finite_numbers(metrics), step=round),
        lambda ended: run.finish(exit_code=int(ended == "FAILED")),
    )


def mlflow(uri: str, name: str | None = None) -> Opened:
    """Makes a logger that sends metrics to a new run of MLflow, in the experiment `fedray`.

    Args:
        uri: URI of the tracking server, or of a local store such as `sqlite:///runs.db`.
        name: Name of the run. None means a random name.
    """
    client = _import_tool("mlflow", "mlflow").MlflowClient(tracking_uri=uri)
    known = client.get_experiment_by_name("fedray")
    where = client.create_experiment("fedray") if known is None else known.experiment_id
    run = client.create_run(where, run_name=name).info.run_id

    def log(round: int, metrics: Mapping[str, float]) -> None:
        for key, value in _finite_numbers(metrics).items():
            client.log_metric(run, key, value, step=round)

    return log, partial(client.set_terminated, run)


def tell_user(line: str) -> None:
    """Prints a line as a warning for the user."""
    warn_user(line, FedrayWarning)


@contextmanager
def open_loggers(names: Iterable[str], out: Path) -> Iterator[Logger]:
    """Yields a function that calls the loggers that a user requests by name.

    After its first error, which the user is told, a logger is not called again.

    Args:
        names: The scenario's `loggers`, which are `tensorboard`, `wandb` or `mlflow`. A name may end with `:VALUE`,
            which sets the directory, the project or the URI.
        out: The run directory. Loggers write their files into it, and name their runs after it.

    Raises:
        BadInput: The package of a logger is not installed.
    """
    make: dict[str, Callable[[str], Opened]] = {
        "tensorboard": lambda value: tensorboard(
            plain.expand_user_path("logger", value) if value else out / "tensorboard"
        ),
        "wandb": lambda value: wandb(value or "fedray", dir=out, name=out.name),
        "mlflow": lambda value: mlflow(value or f"sqlite:///{out / 'mlflow.db'}", name=out.name),
    }
    made: dict[str, Opened] = {}  # loggers that have not failed

    def attempt(name: str, action: Callable[..., Any], *given: Any) -> Any:
        try:
            return action(*given)
        except BadInput:
            raise
        except Exception as error:  # for example, the server of the tool does not answer
            made.pop(name, None)
            why = show_line(f"{type(error).__name__}: {error}")
            tell_user(f"loggers: {name.partition(':')[0]} failed ({why}): the run goes on without it")

    def log(round: int, metrics: Mapping[str, float]) -> None:
        for name, (send, _) in list(made.items()):
            attempt(name, send, round, metrics)

    def tell(ended: str) -> None:
        for name, (_, end) in list(made.items()):
            attempt(name, end, ended)

    try:
        for name in names:
            kind, _, value = name.partition(":")
            if (opened := attempt(name, make[kind], value)) is not None:
                made[name] = opened
        yield log
    except Exception as error:  # a run that was stopped early has finished
        tell("FINISHED" if isinstance(error, Enough) else "FAILED")
        raise
    tell("FINISHED")


def _import_tool(module: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise BadInput(f"logger = {extra!r} needs a package: pip install 'fedray[{extra}]'") from None


def _finite_numbers(metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns the metrics that are finite numbers. Lists with a value for each model are left out."""
    plain = {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
    return {name: value for name, value in plain.items() if math.isfinite(value)}


# ---------------------------------------------------------------------------------------------------------------------
# `identity.json` of a run directory describes the settings, data and code with which the run began.
#
# They must not change during the run. The file holds the scenario's keys that decide results, the number of rounds, and
# digests of the data, of the network, of the source of the user's own code, and of the values that this code uses. If
# one of these values or the device of the clients has changed, there is a warning. Every other change is an error. The
# file is written before the first round, and changed only if the run is made longer. The manifest records that the file
# exists, so that a lost file is noticed. Run directories of earlier versions of fedray without such a file are not
# checked, and digests of the user's code by earlier versions are not compared.

Digests = Mapping[str, Mapping[str, str]]  # part, such as "data" -> thing in this part -> digest
_ANSWERS = ("model ", "partition ")  # kinds of the user's code that are also used to predict after the training
_PARTS = {  # parts that must not differ, each with the message if it differs
    "data": "the data are not those the run began with ({}): restore them",
    "source": "the source of {} is not what the run began with: restore it",
    "network": "the network is not the one the run began with ({}): restore it",
    "files": "the file of module {} is not what the run began with: restore it",
    "tables": "the file of {} is not what the run began with: restore it",
    "engine": "the engine is not the one the run began with ({}): restore it",
}


def confirm_identity(out: Path, digests: Digests, tell: Callable[[str], object] = tell_user, *, rounds: int) -> None:
    """Writes `identity.json` of a new run. If the run has this file or a checkpoint, checks the file instead.

    Args:
        out: The run directory.
        digests: The present digests of data, network and code.
        tell: A function that takes one line of text about values that have changed since the run began, and prints it.
        rounds: The number of rounds of the run. If the run is made longer, the number is stored after the checks.

    Raises:
        BadInput: The run began with different data, a different network or different code.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     out = Path(folder)
        ...     _ = (out / "scenario.yaml").write_text("rounds: 4")
        ...     confirm_identity(out, {"data": {"training labels": "12ab"}}, rounds=4)
        ...     confirm_identity(out, {"data": {"training labels": "34cd"}}, rounds=4)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedray.core.errors.BadInput: ...: the data are not those the run began with (training labels): ...
    """
    began = read_identity(out)
    is_new = not began and not run_files.find_checkpoints(out / "checkpoints")
    if not is_new:
        check_scenario_file(out, any_rounds=True)
        _compare(out, began, digests, tell)
    tree = read_keys(out)
    if began.get("rounds", rounds) != rounds:  # the run is made longer
        run_files.write_sealed(out / identity.IDENTITY_FILE, {**began, "rounds": rounds})
    if tree.get("rounds") != rounds:
        (out / "summary.json").unlink(missing_ok=True)  # the summary of the shorter run
        plain.write_atomically(out / "scenario.yaml", write_yaml({**tree, "rounds": rounds}).encode())
    if is_new:
        write_identity(out, digests)


def check_identity(out: Path, digests: Digests, *, predicts: bool) -> None:
    """Checks that data, network and code have not changed since a run began.

    Callers check this before the run's models predict. A run directory without `identity.json` is not checked. Values
    that the user's code uses are compared only if this code makes a network or a partition. If `predicts` is True,
    files of devices and graphs are not compared.

    Raises:
        BadInput: Something has changed.
    """
    values = {key: digest for key, digest in digests.get("values", {}).items() if key.startswith(_ANSWERS)}
    used = {part: found for part, found in digests.items() if not (predicts and part == "tables")}
    _compare(out, read_identity(out), {**used, "values": values}, tell_user)


def check_scenario_file(out: Path, *, any_rounds: bool = False) -> None:
    """Checks that the `scenario.yaml` of a run directory was not edited. A run without `identity.json` is not checked.

    With `any_rounds` the number of rounds may differ, because a process may be killed while it makes a run longer.

    Raises:
        BadInput: A key was edited.
    """
    began = read_identity(out)
    if began:
        known = {**began, "rounds": None} if any_rounds else began
        identity.refuse_edited_scenario(str(out), known, read_keys(out))


def read_keys(out: Path) -> dict[str, Any]:
    """Returns the keys in a run directory's `scenario.yaml`, as they are written there.

    Raises:
        BadInput: The file has no keys, for example because it was emptied.
    """
    tree = load_yaml(out / "scenario.yaml")
    if not isinstance(tree, dict):
        raise BadInput(f"{out / 'scenario.yaml'} is damaged (no keys in it): restore it, or start a new run")
    return tree


def confirm_digests(out: Path, digests: Digests, *, fresh: bool) -> None:
    """Writes or checks the digests of a directory that has no scenario, such as the directory of a sweep.

    If `fresh` is True, the digests are written, because nothing was trained yet. Otherwise they are compared with the
    stored digests.

    Raises:
        BadInput: Something has changed.
    """
    if fresh:
        run_files.write_sealed(out / identity.IDENTITY_FILE, {"format": 1, **digests})
    _compare(out, read_identity(out), digests, tell_user)


def write_identity(out: Path, digests: Digests) -> None:
    """Writes `identity.json` of a run directory with the keys of its scenario and the given digests."""
    tree = load_yaml(out / "scenario.yaml")
    keys = {"format": 1, "rounds": tree.get("rounds"), "scenario": identity.list_result_keys(tree)}
    run_files.write_sealed(out / identity.IDENTITY_FILE, {**keys, **digests})


def read_identity(out: Path) -> dict[str, Any]:
    """Returns the content of `identity.json`. If the run never had this file, returns an empty dict.

    The manifest says whether the run had this file.

    Raises:
        Damaged: The file is damaged or lost.
        FedrayError: The file cannot be read for a different reason.
    """
    path, remedy = out / identity.IDENTITY_FILE, "restore it, or start a new run"
    if not os.path.lexists(path):
        manifest: dict[str, Any] = {}
        with suppress(Damaged):  # the manifest is missing, too, or damaged
            manifest = run_files.read_sealed(out / "manifest.json", remedy)
        identity.refuse_lost_identity(out, manifest, remedy)
        return {}
    return run_files.read_sealed(path, remedy)


def choose_resumed_lanes(lanes: Lanes, out: Path) -> Lanes:
    """Returns the value of the scenario's key `lanes` with which a run continues: `auto`, `compiled` or `torch`.

    If `lanes` is `auto` and the run began with torch, the result is `torch`. Otherwise the result is `lanes`.

    Raises:
        BadInput: The run began with compiled kernels, which this machine does not have.
    """
    began = read_identity(out).get("engine", {}).get("lanes")
    if began is None and run_files.find_checkpoints(out / "checkpoints"):
        began = "torch"  # an early version of fedray without compiled kernels wrote this run
    if lanes != "auto" or began is None:
        return lanes
    library = sums.load_library()
    if began == "compiled" and isinstance(library, str):
        raise BadInput(f"{out}: the run began with compiled kernels, but {library}")
    return "torch" if began == "torch" else lanes


def recall_device(out: Path) -> str | None:
    """Returns the devices with which a run began, such as `cpu, cuda`. Returns None for a new run.

    A run directory of an early version of fedray names no devices. The result is then `cpu`.
    """
    began = read_identity(out)
    if not began and not run_files.find_checkpoints(out / "checkpoints"):
        return None
    return str(began.get("device", {}).get("clients", "cpu"))


def check_longer(out: Path, scenario: Scenario, rounds: int) -> None:
    """Checks that the run of a scenario can be made longer, to `rounds` rounds in all. The run may be finished.

    Raises:
        BadInput: The run has done more than `rounds` rounds, or its method is a stack or an ensemble of learners. The
            error is also raised if the run would differ from a run that had this length from the start.
    """
    done = max(run_files.find_checkpoints(out / "checkpoints"), default=0)
    spec = names.method_spec_of(scenario.method.name)
    if spec.parts or spec.fits:
        raise BadInput(f"--rounds {rounds}: a stack or an ensemble of learners is not made longer: start a new run")
    if rounds < done:
        raise BadInput(f"--rounds {rounds}: the run has done {done}: give at least as many")
    if rounds < scenario.rounds:  # a slip may be taken back
        table = run_files.read_parts(out, "rounds")
        courses = any(keys.schedule is not None for keys in (scenario.local, scenario.server))
        if courses or (rounds == done and (table is None or done not in table["round"].to_pylist())):
            raise BadInput(f"--rounds {rounds}: the run has {scenario.rounds} rounds: give at least as many")
    if rounds > done:
        totals = run_files.read_progress(out / "checkpoints" / f"round-{done:06d}", "restore it") if done else {}
        _refuse_longer(scenario, totals, rounds)
    check_scenario_file(out, any_rounds=True)


def _refuse_longer(scenario: Scenario, totals: Mapping[str, Any], rounds: int) -> None:
    """Raises an error if a longer run would differ from a run that had this length from the start.

    `totals` has the content of `progress.json` in the newest checkpoint. It is empty if there is no checkpoint.
    """
    done, stopped = totals.get("round", 0), totals.get("stopped")
    if stopped:
        raise BadInput(f"--rounds {rounds}: the run ended after {done} rounds, because {stopped}: start a new run")
    for name, keys in (("local", scenario.local.schedule), ("server", scenario.server.schedule)):
        if keys is not None and keys.kind in ("cosine", "linear") and not keys.restart:
            end, where = keys.rounds or rounds, f"--rounds {rounds}: {name}.schedule"
            if rounds > end and not keys.floor:
                raise BadInput(f"{where} ends with a rate of 0: start a new, longer run")
            if rounds > end == scenario.rounds:  # the schedule's default is the number of rounds of the run
                raise BadInput(f"{where} falls over this run's {end} rounds: start a new run")
    rules = scenario.evaluate
    seen = [entry[1] for entries in totals.get("courses", {}).values() for entry in entries if entry]
    # a round that is not due was evaluated only because it was the last one
    if done in seen and (rules.every_seconds or done % rules.every):
        raise BadInput(
            f"--rounds {rounds}: the best value that stop or checkpoint.best knows is of round {done}, which a longer "
            "run does not evaluate: start a new run"
        )


def _compare(out: Path, began: Mapping[str, Any], digests: Digests, tell: Callable[[str], object]) -> None:
    """Raises an error if digests have changed since the run began. Prints a line if only values or devices changed."""
    for part, said in _PARTS.items():
        if changed := list_changes(part, began, digests):
            raise BadInput(f"{out}: {said.format(', '.join(changed))}, or start a new run")
    if list_changes("device", began, digests):
        then, now = began["device"]["clients"], digests["device"]["clients"]
        tell(f"{out}: clients train on {now}, but the run began on {then}: results may differ in their last digits")
    if each := list_changes("values", began, digests):
        tell(f"{out}: the values are not those the run began with ({', '.join(each)}): the new ones count")


def list_changes(part: str, began: Mapping[str, Any], now: Digests) -> list[str]:
    """Describes the differences in one part of the digests. An empty digest equals every other digest.

    A missing digest is a difference only in the parts `data` and `source`. In other parts a digest may be missing,
    because earlier versions stored more digests of a network, and a process may use only some modules and values.
    """
    found, gone = now.get(part, {}), None if part in ("data", "source") else ""
    pairs = [(key, old, found.get(key, gone)) for key, old in began.get(part, {}).items() if part in now]
    changed = [key.partition(": ") for key, old, new in pairs if old != new and "" not in (old, new)]
    files = {name: f"{name} of {file}" for name, file in began.get("names", {}).items()}
    return [f"{name} of {files.get(thing, thing)}" if name else thing for thing, _, name in changed]


def refuse_missing_names(out: Path) -> None:
    """Checks that the user's own names in a run or sweep, such as a method's name, are registered in this process.

    Raises:
        BadInput: A name is not registered.
    """
    for name, file in read_identity(out).get("names", {}).items():
        kind, _, known = name.partition(" ")
        if kind in names.KINDS and not names.is_known(kind, known):
            raise BadInput(
                f"{out}: this run used {kind} {known!r} of {file}: --import {file}, or import it first in Python"
            )
