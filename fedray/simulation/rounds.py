"""Runs the rounds of a study, in a loop that is the same for every method.

Each round plans jobs, trains them, makes the server's step and records the jobs. After some of the rounds, the models
are evaluated and saved. A *study* is everything that a run needs except a runtime. A *world* is one combination of a
seed and a fold of the data. All worlds of a study run in the same rounds.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedray.core import rng
from fedray.core.errors import BadInput, FedrayError
from fedray.core.method import FORWARD, Phase, reads_ensemble
from fedray.core.scores import cut_split
from fedray.core.types import FloatArray, IntArray, Plan, SizedPlan, State
from fedray.metrics.scores import lower_is_better, reaches_target
from fedray.models import net as nets
from fedray.simulation import devices
from fedray.simulation.study import Evaluation, JobTable, Progress, Recorder, Runtime, Study, losses_of
from fedray.training.block import count_client_steps, divide_epoch, samples_seen

# ---------------------------------------------------------------------------------------------------------------------
# The early end of a run, and the choice of its best round.
#
# Both depend on a score. If samples are withheld, it is the score on these samples. The reason is that the test score
# of a round is too good if test samples have chosen the round. Scores of rounds before a method's last phase choose
# nothing.

PATIENCE, BEST = "stop", "best"  # keys of `Progress.courses`
WITHHELD = "hold_out_"  # prefix of the names of scores on withheld samples


def read_value(metrics: Mapping[str, Any], name: str, key: str) -> float | None:
    """Returns the value of a metric in one world, or None if this round did not measure it.

    `key` is the scenario key that names the metric. The error message contains this key.

    Raises:
        BadInput: This run has no metric of this name.
    """
    if name not in metrics:
        known = ", ".join(k for k, v in metrics.items() if isinstance(v, float))
        raise BadInput(f"{key} = {name}: this run has no such metric: choose one of {known}")
    value: float | None = metrics[name]
    return value


def name_watched_score(metrics: Mapping[str, Any], name: str) -> str:
    """Returns the name of the score that a rule (such as early stopping) reads.

    If the run has scores on withheld samples, the name is `hold_out_NAME`. Otherwise it is `NAME`.

    Example:
        >>> [name_watched_score(each, "nll") for each in ({"nll": 1.0}, {"nll": 1.0, "hold_out_nll": 1.1})]
        ['nll', 'hold_out_nll']
    """
    return f"{WITHHELD}{name}" if f"{WITHHELD}{name}" in metrics else name


def list_choosing_keys(evaluation: Evaluation) -> dict[str, str]:
    """Returns the scenario keys that choose a round by a score, with the names of these scores as values."""
    patience, stop_at, best = evaluation.patience, evaluation.stop_at, evaluation.best
    found = {"stop.metric": patience and patience.metric, "evaluate.stop_at.metric": stop_at and stop_at[0]}
    return {key: name for key, name in {**found, "checkpoint.best": best}.items() if name}


def list_test_choices(study: Study, progress: Progress) -> dict[str, str]:
    """Returns the scenario keys that chose a round by a test score, with the names of these scores as values."""
    metrics: Mapping[str, Any] = progress.metrics[0] if progress.metrics else {}
    chosen = {key: name_watched_score(metrics, name) for key, name in list_choosing_keys(study.evaluation).items()}
    return {
        key: name
        for key, name in chosen.items()
        if not cut_split(name)[0]
        and (find_best(study, progress) if key == "checkpoint.best" else progress.stopped.startswith(f"{name} has "))
    }


def collect_values(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Collects each metric's values from the worlds that measured it.

    Some metrics, such as `roc_auc`, are NaN for a world whose test samples lack a class. Such a NaN is left out if the
    metric has values in other worlds. A NaN that comes from diverged training stays (the `nll` or `rmse` of the world's
    split is then not finite).

    Example:
        >>> collect_values([{"accuracy": 0.5, "nll": None}, {"accuracy": 0.75, "nll": 1.0}])
        {'accuracy': [0.5, 0.75], 'nll': [1.0]}
        >>> rows = [{"hold_out_nll": 0.2, "f1": math.nan}, {"hold_out_nll": 0.1, "f1": 0.75}]
        >>> collect_values(rows)["f1"]
        [0.75]
    """
    found: dict[str, list[tuple[float, bool]]] = {}  # (value, whether it is undefined) in each world
    for row in rows:
        own = [[row.get(split + loss) for loss in ("nll", "rmse")] for split in ("", WITHHELD)]
        test, held = ([loss for loss in losses if isinstance(loss, float)] for losses in own)
        for name, value in row.items():
            if isinstance(value, float):
                losses = held if name.startswith(WITHHELD) or not test else test
                undefined = math.isnan(value) and any(map(math.isfinite, losses))
                found.setdefault(name, []).append((value, undefined))
    return {name: [x for x, lacks in each if not lacks] or [x for x, _ in each] for name, each in found.items()}


