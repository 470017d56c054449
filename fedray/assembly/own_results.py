"""Checks of the results of a user's own method: each check returns the error in words, or None."""

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
from fedray.own_code.read_values import find_changeable, is_changed, mark
from fedray.own_code.user_code import name_type

STATS = (ExactSum, Counts, Largest, Kept)


def _describe(value: Any) -> str:
    """Describes a value: its kind, and the shape of an array or a tensor."""
    if isinstance(value, np.ndarray | Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {list(value.shape)}"
    return name_type(value)


def _list_names(names: Any) -> str:
    return ", ".join(map(str, names)) or "nothing"


def check_plan(found: Any, ranges: Mapping[str, int]) -> str | None:
    """Returns the error in the jobs of a round; `ranges` has the number of clients, models and worlds."""
    if not isinstance(found, Plan):
        return f"{name_type(found)}: return a Plan of clients, models and worlds"
    for name, number in ranges.items():
        column = getattr(found, name)
        if not isinstance(column, np.ndarray) or column.dtype.kind not in "iu" or column.shape != (len(found.client),):
            return f"a Plan whose {name} is {_describe(column)}: give an array of whole numbers, [J]"
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
    """Returns the error in a state with this number of rows; the state must keep the tensors of the state `before`."""
    if not isinstance(found, State) or not isinstance(found.models, Tensor):
        return f"{name_type(found)}: return a State of models, counters and extra"
    wanted = (rows, *found.models.shape[1:2]) if before is None else tuple(before.models.shape)
    kind = found.models.dtype if before is None else before.models.dtype
    if tuple(found.models.shape) != wanted or len(wanted) != 2 or found.models.dtype != kind:
        return f"models that are {_describe(found.models)}: keep {kind}, {list(wanted)}".replace("torch.", "")
    if not bool(torch.isfinite(found.models).all()):
        return "models that are NaN or infinite: look for a division, a logarithm or a root"
    if (wrong := check_tensors(found.extra)) is not None:
        return f"a State whose extra is {wrong}"
    for name, old in ({} if before is None else {"counters": before.counters, **before.extra}).items():
        new = found.counters if name == "counters" else found.extra.get(name)
        if new is None or new.shape != old.shape:
            return (
                f"a State whose {name} is {_describe(new)}, and was {_describe(old)}: keep its shape, begin with "
                "{**state.extra, ...}, and let server.init make it so large as it will be"
            )
        if bool(torch.isnan(new).any()) and not bool(torch.isnan(old).any()):
            return f"a State with NaN in {name}: look for a division, a logarithm or a root"
    return None


def check_tensors(found: Any) -> str | None:
    """Returns the error in a mapping from names to tensors."""
    if not isinstance(found, dict) or not all(isinstance(one, Tensor) for one in found.values()):
        return f"{name_type(found)}: return a dict of tensors, {{}} if there are none"
    return None


def check_stats(found: Any) -> str | None:
    """Returns the error in the statistics of a block of uploads."""
    if not isinstance(found, dict) or not all(isinstance(value, STATS) for value in found.values()):
        known = ", ".join(kind.__name__ for kind in STATS)
        return f"{name_type(found)}: return a dict of statistics that add up in any order: {known}"
    return None


def check_tensor(found: Any, shape: tuple[int, ...]) -> str | None:
    """Returns the error in a tensor that must have the given shape."""
    fits = isinstance(found, Tensor) and tuple(found.shape) == shape
    return None if fits else f"{_describe(found)}: return a tensor, {list(shape)}"


def check_counts(found: Any, jobs: int, what: str) -> str | None:
    """Returns what is wrong with a number of bytes or samples for each job.

    Example:
        >>> check_counts([3], 1, "bytes"), check_counts(np.array([3, -1]), 2, "bytes")
        ('a list: return an array of whole numbers, [1]', '-1 bytes: return 0 or more for each job')
    """
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "iu" or found.shape != (jobs,):
        return f"{_describe(found)}: return an array of whole numbers, [{jobs}]"
    return f"{found.min()} {what}: return 0 or more for each job" if jobs and found.min() < 0 else None


def check_pair(found: Any, jobs: int, first: str, second: str) -> str | None:
    """Returns the error in two numbers per job: bytes up and down, or steps and samples."""
    if not isinstance(found, tuple) or len(found) != 2:
        return f"{name_type(found)}: return a pair, the {first} and the {second} of each job"
    return check_counts(found[0], jobs, first) or check_counts(found[1], jobs, second)


def check_joined(found: Any, steps: Sequence[PartStep]) -> str | None:
    """Returns the error in the models of the parts of a stack."""
    if not isinstance(found, list | tuple) or len(found) != len(steps):
        return f"{name_type(found)}: return a list of {len(steps)} tensors, the models of each part"
    wrong = (check_tensor(one, tuple(step.after.models.shape)) for one, step in zip(found, steps, strict=True))
    return next((f"models of a part that are {text}" for text in wrong if text is not None), None)


def check_compressed(found: Any, uploads: Uploads, own: tuple[str, ...]) -> str | None:
    """Returns the error in compressed uploads; `own` names the vectors that compression keeps at the clients."""
    if not isinstance(found, Compressed) or not isinstance(found.own, Mapping):
        return f"{name_type(found)}: return a Compressed(delta), its own a dict of vectors"
    if found.own.keys() != set(own):
        has, wanted = _list_names(found.own), _list_names(own)
        return f"{has} as own, but Compress.own names {wanted}: give a vector of each job for each of its names"
    for name, value in {"delta": found.delta, **found.own}.items():
        if (wrong := check_tensor(value, tuple(uploads.delta.shape))) is not None:
            return f"a vector {name} that is {wrong}"
        if not bool(torch.isfinite(value).all()) and bool(torch.isfinite(uploads.delta).all()):
            return f"a vector {name} that is NaN or infinite: the uploads are finite"
    return None


def check_answer(found: Any, worlds: int, tiers: int, trained: State, *, own: bool, each: int = 0) -> str | None:
    """Returns the error in the models that predict for a trained state, in R worlds.

    Args:
        found: The result of the function.
        worlds: Number of worlds, R.
        tiers: Number of tiers, T.
        trained: The trained state.
        own: Whether known clients have models or weights of their own; the weights of their tier are then not used.
        each: N if client i predicts with model i; 0: no client has a model.
    """
    if not isinstance(found, Answer) or not isinstance(found.models, int) or found.models < 1:
        return f"{name_type(found)}: return an Answer(state, models), models its number in a world"
    number = found.models
    if each and number != each:
        return f"an Answer of {number} models for {each} clients: leave one_model_per_client out, or give {each}"
    if (wrong := check_state(found.state, worlds * number, None)) is not None:
        return f"an Answer with {wrong}"
    for name, tensor, width in (
        ("models", found.state.models, trained.models.shape[1]),
        ("counters", found.state.counters, trained.counters.shape[1]),
    ):
        if tuple(tensor.shape) != (worlds * number, width) and (width or name == "models"):
            wanted = [worlds * number, width]
            return f"an Answer with {name} of shape {list(tensor.shape)}: give {wanted}, a row for each that answers"
    if own and (found.tiers is not None or found.combine is not None):
        return "an Answer with tiers or combine, but its known clients have models or weights of their own"
    if found.combine is not None:
        wrong = "an Answer with combine and weights: leave weights and tiers out, and let combine weigh the members"
        return None if found.weights is None and found.tiers is None else wrong
    wrong = _check_weights(found.weights, "weights", (worlds, number), "a world")
    wrong = wrong or _check_weights(found.tiers, "tiers", (worlds, tiers, number), "a tier")
    both = found.weights is not None and found.tiers is not None
    if wrong is None and both and (found.tiers.sum(axis=1)[found.weights == 0] > 0).any():  # type: ignore[union-attr]
        return "an Answer whose tiers weigh a model that has no weight: give it some in weights, which new clients read"
    return wrong


def _check_weights(found: Any, name: str, shape: tuple[int, ...], where: str) -> str | None:
    """Returns the error in weights of models (last axis); None is allowed in place of weights."""
    if found is None:
        return None
    if not isinstance(found, np.ndarray) or found.shape != shape:
        return f"an Answer whose {name} are {_describe(found)}: give an array, {list(shape)}"
    if not np.isfinite(found).all() or (found < 0).any() or not (found.sum(axis=-1) > 0).all():
        return f"an Answer whose {name} are negative, NaN or infinite, or all 0 in {where}: one model at least answers"
    return None


def check_joined_answer(found: Any, _world: int, members: FloatArray) -> str | None:
    """Returns what is wrong with what a rule has made of the members' probabilities `[A, n, C]`; None: nothing.

    Example:
        >>> check_joined_answer(np.array([[0.5, 0.6]]), 0, np.zeros((3, 1, 2)))
        'probabilities that sum to 1.1 in a row: divide them by their sum over the classes'
    """
    if np.isnan(members).any():  # of a diverged model
        return None
    if not isinstance(found, np.ndarray) or found.shape != members.shape[1:]:
        return f"{_describe(found)}: return an array of probabilities, {list(members.shape[1:])}"
    if not np.isfinite(found).all() or (found < 0).any():
        return "probabilities that are negative, NaN or infinite: look for a row that no model answers"
    total = found.sum(axis=1)
    if len(total) and np.abs(total - 1).max() > 1e-5:
        worst = total[np.abs(total - 1).argmax()]
        return f"probabilities that sum to {worst:.4g} in a row: divide them by their sum over the classes"
    return None


# ---------------------------------------------------------------------------------------------------------------------
# Objects that the server's functions and the clients' code of a user's own method both hold, and one of them changes.
#
# Clients train in other processes than the server steps, and a run may go on in a new one. There each has a copy of
# what lies in a closure, so that a change is not seen by the others: such a method would compute something else on
# Ray, and after a resumption, than in one process.


def watch_shared(phase: Phase, where: str) -> Phase:
    """Returns a phase that refuses changes to objects shared by its server and the code of its clients.

    Tensors, arrays, tables and variables of closures count. Adding an entry to a table is no change.

    Args:
        phase: A phase of the user's own method.
        where: Name of the method in messages.

    Raises:
        BadInput: An object was changed. The error is raised later, in a step of the server, and names the object.
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
