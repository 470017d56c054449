"""Checks of what the functions of a user's own method return: each gives the error in words, or None."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedray.core.errors import BadInput
from fedray.core.method import Answer, Compressed, PartStep, Phase
from fedray.core.sums import Counts, ExactSum, Kept, Largest
from fedray.core.types import FloatArray, Plan, State, Uploads
from fedray.methods.setting import Setting
from fedray.own_code.contract import contract
from fedray.own_code.read_values import find_changeable, is_changed, mark
from fedray.own_code.user_code import name_type

STATS = (ExactSum, Counts, Largest, Kept)


def check_plan(found: Any, ranges: Mapping[str, int]) -> str | None:
    """Returns what is wrong with the jobs of a round; `ranges` has the number of clients, models and worlds."""
    if not isinstance(found, Plan):
        return f"{name_type(found)}: return a Plan of clients, models and worlds"
    for name, number in ranges.items():
        column = getattr(found, name)
        if not isinstance(column, np.ndarray) or column.ndim != 1 or column.dtype.kind not in "iu":
            kind = f"an array of {column.dtype}" if isinstance(column, np.ndarray) else name_type(column)
            return f"a Plan whose {name} is {kind}: give an array of whole numbers, [J]"
        if len(column) != len(found.client):
            return f"a Plan of {len(found.client)} clients, but {len(column)} {name}s: give one of each for a job"
        if len(column) and (column.min() < 0 or column.max() >= number):
            wrong = int(column.min() if column.min() < 0 else column.max())
            return f"a Plan with the {name} {wrong}: there are {name}s 0 to {number - 1}"
    jobs = np.stack([getattr(found, name) for name in ranges], axis=1)
    if len(jobs) and len(np.unique(jobs, axis=0)) < len(jobs):
        return "a Plan that has a job twice: a client trains a model of a world once in a round"
    return None


def check_choice(found: Any, plan: Plan, ranges: Mapping[str, int]) -> str | None:
    """Says what is wrong with a plan after the participants chose their models; None: nothing.

    Example:
        >>> plan = Plan(np.array([4, 7]), np.zeros(2, int), np.zeros(2, int))
        >>> ranges = {"client": 9, "model": 3, "world": 1}
        >>> check_choice(plan._replace(model=np.array([2, 2])), plan, ranges)
        >>> check_choice(plan._replace(client=np.array([4, 8])), plan, ranges)
        'other jobs than those that were asked: change the models of the plan alone'
    """
    wrong = check_plan(found, ranges)
    if wrong is None and not (np.array_equal(found.client, plan.client) and np.array_equal(found.world, plan.world)):
        wrong = "other jobs than those that were asked: change the models of the plan alone"
    return wrong


def check_state(found: Any, rows: int, before: State | None) -> str | None:
    """Says what is wrong with a state of some rows; it must keep the tensors of the state `before`."""
    if not isinstance(found, State):
        return f"{name_type(found)}: return a State of models, counters and extra"
    models, counters = found.models, found.counters
    for name, value in (("models", models), ("counters", counters)):
        if not isinstance(value, Tensor):
            return f"a State whose {name} is {name_type(value)}: give a tensor, a row for each model"
    shape = (rows, models.shape[-1] if before is None and models.dim() else 0)
    wanted = shape if before is None else tuple(before.models.shape)
    if tuple(models.shape) != wanted:
        return f"models of shape {list(models.shape)}: keep {list(wanted)}, a row for each model of each world"
    if before is not None and models.dtype != before.models.dtype:
        kinds = [str(one.dtype).removeprefix("torch.") for one in (models, before.models)]
        return f"models of type {kinds[0]}: keep {kinds[1]}"
    if before is not None and counters.shape != before.counters.shape:
        return f"counters of shape {list(counters.shape)}: keep {list(before.counters.shape)}"
    if not bool(torch.isfinite(models).all()):
        return f"models that are {_name_wrong(models)}: look for a division, a logarithm or a root"
    wrong = check_tensors(found.extra)
    if wrong is not None:
        return f"a State whose extra is {wrong}"
    return None if before is None else _check_kept(found.extra, before.extra)


def _check_kept(extra: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> str | None:
    """Returns what is wrong with further tensors that follow others: none may go, change its shape or become NaN."""
    for name, old in before.items():
        had = f"[{', '.join(map(str, old.shape))}]"
        if name not in extra:
            return f"a State whose extra has no {name!r}, which was {had}: begin with {{**state.extra, ...}}"
        new = extra[name]
        if new.shape != old.shape:
            return (
                f"a State whose extra has {name!r} of shape {list(new.shape)}, which was {had}: keep its shape, and "
                "let server.init make it so large as it will be"
            )
        if bool(torch.isnan(new).any()) and not bool(torch.isnan(old).any()):
            return f"a State whose extra has NaN in {name!r}, {had}: look for a division, a logarithm or a root"
    return None


def check_tensors(found: Any) -> str | None:
    """Returns what is wrong with tensors by name."""
    if not isinstance(found, dict):
        return f"{name_type(found)}: return a dict of tensors, {{}} if there are none"
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            return f"a dict with {name_type(value)} under {name!r}: give tensors by names"
    return None


def check_stats(found: Any) -> str | None:
    """Returns what is wrong with the statistics of a block of uploads."""
    if not isinstance(found, dict):
        return f"{name_type(found)}: return a dict of statistics of fedray.methods"
    for name, value in found.items():
        if not isinstance(value, STATS):
            known = ", ".join(kind.__name__ for kind in STATS)
            return f"{name_type(value)} under {name!r}: give statistics that add up in any order: {known}"
    return None


def check_tensor(found: Any, shape: tuple[int, ...]) -> str | None:
    """Returns what is wrong with a tensor of a known shape."""
    if not isinstance(found, Tensor):
        return f"{name_type(found)}: return a tensor, {list(shape)}"
    return None if tuple(found.shape) == shape else f"shape {list(found.shape)}: return {list(shape)}"


def check_counts(found: Any, jobs: int, what: str) -> str | None:
    """Returns what is wrong with a number of bytes or samples for each job.

    Example:
        >>> check_counts([3], 1, "bytes"), check_counts(np.array([3, -1]), 2, "bytes")
        ('a list: return an array of whole numbers, [1]', '-1 bytes: return 0 or more for each job')
    """
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "iu":
        kind = f"an array of {found.dtype}" if isinstance(found, np.ndarray) else name_type(found)
        return f"{kind}: return an array of whole numbers, [{jobs}]"
    if found.shape != (jobs,):
        return f"shape {list(found.shape)} for {jobs} jobs: return the {what} of each job, [{jobs}]"
    return f"{found.min()} {what}: return 0 or more for each job" if jobs and found.min() < 0 else None


def check_pair(found: Any, jobs: int, first: str, second: str) -> str | None:
    """Returns what is wrong with two numbers of each job: bytes up and down, or steps and samples."""
    if not isinstance(found, tuple) or len(found) != 2:
        return f"{name_type(found)}: return a pair, the {first} and the {second} of each job"
    return check_counts(found[0], jobs, first) or check_counts(found[1], jobs, second)


def check_reason(found: Any) -> str | None:
    """Returns what is wrong with the words that say why training is over."""
    fits = found is None or isinstance(found, str)
    return None if fits else f"{name_type(found)}: return words, or '' while training goes on"


def check_joined(found: Any, steps: Sequence[PartStep]) -> str | None:
    """Returns what is wrong with the models of the parts of a stack."""
    if not isinstance(found, list | tuple) or len(found) != len(steps):
        kind = f"{len(found)} tensors" if isinstance(found, list | tuple) else name_type(found)
        return f"{kind}: return a list of {len(steps)} tensors, the models of each part"
    wrong = (check_tensor(one, tuple(step.after.models.shape)) for one, step in zip(found, steps, strict=True))
    return next((f"models of a part that are {text}" for text in wrong if text is not None), None)


def check_compressed(found: Any, uploads: Uploads, own: tuple[str, ...]) -> str | None:
    """What is wrong with uploads after compression; `own` are the private vectors that it keeps at the clients."""
    if not isinstance(found, Compressed):
        return f"{name_type(found)}: return a Compressed(delta)"
    wrong = check_tensor(found.delta, tuple(uploads.delta.shape))
    if wrong is not None:
        return f"a delta of {wrong}" if isinstance(found.delta, Tensor) else f"a delta that is {wrong}"
    if not bool(torch.isfinite(found.delta).all()) and bool(torch.isfinite(uploads.delta).all()):
        return f"a delta that is {_name_wrong(found.delta)}: the uploads are finite"
    if not isinstance(found.own, Mapping):
        return f"{name_type(found.own)} as own: give a dict of vectors"
    if found.own.keys() != set(own):
        has, wanted = (", ".join(map(str, names)) or "nothing" for names in (found.own, own))
        return f"{has} as own, but Compress.own names {wanted}: give a vector of each job for each of its names"
    for name, value in found.own.items():
        wrong = check_tensor(value, tuple(uploads.delta.shape))
        if wrong is not None:
            return f"an own vector {name!r} of {wrong}" if isinstance(value, Tensor) else f"{name!r} in own as {wrong}"
        if not bool(torch.isfinite(value).all()) and bool(torch.isfinite(uploads.delta).all()):
            return f"an own vector {name!r} that is {_name_wrong(value)}: the uploads are finite"
    return None


def check_each(found: Any, each: int) -> str | None:
    """What is wrong with an answer where client i of `each` clients answers with model i; 0: nobody has a model."""
    if not each or not isinstance(found, Answer) or found.models == each:
        return None
    return f"an Answer of {found.models} models for {each} clients: leave one_model_per_client out, or give {each}"


def check_answer(found: Any, worlds: int, tiers: int, trained: State, *, own: bool) -> str | None:
    """Returns what is wrong with the models that answer for a trained state, in R worlds.

    Args:
        found: What the function has returned.
        worlds: R.
        tiers: T.
        trained: The state.
        own: Whether known clients have models or weights of their own, so that a tier's are not read.
    """
    if not isinstance(found, Answer):
        return f"{name_type(found)}: return an Answer(state, models)"
    number = found.models
    if not isinstance(number, int) or number < 1:
        return f"an Answer of models = {number!r}: give their number in a world"
    wrong = check_state(found.state, worlds * number, None)
    if wrong is not None:
        return f"an Answer with {wrong}"
    for name, tensor, width in (
        ("models", found.state.models, trained.models.shape[1]),
        ("counters", found.state.counters, trained.counters.shape[1]),
    ):
        if tuple(tensor.shape) != (worlds * number, width) and (width or name == "models"):
            wanted = [worlds * number, width]
            return f"an Answer with {name} of shape {list(tensor.shape)}: give {wanted}, a row for each that answers"
    if found.combine is not None:
        return _check_combine(found, own=own)
    wrong = _check_weights(found.weights, "weights", (worlds, number), "a world")
    if wrong is not None or found.tiers is None:
        return wrong
    if own:
        return "an Answer with tiers, but its known clients have models or weights of their own: leave tiers out"
    wrong = _check_weights(found.tiers, "tiers", (worlds, tiers, number), "a tier")
    if wrong is None and found.weights is not None and (found.tiers.sum(axis=1)[found.weights == 0] > 0).any():
        return "an Answer whose tiers weigh a model that has no weight: give it some in weights, which new clients read"
    return wrong


def _check_combine(found: Answer, *, own: bool) -> str | None:
    """Returns what is wrong with a rule that joins the models, beside what else an answer has."""
    if not callable(found.combine):
        return f"an Answer whose combine is {name_type(found.combine)}: give a function (world, members)"
    if found.weights is not None or found.tiers is not None:
        return "an Answer with combine and weights: leave weights and tiers out, and let combine weigh the members"
    if own:
        return "an Answer with combine, but its known clients have models or weights of their own: leave combine out"
    return None


def _check_weights(found: Any, name: str, shape: tuple[int, ...], where: str) -> str | None:
    """Returns what is wrong with weights of models, which stand on the last axis; None may take their place."""
    if found is None:
        return None
    if not isinstance(found, np.ndarray) or found.shape != shape:
        kind = f"shape {list(found.shape)}" if isinstance(found, np.ndarray) else name_type(found)
        return f"an Answer whose {name} are {kind}: give an array, {list(shape)}"
    if not np.isfinite(found).all():
        return f"an Answer whose {name} are NaN or infinite"
    if (found < 0).any() or not (found.sum(axis=-1) > 0).all():
        return f"an Answer whose {name} are negative, or all 0 in {where}: one model at least has to answer"
    return None


def _name_wrong(values: Tensor) -> str:
    """NaN, or infinite."""
    return "NaN" if bool(torch.isnan(values).any()) else "infinite"


# ---------------------------------------------------------------------------------------------------------------------
# The rule by which a user's own method joins what its models say, with a check of what it returns.


def guard_combine(answer: Callable[[State], Answer], where: str) -> Callable[[State], Answer]:
    """Wraps the rule of an `answer`, so that one line says that it raised, or returned what is no answer.

    Args:
        answer: Of the method; it is checked already.
        where: How messages call the method.
    """

    def call(*arguments: State) -> Answer:
        found = answer(*arguments)
        if found.combine is None:
            return found
        held = contract(f"{where}: combine", found.combine, check_joined_answer, again=True)
        return found._replace(combine=held)

    return call


def check_joined_answer(found: Any, _world: int, members: FloatArray) -> str | None:
    """Returns what is wrong with what a rule has made of the members' probabilities `[A, n, C]`; None: nothing.

    Example:
        >>> check_joined_answer(np.array([[0.5, 0.6]]), 0, np.zeros((3, 1, 2)))
        'probabilities that sum to 1.1 in a row: divide them by their sum over the classes'
    """
    if np.isnan(members).any():  # of a diverged model
        return None
    if not isinstance(found, np.ndarray) or found.shape != members.shape[1:]:
        kind = f"shape {list(found.shape)}" if isinstance(found, np.ndarray) else name_type(found)
        return f"{kind}: return an array of probabilities, {list(members.shape[1:])}"
    if not np.isfinite(found).all() or (found < 0).any():
        return "probabilities that are negative, NaN or infinite: look for a row that no model answers"
    total = found.sum(axis=1)
    if len(total) and np.abs(total - 1).max() > 1e-5:
        worst = total[np.abs(total - 1).argmax()]
        return f"probabilities that sum to {worst:.4g} in a row: divide them by their sum over the classes"
    return None


# ---------------------------------------------------------------------------------------------------------------------
# What the server's functions of a user's own method and the code of its clients both hold, and one of them changes.
#
# Clients train in other processes than the server steps, and a run may go on in a new one. There each has a copy of
# what lies in a closure, so that a change is not seen by the others: such a method would compute something else on
# Ray, and after a resumption, than in one process.


def watch_shared(phase: Phase, where: str) -> Phase:
    """Returns a phase that refuses changes of objects which its server and the code of the clients share.

    Tensors, arrays, tables and variables of closures count. A table to which something is added is not changed.

    Args:
        phase: Of the user's own method.
        where: How messages call the method.

    Raises:
        BadInput: Later, in a step of the server: names what was changed.
    """
    step, server = phase.server.step, phase.server
    clients = find_changeable([phase.local, phase.pieces, phase.compress.apply, server.reduce], Setting)
    held = find_changeable([step, phase.choose, phase.remember, phase.ask], Setting)
    both = [held[key] for key in held if key in clients]
    if not both:
        return phase
    marks = [mark(thing) for _, thing in both]

    def check() -> None:
        for (name, thing), before in zip(both, marks, strict=True):
            if is_changed(thing, before):
                raise BadInput(
                    f"{where}: {name!r} is changed in training, and both its server and its clients hold it: on Ray, "
                    "and after a resumption, each has a copy: keep it in state.extra, and send it in models or uploads"
                )

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            check()
            found = function(*arguments)
            check()
            return found

        return call

    named = {name: getattr(phase, name) for name in ("choose", "remember") if getattr(phase, name) is not None}
    watching: dict[str, Any] = {name: watched(function) for name, function in named.items()}
    return replace(phase, server=server._replace(step=watched(step)), **watching)