def follow_course(
    best: list[list[float]], values: Sequence[float | None], round: int, *, lower: bool, min_delta: float = 0.0
) -> bool:
    """Replaces the best values so far by better new values. Returns whether any value was replaced.

    Args:
        best: One entry for each world, or a single entry for the mean of all worlds. An entry is a list of the best
            value so far and its round. The list is empty if there is no value. `best` is changed in place.
        values: The new value for each entry of `best`. None means that it was not measured.
        round: The round of the new values.
        lower: Whether lower values are better.
        min_delta: A new value counts as better only if it is better by more than this difference.
    """
    sign, found = -1.0 if lower else 1.0, False
    for place, value in enumerate(values):
        if value is None or np.isnan(value):
            continue
        best.extend([] for _ in range(place + 1 - len(best)))
        if not best[place] or sign * (value - best[place][0]) > min_delta:
            best[place] = [value, float(round)]
            found = True
    return found


def is_out_of_patience(best: list[list[float]], round: int, patience: int) -> bool:
    """Returns whether all best values are at least `patience` rounds old.

    Args:
        best: The best values and their rounds, as in `follow_course`.
        round: The current round.
        patience: Number of rounds without a better value.

    Example:
        The best value is from round 4. Three rounds later there is no better value.

        >>> best = [[0.8, 4.0]]
        >>> follow_course(best, [0.79], round=7, lower=False), is_out_of_patience(best, 7, patience=3)
        (False, True)
    """
    found = [entry[1] for entry in best if entry]
    return bool(found) and all(round - at >= patience for at in found)


def find_best(study: Study, progress: Progress) -> list[list[float]]:
    """Returns a list with the best value of `checkpoint.best` so far and its round. It is empty if there is none.

    If the key was edited, another metric begins anew. Earlier versions stored the list without the metric's name.
    """
    name, earlier = f"{BEST} {study.evaluation.best}", progress.courses.pop(BEST, [])
    for other in [key for key in progress.courses if key.startswith(f"{BEST} ") and key != name]:
        del progress.courses[other]
    return progress.courses.setdefault(name, earlier)


def follow_metrics(study: Study, progress: Progress) -> bool:
    """Updates the best values so far after an evaluation, and returns whether this round is the best so far.

    `progress.courses` is changed in place. It has the best values of two metrics: the metric of early stopping, and the
    metric that chooses the best round. Only the second metric decides what is returned.

    Raises:
        BadInput: The scenario names a metric that this run lacks.
    """
    rules, rows = study.evaluation, progress.metrics
    if not rows or not study.is_complete(progress.round):
        return False
    if rules.patience is not None:
        name = name_watched_score(rows[0], rules.patience.metric)
        values, best = [read_value(row, name, "stop.metric") for row in rows], progress.courses.setdefault(PATIENCE, [])
        lower = lower_is_better(name)
        follow_course(best, values, progress.round, lower=lower, min_delta=rules.patience.min_delta)
    if rules.best is None:
        return False
    name = name_watched_score(rows[0], rules.best)
    known = [read_value(row, name, "checkpoint.best") for row in rows]
    mine = collect_values(rows).get(name) or [value for value in known if value is not None]
    mean = None if None in known else float(np.mean(mine))
    return follow_course(find_best(study, progress), [mean], progress.round, lower=lower_is_better(name))


