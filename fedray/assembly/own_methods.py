"""Checks the functions of a user's method and their results. An error is one line that names the function."""

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from fedray.assembly.registry import check_code
from fedray.core.errors import BadInput, warn_user
from fedray.core.method import Answer, Compressed, Local, Method, Phase, Piece
from fedray.core.sums import Counts, ExactSum, Kept, Largest, add_stats
from fedray.core.types import Clients, FloatArray, Plan, State, Stats, Uploads
from fedray.features.correction import Correction
from fedray.features.measure import Measure
from fedray.features.stacking import Stack
from fedray.methods.setting import Setting
from fedray.own_code.contract import Returns, check_fields, contract, find_changeable, is_alike, is_changed, mark, uses
from fedray.own_code.user_code import name_type

# ---------------------------------------------------------------------------------------------------------------------
# Checks of the results of a user's method. Each check returns words that describe a mistake, or None if there is none.

STATS = (ExactSum, Counts, Largest, Kept)


def _describe(value: Any) -> str:
    """Describes a value for messages: an array or tensor by dtype and shape, another value by its type."""
    if isinstance(value, np.ndarray | torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {list(value.shape)}"
    return name_type(value)


def check_plan(found: Any, ranges: Mapping[str, int]) -> str | None:
    """Returns what is wrong with a user's plan of the jobs of a round, or None if the plan is right.

    Args:
        found: The result of the user's function.
        ranges: How many clients, models and worlds there are, under the names `client`, `model` and `world`.
    """
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
    """Returns what is wrong with a plan after its participants have chosen their models.

    Returns None if nothing is wrong.

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
    """Returns what is wrong with a server's state, or None if the state is right.

    Args:
        found: The result of the user's function.
        rows: The required number of models.
        before: The previous state, whose tensors must keep their names and shapes. None means the first state.
    """
    if not isinstance(found, State) or not isinstance(found.models, torch.Tensor):
        return f"{name_type(found)}: return a State of models, counters and extra"
    wanted = (rows, *found.models.shape[1:2]) if before is None else tuple(before.models.shape)
    kind = found.models.dtype if before is None else before.models.dtype
    if tuple(found.models.shape) != wanted or len(wanted) != 2 or found.models.dtype != kind:
        return f"models that are {_describe(found.models)}: keep {kind}, {list(wanted)}".replace("torch.", "")
    if not bool(torch.isfinite(found.models).all()):
        return "models that are NaN or infinite: look for a division, a logarithm or a root"
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


def check_stats(found: Any) -> str | None:
    """Returns what is wrong with the statistics that a server computes from uploads, or None if nothing is wrong."""
    if not isinstance(found, dict) or not all(isinstance(value, STATS) for value in found.values()):
        known = ", ".join(kind.__name__ for kind in STATS)
        return f"{name_type(found)}: return a dict of statistics that add up in any order: {known}"
    return None


def check_tensor(found: Any, shape: tuple[int, ...]) -> str | None:
    """Returns what is wrong with a tensor that must have a given shape, or None if nothing is wrong."""
    fits = isinstance(found, torch.Tensor) and tuple(found.shape) == shape
    return None if fits else f"{_describe(found)}: return a tensor, {list(shape)}"


def check_counts(found: Any, jobs: int, what: str) -> str | None:
    """Returns what is wrong with an array of each job's bytes or samples, or None if nothing is wrong.

    Example:
        >>> check_counts([3], 1, "bytes"), check_counts(np.array([3, -1]), 2, "bytes")
        ('a list: return an array of whole numbers, [1]', '-1 bytes: return 0 or more for each job')
    """
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "iu" or found.shape != (jobs,):
        return f"{_describe(found)}: return an array of whole numbers, [{jobs}]"
    return f"{found.min()} {what}: return 0 or more for each job" if jobs and found.min() < 0 else None


def check_pair(found: Any, jobs: int, first: str, second: str) -> str | None:
    """Returns what is wrong with a pair of arrays (such as steps and samples of jobs), or None if nothing is wrong."""
    if len(found) != 2:
        return f"{len(found)} values: return a pair, the {first} and the {second} of each job"
    return check_counts(found[0], jobs, first) or check_counts(found[1], jobs, second)


def check_compressed(found: Compressed, uploads: Uploads, own: tuple[str, ...]) -> str | None:
    """Returns what is wrong with compressed uploads, or None if nothing is wrong."""
    if found.own.keys() != set(own):
        return f"own vectors {list(found.own)}, but Compress.own names {list(own)}: give a vector of each job for each"
    for name, value in {"delta": found.delta, **found.own}.items():
        if (wrong := check_tensor(value, tuple(uploads.delta.shape))) is not None:
            return f"a vector {name} that is {wrong}"
        if not bool(torch.isfinite(value).all()) and bool(torch.isfinite(uploads.delta).all()):
            return f"a vector {name} that is NaN or infinite: the uploads are finite"
    return None


def check_answer(found: Any, worlds: int, tiers: int, trained: State, *, own: bool, each: int = 0) -> str | None:
    """Returns what is wrong with an `Answer` (the models that predict, and their weights), or None if nothing is wrong.

    Args:
        found: The result of the function.
        worlds: Number of worlds, R.
        tiers: Number of tiers, T.
        trained: The trained state.
        own: Whether clients of the run have their own models or weights. If True, weights of tiers are not allowed.
        each: The number of clients, N, if client i predicts with model i. Otherwise 0.
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
    """Returns what is wrong with weights of models `[..., models]`, or None if nothing is wrong.

    If `found` is None, there are no weights, and nothing is wrong.
    """
    if found is None:
        return None
    if not isinstance(found, np.ndarray) or found.shape != shape:
        return f"an Answer whose {name} are {_describe(found)}: give an array, {list(shape)}"
    if not np.isfinite(found).all() or (found < 0).any() or not (found.sum(axis=-1) > 0).all():
        return f"an Answer whose {name} are negative, NaN or infinite, or all 0 in {where}: one model at least answers"
    return None


def check_joined_answer(found: Any, _world: int, members: FloatArray) -> str | None:
    """Returns what is wrong with the probabilities that `Answer.combine` computed, or None if nothing is wrong.

    Example:
        >>> check_joined_answer(np.array([[0.5, 0.6], [0.3, 0.2]]), 0, np.zeros((3, 2, 2)))  # the worst row
        'probabilities that sum to 0.5 in a row: divide them by their sum over the classes'
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
# Detects objects that a user's method changes, and that both its server and its clients use. On Ray, server and clients
# are different processes, and a resumed run is a new process. Each process has a copy of the objects in a closure, so
# it misses changes of an object in other processes. Results on Ray, or after a resumption, would then differ from
# results in a single process.


def watch_shared(phase: Phase, where: str) -> Phase:
    """Makes training raise an error if the user's code changes an object that server and clients share.

    Such objects are tensors, arrays, dicts, lists and variables of closures. Adding entries to a dict or list is
    allowed.

    Raises:
        BadInput: An object was changed. Only the functions of the returned phase raise this error.
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


# ---------------------------------------------------------------------------------------------------------------------
# Checks before training that the method fits the scenario.


def confirm_code_is_read(given: Local, method: Method) -> None:
    """Raises an error if a user's method does not use the loss, optimizer or augmentations of the scenario.

    Warns if the method has its own object instead, which does not call the scenario's, or its own `local.pull`.

    Raises:
        BadInput: The method does not use one of these objects. The message names the key of this object.

    Example:
        >>> from types import SimpleNamespace
        >>> from fedray.core.method import LocalLoss
        >>> local = Local(loss=LocalLoss(len, name="mine"))
        >>> method = SimpleNamespace(name="own", parts=(), phase=SimpleNamespace(local=Local()))
        >>> confirm_code_is_read(local, method)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedray.core.errors.BadInput: local.loss is given, but own does not read it: make its local with replace(...
    """
    if method.parts:
        return
    local = method.phase.local
    replaced = ["pull"] if given.pull and local.pull != given.pull else []
    for key, field in (("loss", "loss"), ("optimizer", "step"), ("augment", "augment")):
        code, its = getattr(given, field), getattr(local, field)
        if code and not its:
            raise BadInput(
                f"local.{key} is given, but {method.name} does not read it: make its local with "
                "replace(setting.local, ...), or leave it out"
            )
        replaced += [key] if code and not uses(its, code) else []
    if replaced:
        keys = " and ".join(f"local.{key}" for key in replaced)
        warn_user(f"{keys}: {method.name} has its own, which takes the place of what is given")


NOT_OF_PARTS = (  # fields of a phase that have no effect if the method has parts
    "walk", "sizes", "steps", "remember", "choose", "work", "ask",
)  # fmt: skip
NOT_BESIDE_PARTS = ("answer", "prepare", "one_model_per_client", "explain_end")  # fields of a method


def fit_parts(method: Method, stack: Stack | None, where: str) -> Method:
    """Checks that a method has one part for each network, and returns the method with the first part as its phase.

    Args:
        method: The user's method.
        stack: The networks. None means that there is one network, and that the method must have no parts.
        where: Name of the method in messages.

    Raises:
        BadInput: The parts do not fit the networks, or a part has a field that would have no effect.

    Example:
        >>> from types import SimpleNamespace
        >>> fit_parts(SimpleNamespace(parts=(1, 2)), None, "method mine")
        Traceback (most recent call last):
        fedray.core.errors.BadInput: method mine: it has 2 parts for 0 networks of method.networks: return \
parts=federated_each(setting), a phase of each
    """
    if stack is not None and (stack.meta is not None or stack.combine is not None):  # the specification has `parts`
        return method
    bases = () if stack is None else stack.bases
    if len(method.parts) != len(bases):
        raise BadInput(
            f"{where}: it has {len(method.parts)} parts for {len(bases)} networks of method.networks: return "
            "parts=federated_each(setting), a phase of each"
        )
    for i, (part, base) in enumerate(zip(method.parts, bases, strict=True)):
        unread = [name for name in NOT_BESIDE_PARTS if getattr(method, name)]
        unread += [f"parts[{i}].{name}" for name in NOT_OF_PARTS if getattr(part, name)]
        unread += [f"parts[{i}].local has code, which" for _ in [0] if part.local.has_code]
        unread += [f"parts[{i}].pieces: {type(one).__name__}" for one in part.pieces if one.keeps or one.nets]
        if unread:
            raise BadInput(f"{where}: {unread[0]} is not read where a method has parts: leave it out")
        if part.models != base.models or part.compress.own != method.parts[0].compress.own:
            raise BadInput(
                f"{where}: parts[{i}]: keep setting.models, {base.models}, and compress all parts alike (compress.own)"
            )
    return replace(method, phase=method.parts[0]) if method.parts else method


# ---------------------------------------------------------------------------------------------------------------------
# Checks around each function of a user's method. The error for a wrong result names the function in one line.

_OF_NONE = {"schedule": ": its state is None where a run is planned and not begun: return the jobs of round 0 there"}


def guard_method(
    method: Any, where: str, *, worlds: int, clients: Clients, layers: tuple[str, ...], stack: Stack | None = None
) -> Method:
    """Adds checks to the functions of a method.

    An exception or a wrong result becomes an error of one line that names the function.

    Args:
        method: The result of the user's function.
        where: Name of the method in messages.
        worlds: Number of worlds, R.
        clients: All clients, with their tiers.
        layers: Names of the network's layers.
        stack: The networks. None means that there is one network.

    Raises:
        BadInput: `method` is no method, or one of its fields cannot be used.

    Example:
        >>> guard_method(None, "method mine", worlds=1, clients=Clients(()), layers=())
        Traceback (most recent call last):
        fedray.core.errors.BadInput: method mine returned None: return a fedray.methods.Method
    """
    if not isinstance(method, Method) or not all(isinstance(one, Phase) for one in method.parts):
        raise BadInput(f"{where} returned {name_type(method)}: return a fedray.methods.Method")
    check_fields(where, method)
    guard = partial(_guard_phase, where=where, worlds=worlds, clients=clients.number, layers=layers)
    fitted: Method = fit_parts(method, stack, where)
    if method.one_model_per_client and method.phase.models != clients.number:
        raise BadInput(
            f"{where}: one_model_per_client, but it trains {method.phase.models} models for {clients.number} "
            f"clients: set method.models = {clients.number}"
        )
    phase, parts = guard(fitted.phase), tuple(guard(part) for part in fitted.parts)
    own = phase.is_personal or phase.weighs or fitted.one_model_per_client
    each = clients.number if fitted.one_model_per_client else 0
    checks = method_checks(worlds, phase.models, len(clients.tiers), own=own, each=each)
    fields = _add_checks(fitted, where, checks)
    if asked := fields.get("answer"):

        def answer(*arguments: State) -> Answer:
            found: Answer = asked(*arguments)
            if found.combine is None:
                return found
            combine = contract(f"{where}: combine", found.combine, check_joined_answer, again=True)
            return found._replace(combine=combine)

        fields["answer"] = answer
    return replace(fitted, phase=phase, parts=parts, **fields)


def method_checks(worlds: int, models: int, tiers: int = 1, *, own: bool = False, each: int = 0) -> dict[str, Returns]:
    """Returns a check for each function of a method.

    A check takes the result of the function, followed by the function's arguments. It returns what is wrong with the
    result, or None if nothing is wrong.

    Args:
        worlds: Number of worlds, R.
        models: Number of models, K.
        tiers: Number of tiers, T.
        own: Whether clients of the run predict with their own models or weights.
        each: The number of clients, N, if client i predicts with model i. Otherwise 0.
    """
    return {
        "answer": lambda found, state: check_answer(found, worlds, tiers, state, own=own, each=each),
        "prepare": lambda found, *_: check_state(found, worlds * models, None),
        "join": lambda *_: None,
        "explain_end": lambda *_: None,
    }


def phase_checks(worlds: int, clients: int, models: int) -> dict[str, Returns]:
    """Returns a check for each function of a phase of training, in the form of `method_checks`."""
    ranges = {"client": clients, "model": models, "world": worlds}
    return {
        "schedule": lambda found, *_: check_plan(found, ranges),
        "choose": lambda found, plan, *_: check_choice(found, plan, ranges),
        "sizes": lambda found, plan: check_counts(found, len(plan.client), "samples"),
        "steps": lambda found, plan, *_: check_pair(found, len(plan.client), "steps", "samples"),
        "traffic": lambda found, _t, plan: check_pair(found, len(plan.client), "bytes up", "bytes down"),
        "remember": lambda found, _t, state, *_: check_state(found, len(state.models), state),
        "ask": lambda found, state, *_: (
            None if found is None else check_state(found, len(state.models), state._replace(extra={}))
        ),
        "server_work": lambda found, _t: None if min(found) >= 0 else f"{found}: return numbers of at least 0",
    }


def _add_checks(thing: Any, where: str, checks: Mapping[str, Returns], path: str = "") -> dict[str, Any]:
    """Adds checks to the functions among an object's fields. Returns the checked functions by field name.

    Args:
        thing: A method, a phase, or a component of a phase.
        where: Name of the method in messages.
        checks: The check of each function's result, by the name of the function, as in `method_checks`.
        path: The path of the object inside the method, such as `server.`, with a dot at the end.
    """
    found: dict[str, Any] = {}
    for name, returns in checks.items():
        if (function := getattr(thing, name)) is not None:
            remedy = _OF_NONE.get(name, "")
            found[name] = contract(f"{where}: {path}{name}", function, returns, again=True, remedy=remedy)
    return found


def _guard_phase(phase: Phase, where: str, worlds: int, clients: int, layers: tuple[str, ...]) -> Phase:
    """Adds a check to each function of a phase, of its server, of its compression and of its pieces."""
    server, compress = phase.server, phase.compress
    check_fields(where, phase)
    _check_local(where, phase.local)
    serves: dict[str, Returns] = {
        "init": lambda *_: None,
        "reduce": lambda found, *_: check_stats(found),
        "step": lambda found, state, *_: check_state(found, len(state.models), state),
    }
    sends: dict[str, Returns] = {
        "bytes": lambda found, client, *_: check_counts(found, len(client), "bytes"),
        "apply": lambda found, uploads: check_compressed(found, uploads, compress.own),
    }
    check_fields(where, server, "server.")
    check_fields(where, compress, "compress.")
    served = _add_checks(server, where, serves, "server.")
    served["reduce"] = check_additive(where, served["reduce"])
    held: dict[str, Any] = {
        **_add_checks(phase, where, phase_checks(worlds, clients, phase.models)),
        "pieces": tuple(_guard_piece(piece, phase, where, layers) for piece in phase.pieces),
        # a user's own function expects tensors in main memory
        "server": server._replace(**served, on_device=False),
        "compress": compress._replace(**_add_checks(compress, where, sends, "compress."), on_device=False),
    }
    return watch_shared(replace(phase, **held), where)


def check_additive(where: str, reduce: Callable[[Uploads], Stats]) -> Callable[[Uploads], Stats]:
    """Returns `Server.reduce` with a check that its statistics add up. `where` is the name of the method in messages.

    The uploads of a round come in blocks, whose statistics are added. So in the first call with several uploads, the
    statistics of the first half and of the second half must add up to the statistics of all uploads.
    """
    tried: list[bool] = []

    def call(uploads: Uploads) -> Stats:
        jobs = np.arange(len(uploads.client))
        halves = [] if tried or len(jobs) < 2 else [uploads.take(half) for half in np.array_split(jobs, 2)]
        found, total = reduce(uploads), Stats()
        if not halves:
            return found
        for half in halves:
            add_stats(total, reduce(half))
        if not is_alike(found, total):
            raise BadInput(
                f"{where}: server.reduce of some uploads is not the sum of its results for their two halves, but the "
                "uploads of a round come in blocks: add up in reduce, and divide in server.step"
            )
        tried.append(True)
        return found

    return call


def _guard_piece(piece: Piece, phase: Phase, where: str, layers: tuple[str, ...]) -> Piece:
    """Checks the fields of a piece (work that is added to training), and adds checks to its functions."""
    kind = type(piece).__name__
    if is_dataclass(piece):
        check_fields(where, piece, f"{kind}.")
    for local in piece.locals:
        _check_local(where, local)
        if (local.loss, local.gradient, local.step) != (phase.local.loss, phase.local.gradient, phase.local.step):
            raise BadInput(f"{where}: {kind} has a loss or transformations that local has not: give both the same")
    if unknown := [layer for layer in piece.stays if layer not in layers]:
        known = ", ".join(layers)
        raise BadInput(
            f"{where}: {kind} has the layer {unknown[0]!r}, which the network lacks: choose among its layers, {known}"
        )
    if isinstance(piece, Measure) and (phase.walk is not None or phase.nets or phase.find(Correction) is not None):
        raise BadInput(f"{where}: {kind} goes with no walk, no slices and no Correction: leave it out")
    held = {
        name: contract(
            f"{where}: {kind}.{name}",
            getattr(piece, name),
            lambda found, first, *_: check_tensor(found, tuple(first.shape)),
            again=True,
        )
        for name in piece.takes
    }
    return replace(piece, **held) if held else piece  # type: ignore[type-var]


def _check_local(where: str, local: Local) -> None:
    """Raises `BadInput` if no engine can do the local training that `local` describes."""
    check_fields(where, local, "local.")
    if (local.epochs is None) == (local.steps is None):
        both = f"local.epochs = {local.epochs} and local.steps = {local.steps}"
        raise BadInput(f"{where}: {both}: give one of them, and None for the other")
    if local.schedule is not None:
        check_fields(where, local.schedule, "local.schedule.")
    for kind, field in (("loss", "loss"), ("optimizer", "gradient"), ("optimizer", "step")):
        if (code := getattr(local, field)) is not None:
            check_code(kind, f"{where}: local.{field}", code)
    for rule in local.augment:
        check_fields(where, rule, "local.augment.")
