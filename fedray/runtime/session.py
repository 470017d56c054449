"""Runs a study in its run directory, and defines the runtime without Ray.

A *study* is everything that a run needs except a runtime. A *world* is one combination of a seed and a fold of the
data. A *session* is the work of one process for a run: from the first round or the newest checkpoint to the summary.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedray.assembly.models import has_compiled_students
from fedray.core import errors, sums
from fedray.core.method import JobRows
from fedray.core.types import EVALUATED_CLIENTS, EVALUATED_ROWS, IntArray, Net, SizedPlan, State, Stats
from fedray.evaluation.evaluate import make_evaluator
from fedray.evaluation.report_data import measure_drift, write_report_data
from fedray.files.run_files import FILES_KEY, FINAL_FILES, find_checkpoints, sum_file, write_sealed
from fedray.runtime import exchange
from fedray.runtime.stacking import make_worker
from fedray.runtime.worker import Worker
from fedray.scenario.identity import IDENTITY_FILE, RECORDED
from fedray.simulation.asynchronous import choose_advance
from fedray.simulation.rounds import begin_progress, collect_values, run_rounds
from fedray.simulation.study import Pieces, Progress, Question, Runtime, Study
from fedray.storage import checkpoint, directory
from fedray.storage import summary as records
from fedray.training.choice import COMPILED, Engine, check_invariance
from fedray.training.update import keep_vectors

# ---------------------------------------------------------------------------------------------------------------------
# Answers to a `Question`, and the runtime without Ray, which is one worker in this process.
#
# The samples or clients of a question are cut into pieces of a fixed size. So an answer does not depend on the number
# or the order of workers. The name of a piece is (world, index of its first sample or client).

CLIENTS_A_PIECE = 32
MOST_LOSSES = 20  # losses of private vectors without a further round; then a job itself makes its actor die


def list_clients(study: Study, question: Question) -> Sequence[IntArray]:
    """Returns, for each world (a seed and a fold), the ids of the clients for which a `Question` is answered.

    If the question names no clients, these are the first 10,000 clients of the run (`EVALUATED_CLIENTS`).
    """
    if question.clients is not None:
        return question.clients
    known = np.arange(min(study.clients.number, EVALUATED_CLIENTS))
    return [known] * (study.worlds if question.worlds is None else question.worlds)


def list_pieces(study: Study, question: Question) -> list[exchange.PieceKey]:
    """Lists the pieces into which a `Question` is divided. A piece is a range of samples or of clients.

    If `Question.at_home` is set, each piece is one client.
    """
    if question.split is None:
        numbers = [len(some) for some in list_clients(study, question)]
        return cut_pieces(numbers, 1 if question.at_home else CLIENTS_A_PIECE)
    count = study.worlds if question.worlds is None else question.worlds
    return cut_pieces([len(study.stored_split(question.split, world)[1]) for world in range(count)], EVALUATED_ROWS)


def cut_pieces(numbers: list[int], size: int) -> list[exchange.PieceKey]:
    """Cuts the samples (or clients) of each world into pieces of at most `size` samples (or clients).

    `numbers` has the number of samples (or clients) of each world.

    Returns:
        For each piece, its world and the index of its first sample or client.

    Example:
        >>> cut_pieces([1200, 400], size=500)  # of two worlds with so many rows
        [(0, 0), (0, 500), (0, 1000), (1, 0)]
    """
    return [(world, first) for world, number in enumerate(numbers) for first in range(0, number, size)]


def answer_pieces(worker: Worker, state: State, question: Question, pieces: Sequence[exchange.PieceKey]) -> Pieces:
    """Computes the function of a `Question` for some of its pieces (ranges of samples or clients).

    If `Question.at_home` is set, this process must hold the vectors that these clients keep between rounds.
    """
    study, found = worker.study, Pieces()
    if (split := question.split) is not None:
        # reads each world once, because this may copy it
        read = lru_cache(maxsize=1)(partial(study.stored_split, split))
        for world, first in pieces:
            x = read(world)[0][first : first + EVALUATED_ROWS]
            found[world, first] = question.compute(worker, state, world, x).cpu()
        return found
    clients = list_clients(study, question)
    if question.at_home:
        for world, of_world in groupby(pieces, key=lambda piece: piece[0]):
            keys = list(of_world)
            each = question.compute(worker, state, world, clients[world][[place for _, place in keys]])
            found |= zip(keys, each, strict=True)
        return found
    for world, first in pieces:
        compute, some = partial(question.compute, worker, state, world), clients[world][first : first + CLIENTS_A_PIECE]
        given = question.numbers, study.skip, study.client_timeout
        found[world, first] = exchange.score_clients(compute, some, *given)
    return found


class Inline:
    """Runs jobs in this process, without Ray. The class `Runtime` describes the methods."""

    def __init__(self, study: Study, device: str = "cpu", threads: int = 1) -> None:
        self.worker = make_worker(study, device, threads)

    def train(self, t: int, jobs: SizedPlan, state: State) -> tuple[Stats, JobRows]:
        """Trains the jobs of round t, as `Worker.train` does."""
        return self.worker.train(t, jobs, state)

    def ask(self, question: Question, state: State) -> Pieces:
        """Computes the function of a `Question` for all of its samples or clients."""
        return answer_pieces(self.worker, state, question, list_pieces(self.worker.study, question))

    def private(self, names: Sequence[str] | None = None) -> dict[str, torch.Tensor]:
        """Returns the private vectors of the clients for a checkpoint.

        `names` are the names of the vectors to return. None means all vectors.
        """
        return keep_vectors(self.worker.store.state(), names)

    def restore(self, private: dict[str, torch.Tensor]) -> None:
        """Replaces the private vectors of the clients with the vectors of a checkpoint."""
        self.worker.store.restore(private)

    def close(self) -> None:
        """Does nothing, because there is nothing to release."""


# ---------------------------------------------------------------------------------------------------------------------
# The session. A run that is interrupted needs several sessions: a new process resumes it.
#
# A session locks the run directory, writes the manifest, runs the round loop, and records jobs, metrics and
# checkpoints. If private vectors of clients are lost with a worker, the session goes back to the newest checkpoint. At
# the end it writes the summary.

log = logging.getLogger("fedray")
Evaluate = Callable[[Progress], list[dict[str, Any]]]  # progress -> metrics of each world
MakeEvaluator = Callable[..., Evaluate]  # (study, runtime) -> the function that evaluates
Snapshot = dict[str, Any]  # round, rounds, metrics, up_bytes, sim_seconds, wall_seconds, ... for a live display
Watch = Callable[[Snapshot], None]


def run_session(
    study: Study,
    runtime: Runtime,
    out: Path,
    watch: Watch,
    *,
    facts: Mapping[str, Any],
    digests: records.Digests,
    measure: MakeEvaluator = make_evaluator,
    saved: Callable[[], None] = lambda: None,
    tell: Callable[[str], object] = records.tell_user,
) -> dict[str, Any]:
    """Runs a study in its run directory, from the newest checkpoint if there is one, and returns the summary.

    Args:
        study: The objects of the run.
        runtime: The runtime on which jobs run.
        out: The run directory. It is locked during the session, so that no other process writes to it.
        watch: A function that is called after each evaluated round. It takes a snapshot: a dictionary with the round,
            metrics, bytes and seconds.
        facts: Facts for the manifest about this process and its machine.
        digests: Digests of what is trained (`fedray.assembly.study`). They must equal the digests at the start of the
            run.
        measure: A function that takes the study and the runtime, and returns the function that evaluates the models.
            The data of the report's pictures are written only if `measure` is the default.
        saved: A function that is called after each checkpoint.
        tell: A function that prints a line to the user as a warning.

    Raises:
        Enough: The function `watch` ended the run, which is saved.
        BadInput: The digests differ from the digests at the start of the run.
    """

    def show(progress: Progress) -> None:
        watch(
            {
                "round": progress.round,
                "rounds": study.rounds,
                "metrics": {name: float(np.mean(values)) for name, values in collect_values(progress.metrics).items()},
                "up_bytes": int(progress.up_bytes.sum()),
                "down_bytes": int(progress.down_bytes.sum()),
                "sim_seconds": float(progress.sim_seconds.max()),
                "wall_seconds": progress.wall_seconds,
                "failed": progress.failed,
            }
        )

    with directory.lock_run_directory(out) as confirm_directory:
        records.confirm_identity(out, digests, tell, rounds=study.scenario["rounds"])
        directory.forget_failure(out)
        began, progress = time.perf_counter(), _begin(study, runtime, out)
        _manifest(out, study, facts, progress, {})
        losses, reached = 0, -1
        while True:
            recorder = checkpoint.RunRecorder(
                out, study, runtime.private, show, confirm_directory=confirm_directory, saved=saved
            )
            try:
                more = {"keep_clients": recorder.keep_clients} if measure is make_evaluator else {}
                evaluate, seconds = _time_calls(measure(study, runtime, **more))
                advance = choose_advance(study, runtime, progress)
                progress = run_rounds(study, recorder, evaluate, progress, advance=advance)
                recorder.flush(progress.round)
                confirm_directory()
                scoring = time.perf_counter()
                summary = _summarize(study, runtime, progress, out, pictures=measure is make_evaluator)
                scores = sum(seconds) + time.perf_counter() - scoring
                break
            except errors.Enough:
                recorder.checkpoint(progress)
                raise
            except errors.Lost:  # a worker is gone, and so are the private vectors of its clients
                confirm_directory()
                losses, reached = 1 if progress.round > reached else losses + 1, max(reached, progress.round)
                if losses >= MOST_LOSSES:
                    raise errors.FedrayError(
                        f"client actors died {losses} times over round {reached + 1}: have they enough memory? "
                        f"`fedray resume {out}` goes on"
                    ) from None
                progress = _begin(study, runtime, out)
        confirm_directory()
        timings = {"process": (whole := time.perf_counter() - began), "training": whole - scores, "evaluation": scores}
        _manifest(out, study, facts, progress, timings)
        files = {name: sum_file(out / name) for name in FINAL_FILES if (out / name).is_file()}
        write_sealed(out / "summary.json", {**summary, FILES_KEY: files})
        return summary


def _time_calls(evaluate: Evaluate) -> tuple[Evaluate, list[float]]:
    """Returns a function that calls `evaluate`, and a list. The function adds the seconds of each call to the list."""
    seconds: list[float] = []

    def evaluate_timed(progress: Progress) -> list[dict[str, Any]]:
        began = time.perf_counter()
        rows = evaluate(progress)
        seconds.append(time.perf_counter() - began)
        return rows

    return evaluate_timed, seconds


def log_snapshots(watch: Watch, log: records.Logger) -> Watch:
    """Returns a function that passes a snapshot to `watch`, and the snapshot's round and metrics to `log`.

    Example:
        >>> logged = []
        >>> watch = log_snapshots(lambda snapshot: None, lambda round, metrics: logged.append((round, metrics)))
        >>> watch({"round": 3, "metrics": {"accuracy": 0.5}})
        >>> logged
        [(3, {'accuracy': 0.5})]
    """

    def show(snapshot: Snapshot) -> None:
        watch(snapshot)
        log(snapshot["round"], snapshot["metrics"])

    return show


def note_errors(watch: Watch, noted: list[Exception]) -> Watch:
    """Returns a function that calls `watch`. The function adds exceptions of `watch` to `noted`, and re-raises them."""

    def show(snapshot: Snapshot) -> None:
        try:
            watch(snapshot)
        except Exception as error:
            noted.append(error)
            raise

    return show


def _begin(study: Study, runtime: Runtime, out: Path) -> Progress:
    """Writes the partition of the data, and returns the progress from which the run continues.

    This is the progress of the newest checkpoint, or the progress before the first round.
    """
    records.write_partition(out, study)
    if not find_checkpoints(out / "checkpoints"):
        directory.drop_newer_parts(out, -1)
        runtime.restore({})
        log.info("training")
        return begin_progress(study)
    progress, private = checkpoint.load_study_checkpoint(out, study)
    runtime.restore(private)
    directory.drop_newer_parts(out, progress.round)
    log.info("training from round %s on", progress.round)
    return progress


def _manifest(
    out: Path, study: Study, facts: Mapping[str, Any], progress: Progress, seconds: Mapping[str, float]
) -> None:
    """Writes the manifest, which describes the run and its machines.

    `seconds` holds the seconds that this process spent on each task. It is empty before the run has ended.
    """
    parts = {f"{part}_seconds": seconds.get(part) for part in ("process", "training", "evaluation")}
    timings = {"wall_seconds": progress.wall_seconds, **parts}
    size: dict[str, Any] = {"clients": study.clients.number, "worlds": study.worlds, "parameters": study.net.layout.d}
    size["partition"] = records.describe_partition(study)
    size["class_names"] = list(study.shards.data.class_names)
    if names := study.client_names:
        size["client_names"] = list(names)
    known = {RECORDED: (out / IDENTITY_FILE).is_file()}  # runs of earlier versions of fedray have no such file
    write_sealed(out / "manifest.json", records.make_manifest({**facts, "study": size, "timings": timings, **known}))


def _summarize(study: Study, runtime: Runtime, progress: Progress, out: Path, *, pictures: bool) -> dict[str, Any]:
    """Returns the summary of a run at its end.

    If `pictures` is true, also writes the drift scores and the data for the pictures of the report.
    """
    log.info("scoring the trained models")
    models = checkpoint.hash_model(study, progress.state)
    state = checkpoint.hash_state(models, progress.state, runtime.private())
    if pictures:
        drift = measure_drift(study, runtime, progress.state)
        if drift is not None:
            records.write_drift(out, study, drift)
        write_report_data(study, runtime, progress, out / "pictures.npz", drift=drift[0] if drift else None)
    return records.make_summary(study, progress, out, models, state)


# ---------------------------------------------------------------------------------------------------------------------
# Facts about the workers of a run for the manifest: the engine, its number of lanes, why it was chosen, and the result
# of its self-test. A lane is one of the jobs that an engine trains side by side.


def worker_facts(worker: Worker) -> dict[str, Any]:
    """Describes the engine of a worker, and tests whether results depend on which jobs are trained together."""
    if (work := worker.study.method.phase.work) is not None:
        name, why = work.describe()
        engine_ = {"name": name, "width": 1, "why": why, "device": worker.device.type, "evaluates": "torch"}
        return {"engine": engine_, "lanes_independent": True, "kernels": sums.hash_library() or "none"}
    if worker.parts is not None:
        return join_worker_facts([worker_facts(part) for part in worker.parts.workers])
    engines = [(worker.study.net, worker.engine), *((one.net, one.engine) for one in worker.tiers if one is not None)]
    return join_worker_facts([_describe_engine(worker, net, engine) for net, engine in engines])


def _describe_engine(worker: Worker, net: Net, engine: Engine) -> dict[str, Any]:
    """Describes the engine that trains a network. The network is the worker's own, or a slice of it."""
    study, device = worker.study, worker.device
    phase = study.method.phase
    return {
        "engine": {
            "name": engine.name,
            "width": engine.width,
            "why": engine.why,
            "device": device.type,
            **({"tf32": True} if device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32 else {}),
            "evaluates": engine.evaluates,
        },
        "lanes_independent": check_invariance(
            net, engine, phase.local, study.example, dtype=study.dtype, models=phase.models
        ),
        "kernels": sums.hash_library() or "none",
    }