def find_stop(study: Study, progress: Progress) -> str:
    """Returns the reason why a run ends early after an evaluated round, or an empty text if the run goes on."""
    rules = study.evaluation
    if rules.stop_at is not None and progress.metrics and study.is_complete(progress.round):
        name, wanted = name_watched_score(progress.metrics[0], rules.stop_at[0]), rules.stop_at[1]
        values = [read_value(row, name, "evaluate.stop_at.metric") for row in progress.metrics]
        defined = collect_values(progress.metrics).get(name, [])
        if None not in values and all(reaches_target(name, value, wanted) for value in defined):
            return f"{name} has reached {wanted:g}"
    if rules.patience is not None:
        name = name_watched_score(progress.metrics[0] if progress.metrics else {}, rules.patience.metric)
        if is_out_of_patience(progress.courses.get(PATIENCE, []), progress.round, rules.patience.rounds):
            return f"{name} has not become better in {rules.patience.rounds:,} rounds"
    return "" if study.method.explain_end is None else study.method.explain_end(progress.state) or ""


def ask_callbacks(study: Study, progress: Progress, *, measured: bool) -> str:
    """Calls the user's callbacks after a round. Returns a text with the name of the first callback that ended the run.

    The text is empty if no callback ended the run.

    Args:
        study: The objects of the run.
        progress: The progress of the run.
        measured: Whether the round was evaluated.
    """

    def models() -> list[dict[str, torch.Tensor]]:
        state = progress.state
        return [nets.state_dict(study.net, *one) for one in zip(state.models, state.counters, strict=True)]

    found = collect_values(progress.metrics if measured else [])
    scores = {name: float(np.mean(values)) for name, values in found.items()}
    asked = [name for name, callback in study.callbacks if callback(progress.round, dict(scores), models)]
    return f"the callback {asked[0]} asked for it" if asked else ""


# ---------------------------------------------------------------------------------------------------------------------
# After training, the loop evaluates the models, checks rules and callbacks that may end the run, and saves.

CountRounds = Callable[[FloatArray], int]  # from world 0's virtual seconds after each next round to how many to compute


@dataclass
class Measuring:
    """Evaluates and saves the models after the rounds in which this is due.

    `began` is the clock time at which the run began. In a resumed run, the seconds that earlier processes took are
    subtracted. The other fields are arguments of `run_rounds`.
    """

    study: Study
    recorder: Recorder
    evaluate: Callable[[Progress], list[dict[str, Any]]]
    progress: Progress
    began: float

    def measure(self) -> None:
        """Evaluates the models and stores the metrics. Also saves the models if they are the best so far.

        Raises:
            BadInput: The scenario names a metric that this run lacks.
        """
        progress, target = self.progress, self.study.evaluation.target
        progress.metrics = self.evaluate(progress)
        progress.wall_seconds = time.perf_counter() - self.began
        if target is not None and progress.metrics:
            read_value(progress.metrics[0], target[0], "evaluate.target.metric")  # raises if there is no such metric
        if follow_metrics(self.study, self.progress):
            self.recorder.keep_best(self.progress)
        # the best models are saved first, because a caller that watches the run may end it in the next line
        self.recorder.evaluated(progress, progress.metrics)

    def count_rounds(self, seconds: FloatArray) -> int:
        """Returns how many rounds, at least 1, the loop can compute before it must evaluate or save.

        Args:
            seconds: Virtual seconds of world 0 at the end of each of the next rounds, `[n]`.
        """
        study, progress, rules, t = self.study, self.progress, self.study.evaluation, self.progress.round
        if study.callbacks:
            return 1
        most = min(len(seconds), study.rounds - t, study.checkpoint_every - t % study.checkpoint_every)
        if rules.every_seconds is None:
            return max(1, min(most, rules.every - t % rules.every))
        due = _count_due(seconds[:most], rules.every_seconds) > _count_due(progress.sim_seconds[0], rules.every_seconds)
        return max(1, int(due.argmax()) + 1 if due.any() else most)

    def finish_round(self, before: FloatArray) -> bool:
        """Evaluates and saves if this is due, and returns whether the run ends.

        Args:
            before: Virtual seconds at the start of the round in each world, `[R]`. If several rounds were computed at
                once, this is the start of the first of them.
        """
        study, progress = self.study, self.progress
        last = progress.round >= study.rounds
        every, seconds = study.evaluation.every_seconds, progress.sim_seconds[0]
        due = every is not None and bool(_count_due(seconds, every) > _count_due(before[0], every))
        measured = last or due or (every is None and progress.round % study.evaluation.every == 0)
        kept = last or progress.round % study.checkpoint_every == 0
        if measured:
            self.measure()
            progress.stopped = find_stop(study, progress)
        asked = ask_callbacks(study, progress, measured=measured)
        if asked and not measured:
            self.measure()
        progress.stopped = progress.stopped or asked
        done = last or bool(progress.stopped)
        if done or kept:
            self.recorder.checkpoint(progress)
        return done


def _count_due(seconds: FloatArray, every: float) -> FloatArray:
    """Returns how many evaluations are due up to each of several times.

    Args:
        seconds: The times, in virtual seconds since the start of the run.
        every: Virtual seconds between two evaluations.

    Example:
        >>> _count_due(np.array([0.5, 0.59, 3 * 0.2]), 0.1).tolist()  # 0.5 // 0.1 is 4
        [5.0, 5.0, 6.0]
    """
    return np.floor(seconds / every + 1e-9)  # 1e-9 allows for rounding errors


# ---------------------------------------------------------------------------------------------------------------------
# The loop knows no method by name. All differences between methods are functions and values of their `Phase`. Its
# schedule plans a round, and its server makes a step. It may also set the samples and bytes of jobs (`Phase.sizes`,
# `Phase.traffic`), let participants choose their models (`Phase.choose`), and store results of jobs in the state
# (`Phase.remember`).

NOT_REACHED = (devices.NO_DATA, devices.DROPPED, devices.UNAVAILABLE)  # such clients download nothing
_REACHED = np.isin(np.arange(len(devices.STATUS)), NOT_REACHED, invert=True)


def draw_first_state(study: Study) -> State:
    """Returns the state before the first round.

    The random numbers of an initial model depend on its index and on its world's seed.
    """
    phase = study.method.phase
    rows = [study.net.init(int(rng.keys(seed, "init", k))) for seed in study.init_seeds for k in range(phase.models)]
    models = torch.stack(rows).to(study.dtype)
    counters = torch.zeros(len(models), len(study.net.layout.counters), dtype=torch.int64)
    return State(models, counters, phase.server.init(models))


def begin_progress(study: Study) -> Progress:
    """Returns the progress before the first round."""
    zero = np.zeros(study.worlds, dtype=np.int64)
    state = draw_first_state(study)
    if study.method.prepare is not None:
        state = study.method.prepare(state, study.pool_rows)
    return Progress(0, state, zero, zero.copy(), np.zeros(study.worlds))


class RoundResult(NamedTuple):
    """The result of a round, or of several server steps of asynchronous training.

    Attributes:
        plan: The jobs, `[J]`, including those whose uploads were not used.
        table: The record of the jobs, `[J]`.
        state: The state of the server at the end.
        now: Virtual seconds at the end, `[worlds]`.
        rounds: Number of rounds. Each server step of asynchronous training counts as a round.
        at: The round of each job, from 1, `[J]`. None means that all jobs are of the same round.
    """

    plan: Plan
    table: JobTable
    state: State
    now: FloatArray
    rounds: int = 1
    at: IntArray | None = None


Advance = Callable[[Progress, CountRounds], RoundResult]  # (progress, how many rounds to compute) -> their result