def join_worker_facts(each: list[dict[str, Any]]) -> dict[str, Any]:
    """Joins several descriptions of engines (results of `worker_facts`) into one.

    `engine` is the first engine. `engines` lists all engines if they differ. `kernels` names all compiled kernels.
    `lanes_independent` is true if no engine gives results that depend on which jobs are trained together.

    Example:
        >>> mlp = {"engine": {"name": "mlp"}, "kernels": "none"}
        >>> join_worker_facts([{**mlp, "lanes_independent": flag} for flag in (True, False)])
        {'engine': {'name': 'mlp'}, 'lanes_independent': False, 'kernels': 'none'}
    """
    engines: list[dict[str, Any]] = []
    for facts in each:
        if facts["engine"] not in engines:
            engines.append(facts["engine"])
    more = {"engines": engines} if len(engines) > 1 else {}
    kernels = ", ".join(dict.fromkeys(facts["kernels"] for facts in each))
    independent = all(facts["lanes_independent"] for facts in each)
    return {"engine": engines[0], **more, "lanes_independent": independent, "kernels": kernels}


def describe_lanes(study: Study, facts: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Returns the kind of a run's engines and the devices on which clients train, for the records of the run.

    The entry `lanes` is "compiled" if compiled kernels train the clients or a student of distillation, else "torch".
    """
    engines = facts.get("engines", [facts["engine"]])
    compiled = any(engine["name"] in COMPILED for engine in engines) or has_compiled_students(study)
    devices = ", ".join(sorted({engine["device"] for engine in engines}))
    return {"engine": {"lanes": "compiled" if compiled else "torch"}, "device": {"clients": devices}}


def warn_if_dependent(facts: dict[str, Any]) -> None:
    """Warns if a worker's self-test shows that results depend on the grouping of jobs that are trained together."""
    if not facts["lanes_independent"]:
        errors.warn_user(
            "the lane self-test failed here: results repeat for the same packing only (see manifest.json)",
            errors.FedrayWarning,
        )