def run_rounds(
    study: Study,
    recorder: Recorder,
    evaluate: Callable[[Progress], list[dict[str, Any]]],
    progress: Progress,
    *,
    advance: Advance,
) -> Progress:
    """Runs the rounds of a study, and returns the new progress.

    The run ends after its last round, or when a rule or a callback ends it.

    Args:
        study: The objects of the run.
        recorder: The recorder, which stores finished jobs, metrics and checkpoints.
        evaluate: A function that takes the progress and returns the metrics of each world.
        progress: The progress from which the run begins or resumes. It is changed in place.
        advance: A function that computes the next rounds. It takes the progress, and a function that says how many
            rounds to compute. It returns a `RoundResult`.
    """
    run = Measuring(study, recorder, evaluate, progress, time.perf_counter() - progress.wall_seconds)
    if progress.round == 0 and not progress.metrics:  # a resumed run has metrics already
        run.measure()
    rules = study.evaluation
    # if the current round was evaluated, a rule may end the run now
    if progress.round == 0 or (rules.every_seconds is None and progress.round % rules.every == 0):
        progress.stopped = progress.stopped or find_stop(study, progress)
    done = progress.round >= study.rounds or bool(progress.stopped)
    if done and progress.round == 0:
        recorder.checkpoint(progress)
    while not done:
        result, before = advance(progress, run.count_rounds), progress.sim_seconds
        add_round(progress, result)
        progress.wall_seconds = time.perf_counter() - run.began
        recorder.jobs(progress.round if result.at is None else result.at, result.plan, result.table)
        done = run.finish_round(before)
    return progress


def add_round(progress: Progress, result: RoundResult) -> None:
    """Adds the result of a round to a run's progress, which is changed in place."""
    progress.state = result.state
    progress.round += result.rounds
    np.add.at(progress.up_bytes, result.plan.world, result.table.up_bytes)
    np.add.at(progress.down_bytes, result.plan.world, result.table.down_bytes)
    progress.sim_seconds = result.now
    progress.failed += int((result.table.status == devices.FAILED).sum())


def run_round(
    study: Study, runtime: Runtime, progress: Progress, _count_rounds: CountRounds | None = None
) -> RoundResult:
    """Runs one round, and returns its result.

    It plans the jobs, computes their virtual time, and trains the jobs whose uploads the server will use. Then it makes
    the server's step.
    """
    t, phase = progress.round, study.method.phase
    plan, losses = ask_participants(runtime, phase, phase.schedule(t, progress.state), progress.state)
    jobs = size_jobs(study, plan, t)._replace(losses=losses)
    steps = jobs.steps * len(phase.locals)
    up, down = job_traffic(study, plan, t)
    costs, now = cost_jobs(study, jobs, up, down), progress.sim_seconds
    with np.errstate(over="ignore"):  # an infinite time raises an error below
        timing = devices.time_round(study.devices, study.rule, plan, costs, seeds=study.seeds, t=t, now=now)
        then = now + timing.round
        if phase.server_work is not None and any(study.server):
            then[np.unique(plan.world[timing.status == devices.OK])] += np.dot(study.server, phase.server_work(t))
    if not np.isfinite(then).all():
        raise FedrayError(
            f"round {t + 1} takes infinite virtual time: raise uplink and downlink, or lower seconds_per_step, "
            "seconds_per_sample and latency of clients.tiers"
        )
    state, status, loss, error = _train_and_step(runtime, phase, t, jobs, state=progress.state, status=timing.status)
    up, down = count_bytes(phase, status, up, down)
    table = JobTable(jobs.size, np.where(status == devices.OK, steps, 0), loss, up, down, timing.job, status, error)
    return RoundResult(plan, table, state, then)


def ask_participants(runtime: Runtime, phase: Phase, plan: Plan, state: State) -> tuple[Plan, FloatArray | None]:
    """Lets the participants of a round choose the models that they train, if the method asks for it.

    Returns:
        The plan, and the losses of the K models at each job's client, `[J, K]`. The losses are None if the participants
        do not choose.
    """
    if phase.choose is None or not len(plan.client):
        return plan, None
    each = [plan.client[plan.world == world] for world in range(int(plan.world.max()) + 1)]
    pieces = runtime.ask(losses_of(phase.models, each), state)
    losses = np.empty((len(plan.client), phase.models))
    for world in range(len(each)):
        told = [pieces[piece].double().numpy() for piece in sorted(pieces) if piece[0] == world]
        losses[plan.world == world] = np.concatenate([np.empty((phase.models, 0)), *told], axis=1).T
    return phase.choose(plan, losses), losses


def _train_and_step(
    runtime: Runtime, phase: Phase, t: int, jobs: SizedPlan, *, state: State, status: IntArray
) -> tuple[State, IntArray, FloatArray, NDArray[np.object_]]:
    """Trains the jobs whose status is OK, and makes the server's step with the uploads of jobs that did not fail.

    If `Phase.ask` returns a state, clients work a second time with it, before the server's step.

    Returns:
        The new state, and the status, loss and error of each job, `[J]`, as in `JobTable`.
    """
    counted, status = status == devices.OK, status.copy()
    loss, error = np.full(len(status), np.nan), np.full(len(status), None, dtype=object)
    if counted.any():
        some = jobs if counted.all() else jobs.take(counted)
        stats, rows = runtime.train(t, some, state)
        asked = None if phase.ask is None or len(rows.errors) == len(some.size) else phase.ask(state, stats)
        if asked is not None:  # the clients of all jobs that did not fail work again, with this state
            there = np.setdiff1d(np.arange(len(some.size)), list(rows.errors))
            answers, later = runtime.train(t, some.take(there), asked)
            failed = {int(there[job]): text for job, text in later.errors.items()}
            stats, rows = {**stats, **answers}, rows._replace(errors={**rows.errors, **failed})
        loss[counted] = rows.loss
        for job, text in rows.errors.items():
            place = np.flatnonzero(counted)[job]
            status[place], error[place] = devices.FAILED, text
        counted = status == devices.OK
        if counted.any():
            state = phase.server.step(state, stats, t)
            if phase.remember is not None:
                state = phase.remember(t, state, jobs.plan.take(counted), loss[counted])
    return state, status, loss, error


def size_jobs(study: Study, plan: Plan, t: int = 0) -> SizedPlan:
    """Adds each job's numbers of training samples and optimizer steps to a plan.

    Args:
        study: The objects of the run.
        plan: The jobs, `[J]`.
        t: The round, from 0. It decides which participants stop after some of their steps.
    """
    phase = study.method.phase
    size = study.shards.sizes(plan.world, plan.client) if phase.sizes is None else phase.sizes(plan)
    if phase.steps is not None:
        return SizedPlan(plan, size, phase.steps(plan, size)[0])
    steps = count_client_steps(study.clients, plan.client, size, phase.local)
    if study.rule.partial:
        of_epoch = divide_epoch(size, phase.local)[0]
        unit = np.ones_like(size) if phase.local.steps is not None else np.maximum(of_epoch, 1)
        steps = devices.cut_steps(study.rule.partial, plan, steps, unit, seeds=study.seeds, t=t)
    return SizedPlan(plan, size, steps)


def cost_jobs(study: Study, jobs: SizedPlan, up: IntArray, down: IntArray) -> devices.JobCosts:
    """Returns what jobs cost. The costs include what clients compute besides training.

    A step that passes over its batch several times counts as several steps (`Local.count_work`). Samples that are used
    outside training count as further steps of the same batch size. A client that reports its losses of K models
    computes K forward passes.

    Args:
        study: The objects of the run.
        jobs: The jobs, `[J]`.
        up: Bytes that each job sends, `[J]`.
        down: Bytes that each job receives, `[J]`.
    """
    phase = study.method.phase
    if phase.steps is not None:
        return devices.JobCosts(jobs.steps, up, down, *phase.steps(jobs.plan, jobs.size)[1:])
    size = jobs.size.astype(np.float64)
    each = [found for piece in phase.pieces if (found := piece.count_rows(study.net, size)) is not None]
    each += [] if phase.choose is None else [FORWARD * phase.models * size]
    further = sum(piece.further_steps for piece in phase.pieces)
    work = np.float64(sum(local.count_work(phase.models) for local in phase.locals))
    steps = work * jobs.steps
    samples = work * samples_seen(jobs.size, jobs.steps, phase.local)
    if each or further:  # the job computes something besides training
        rows, batch = np.sum(each, axis=0) if each else np.zeros(len(size)), phase.local.batch_size
        has_data = jobs.steps > 0
        steps += (rows / np.maximum(size if batch is None else batch, 1) + further) * has_data
        samples += rows * has_data
    tier = study.clients.tier_of(jobs.plan.client)
    share = next((found for piece in phase.pieces if (found := piece.work(tier)) is not None), None)
    return devices.JobCosts(steps, up, down, samples, share)


def job_traffic(study: Study, plan: Plan, t: int = 0) -> tuple[IntArray, IntArray]:
    """Returns the bytes that each job sends and receives, `[J]` each.

    `phase.traffic` may compute these bytes. Otherwise models go from the server to the client and back. A client that
    chooses its model receives all models. If the local loss uses all models, a client's first job of the round also
    downloads the models that the client does not train.
    """
    phase = study.method.phase
    if phase.traffic is not None:
        return phase.traffic(t, plan)
    layout, tier = study.net.layout, study.clients.tier_of(plan.client)
    stays = int(layout.mask(phase.stays).sum()) if phase.stays else 0  # number of values that are never sent
    each = np.array([net.layout.d for net in phase.nets or (study.net,)])
    vector = 4 * (each[tier if phase.nets else np.zeros_like(tier)] - stays)
    more = sum(piece.up_numbers for piece in phase.pieces)
    up = phase.compress.bytes(plan.client, tier) + vector * phase.up_vectors + 4 * more
    counters = sum(name.rpartition(".")[0] not in phase.stays for name in layout.counters)
    sent = 8 * counters * (phase.down_vectors > 0)  # integer buffers come with a model
    down = (vector * phase.down_vectors + sent) * (1 if phase.choose is None else phase.models)
    if phase.local.loss is not None and phase.local.loss.example is not None:  # what the server sends for the loss
        down = down + 4 * phase.local.loss.example.numel()
    if reads_ensemble(phase.local.loss) and phase.choose is None:
        who = plan.world * study.clients.number + plan.client
        _, first, jobs = np.unique(who, return_index=True, return_counts=True)
        down[first] += (phase.models - jobs) * (vector[first] + 8 * counters)
    return up, down


def count_bytes(phase: Phase, status: IntArray, up: IntArray, down: IntArray) -> tuple[IntArray, IntArray]:
    """Returns the bytes that count as sent and as received, `[J]` each.

    An upload counts if the server uses it, or discards it because its staleness is too large. A late upload does not
    count, because the server tells late clients to stop. A download counts if the client was reached, even if the
    client is late or fails. If there is no server (`phase.walk`), each client sends its model to the next client.
    The next client receives it in the same round. These bytes count even if the training has failed.

    Args:
        phase: The training that the jobs belong to.
        status: Index into `fedray.simulation.devices.STATUS` for each job, `[J]`.
        up: Bytes that each job sends if its upload counts, `[J]`.
        down: Bytes that each job receives before training, `[J]`.

    Example:
        >>> status = np.array([devices.OK, devices.LATE, devices.DROPPED])
        >>> phase = Phase(models=1, schedule=lambda t, state: None, local=None, server=None, compress=None)
        >>> [each.tolist() for each in count_bytes(phase, status, up=np.full(3, 7), down=np.full(3, 5))]
        [[7, 0, 0], [5, 5, 0]]
    """
    if phase.walk is not None:
        return up, up
    return np.where((status == devices.OK) | (status == devices.STALE), up, 0), np.where(_REACHED[status], down, 0)
