"""A user's own method with a check around each of its functions: a wrong result is one line that names the function.

Example:
    >>> import warnings
    >>> from fedray.assembly.study import build_study
    >>> from fedray.assembly.registry import UserObjects
    >>> from fedray.methods import federated
    >>> from fedray.scenario.loader import read_scenario
    >>> keys = {"data": {"limit": 90}, "clients": 3, "server": {"robust": "median"}}
    >>> def own(setting):  # its server is that of a scenario without the key
    ...     phase = federated(setting)
    ...     return Method("own", replace(phase, server=federated(replace(setting, robust=Robust())).server))
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     _ = build_study(read_scenario(keys), UserObjects(method=own))
    >>> print(str(caught[0].message)[:77])
    server.robust = median cannot act, because own has a server without it: leave
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass, replace
from types import FunctionType
from typing import Any, NamedTuple

from fedray.assembly import own_results as results
from fedray.assembly.own_results import guard_combine, watch_shared
from fedray.assembly.pieces import check_augmentations
from fedray.assembly.registry import check_code, functions_of
from fedray.components.schedule import invite_all
from fedray.core.errors import BadInput, FedrayError, warn_user
from fedray.core.method import Local, Method, Phase
from fedray.core.piece import Piece
from fedray.core.text import quote_value
from fedray.core.types import Clients, State
from fedray.features.correction import Correction
from fedray.features.measure import ClientSums, Measure
from fedray.features.private import PrivateLayers
from fedray.methods.setting import Optimizer, Robust, Setting
from fedray.models.stacking import Stack
from fedray.own_code.contract import Returns, check_fields, contract
from fedray.own_code.read_values import reach
from fedray.own_code.source_code import read_closure
from fedray.own_code.user_code import name_type
from fedray.scenario.methods import method_spec_of
from fedray.scenario.schema import MethodKeys, Scenario
from fedray.scenario.training import ServerKeys

# ---------------------------------------------------------------------------------------------------------------------
# Parts of a scenario that a user's own method does not read: an object is refused, a key is named in a warning.

_KEYS = (  # of the section `local`, which are fields of `Local` too
    "optimizer",
    "lr",
    "lr_decay",
    "lr_decay_every",
    "momentum",
    "weight_decay",
    "batch_size",
    "epochs",
    "steps",
    "pull",
    "schedule",
)
_REMEDY = "make its local with replace(setting.local, ...), or leave it out"


def refuse_unread_code(given: Local, method: Method) -> None:
    """Refuses a loss, an optimizer or augmentations, of the scenario's or passed, that a method does not train with.

    Where a method has others, which do not hold the one that was given, a warning says so.

    Args:
        given: how the scenario says that clients train.
        method: the user's own.

    Raises:
        BadInput: names what is not read.

    Example:
        >>> from types import SimpleNamespace
        >>> from fedray.core.local import LocalLoss
        >>> local = Local(loss=LocalLoss(len, name="mine"))
        >>> method = SimpleNamespace(name="own", parts=(), phase=SimpleNamespace(local=Local()))
        >>> refuse_unread_code(local, method)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedray.core.errors.BadInput: local.loss = mine, but own does not read it: make its local with replace(setting...
    """
    if method.parts:
        return
    local = method.phase.local
    held = {id(thing) for one in local.augment for thing in (one.function, *_list_closure(one.function))}
    if unread := ", ".join(one.name for one in given.augment if not {id(one), id(one.function)} & held):
        if not local.augment:
            raise BadInput(f"local.augment = {unread}, but {method.name} does not read it: {_REMEDY}")
        warn_user(f"local.augment = {unread}, but {method.name} augments with others: {_REMEDY}")
    named = {"loss": given.loss and given.loss.name, "optimizer": given.step and given.optimizer_name}
    for key, wanted, has in (("loss", given.loss, local.loss), ("optimizer", given.step, local.step)):
        if wanted is None or has is wanted:
            continue
        if has is None:
            raise BadInput(f"local.{key} = {named[key]}, but {method.name} does not read it: {_REMEDY}")
        if not _list_parts(wanted) & _list_held(has):
            warn_user(f"local.{key} = {named[key]}, but {method.name} trains with one of its own: {_REMEDY}")


def _list_parts(thing: object) -> set[int]:
    """Returns the identities of a loss or an optimizer and of its functions."""
    return {id(thing), *map(id, functions_of(thing))}


def _list_held(thing: object) -> set[int]:
    """Returns the identities of its functions, and of what their closures hold."""
    functions = functions_of(thing)
    return {*map(id, functions), *(id(one) for function in functions for one in _list_closure(function))}


def _list_closure(function: object) -> list[object]:
    """Returns what the closure of a function holds."""
    return list(read_closure(function).values()) if isinstance(function, FunctionType) else []


def warn_of_unread_keys(
    scenario: Scenario, pieces: Setting, usual: Local, method: Method, compose: Callable[[Setting], Method]
) -> None:
    """Says which keys of `local` a method replaces by values of its own.

    A method may compute with a key (half of the learning rate). So it is composed once more without the keys, and those
    that make no difference are named.

    Args:
        scenario: has the keys.
        pieces: of the method.
        usual: how clients train where no key says anything.
        method: the user's own.
        compose: makes it from other pieces.
    """
    given, local = pieces.local, method.phase.local
    asked = [
        key
        for key in _KEYS
        if getattr(given, key) not in (getattr(usual, key), getattr(local, key))
        and not (key == "epochs" and given.epochs is None)
        and not (key == "lr" and scenario.local.lr_grid)
    ]
    if method.parts or method.phase.work is not None or not asked:
        return
    plain = replace(given, **{key: getattr(usual, key) for key in _KEYS})
    try:
        other = compose(replace(pieces, local=plain))
    except FedrayError:  # it needs them
        return
    idle = [key for key in asked if _fields(method, key) == _fields(other, key)]
    if idle:
        named = ", ".join(f"local.{key} = {quote_value(getattr(scenario.local, key))}" for key in idle)
        warn_user(
            f"{named} does not change how clients train with {method.name}, which has values of its own: {_REMEDY}"
        )


def _fields(method: Method, key: str) -> list[object]:
    """Returns a field of every local training of a method."""
    return [getattr(local, key) for local in method.phase.locals]


def warn_of_idle_keys(
    scenario: Scenario, pieces: Setting, method: Method, compose: Callable[[Setting], Method]
) -> None:
    """Says which keys beside `local` a method answers, or counts bytes, without.

    Args:
        scenario: has the keys.
        pieces: of the method.
        method: the user's own.
        compose: makes it from other pieces.
    """
    asked, trained = scenario.method.models, method.phase.models
    if asked not in (trained, _usual_models(scenario)):
        warn_user(
            f"method.models = {asked} cannot act, because {method.name} trains {trained} models: leave it out, or let "
            "the method read setting.models"
        )
    if method.one_model_per_client and math.isfinite(scenario.predict.gamma):
        warn_user(
            f"predict.gamma = {scenario.predict.gamma:g} cannot act, because a known client of {method.name} answers "
            "with a model of its own: leave it out"
        )
    if pieces.compress is not None and any(phase.traffic is not None for phase in method.parts or (method.phase,)):
        try:
            idle = _count_first_round(method) == _count_first_round(compose(replace(pieces, compress=None)))
        except FedrayError:  # it needs the key, or a state
            return
        if idle:
            warn_user(
                f"compress.kind = {scenario.compress.kind} changes the uploads of {method.name}, but not the bytes "
                "that its traffic counts: leave it out, or let traffic count them (phase.compress.bytes)"
            )


def _count_first_round(method: Method) -> list[list[int]]:
    """Returns the bytes up of each job of the first round, as the `traffic` of each phase counts them."""
    phases = method.parts or (method.phase,)
    return [one.traffic(0, one.schedule(0, None))[0].tolist() for one in phases if one.traffic is not None]


def _usual_models(scenario: Scenario) -> int:
    """K where a scenario does not say it: what the method was registered with, or that of any other."""
    registered: Mapping[str, int] = method_spec_of(scenario.method.name).defaults.get("method", {})
    return registered.get("models", MethodKeys().models)


# ---------------------------------------------------------------------------------------------------------------------
# Checks of a user's own method that trains several architectures, before anything trains.

NOT_OF_PARTS = (  # fields of a phase that nothing calls where it is one of several
    "walk", "sizes", "steps", "remember", "choose", "work", "ask",
)  # fmt: skip
NOT_BESIDE_PARTS = ("answer", "prepare", "one_model_per_client", "explain_end")  # of a method


def fit_parts(method: Method, stack: Stack | None, where: str) -> Method:
    """A method whose parts are the trainings of a scenario's networks, one of each; its phase is then the first part.

    Args:
        method: The user's own.
        stack: The networks; None: there is one, which is no part.
        where: How messages call the method.

    Raises:
        BadInput: The parts do not fit the networks, or have what parts cannot have.

    Example:
        >>> from types import SimpleNamespace
        >>> fit_parts(SimpleNamespace(parts=(1, 2)), None, "method mine")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedray.core.errors.BadInput: method mine: it has 2 parts, but setting.stack is None: return parts only where ...
    """
    if stack is None:
        if method.parts:
            raise BadInput(
                f"{where}: it has {len(method.parts)} parts, but setting.stack is None: return parts only where "
                "method.networks names networks"
            )
        return method
    if (
        stack.meta is not None or stack.combine is not None
    ):  # a stack, whose spec has `parts`, and not one of each network
        return method
    if len(method.parts) != len(stack.bases):
        raise BadInput(
            f"{where}: it has {len(method.parts)} parts, but method.networks has {len(stack.bases)} networks: return "
            "parts=federated_each(setting), a phase of each"
        )
    for name in NOT_BESIDE_PARTS:
        if getattr(method, name):
            raise BadInput(f"{where}: {name} is not called beside parts, the mean of which answers: leave it out")
    for i, part in enumerate(method.parts):
        _check_part(part, f"{where}: parts[{i}]", stack.bases[i].models)
        if part.compress.own != method.parts[0].compress.own:
            raise BadInput(f"{where}: parts[{i}]: compress.own is not that of parts[0]: compress all parts alike")
    return replace(method, phase=method.parts[0])


def _check_part(part: Phase, where: str, models: int) -> None:
    """Refuses a phase that cannot be a part."""
    if part.models != models:
        raise BadInput(f"{where}: models = {part.models}: keep setting.models, {models}")
    for name in NOT_OF_PARTS:
        if getattr(part, name):
            raise BadInput(f"{where}: {name} is not read in a part: leave it out")
    if part.local.has_code:
        raise BadInput(f"{where}: local has a loss or a transformation, which parts cannot have: leave it out")
    for piece in part.pieces:
        if piece.keeps or piece.nets:
            raise BadInput(f"{where}: pieces has a {type(piece).__name__}, which parts cannot have: leave it out")


# ---------------------------------------------------------------------------------------------------------------------
# Checks of the pieces of a user's own method, before anything trains.

RETIRED = {  # what phases and local trainings had before there were pieces: the piece that does it now
    "private": "PrivateLayers", "memory": "PrivateLayers", "personal": "PersonalPasses", "mixture": "Mixture",
    "measure": "ClientSums or Curvature", "slices": "federated_slices", "up_vectors": "Vectors",
    "down_vectors": "Vectors", "correction": "Correction", "windows": "Windows", "particles": "Particles",
    "finish": "Finish",
}  # fmt: skip


@contextmanager
def explain_retired(where: str) -> Iterator[None]:
    """Names the piece where a user's method sets a field that phases and local trainings no longer have.

    Args:
        where: How messages call the method.

    Raises:
        BadInput: The block has set one; other errors pass.

    Example:
        >>> with explain_retired("method mine"):
        ...     Phase(1, None, None, None, None, mixture=True)
        Traceback (most recent call last):
        fedray.core.errors.BadInput: method mine: mixture is a piece now: call phase.add(Mixture(...))
    """
    try:
        yield
    except (FedrayError, TypeError) as error:
        said = str(error.__cause__ or error)
        set_one = re.match(r"(Phase|Local)\.__init__\(\) got an unexpected keyword argument '(\w+)'", said)
        if set_one is None or set_one[2] not in RETIRED:
            raise
        raise BadInput(f"{where}: {set_one[2]} is a piece now: call phase.add({RETIRED[set_one[2]]}(...))") from error


def _guard_piece(piece: Piece, phase: Phase, about: _Method) -> Piece:
    """Checks the fields of a piece and holds its functions to their contracts."""
    where, kind = about.where, type(piece).__name__
    if not isinstance(piece, Piece):
        raise BadInput(f"{where}: pieces has {name_type(piece)}: give a Piece")
    if is_dataclass(piece):
        check_fields(where, piece, f"{kind}.")
    for local in piece.locals:
        _check_local(where, local)
        if (local.loss, local.gradient, local.step) != (phase.local.loss, phase.local.gradient, phase.local.step):
            raise BadInput(f"{where}: {kind} has a loss or transformations that local has not: give both the same")
    if unknown := [layer for layer in piece.stays if layer not in about.layers]:
        known = ", ".join(about.layers)
        raise BadInput(
            f"{where}: {kind} has the layer {unknown[0]!r}, which the network lacks: choose among its layers, {known}"
        )
    if isinstance(piece, PrivateLayers) and not set(piece.memory) <= set(piece.layers):
        raise BadInput(f"{where}: {kind}.memory = {piece.memory!r}: name some of its layers, {piece.layers!r}")
    if isinstance(piece, Measure) and phase.walk is not None:
        raise BadInput(f"{where}: {kind} has no server that reads it, because models walk: leave it out")
    if isinstance(piece, Measure) and phase.nets:
        raise BadInput(f"{where}: {kind} reads whole networks, but tiers train slices: leave it out")
    if isinstance(piece, Measure) and phase.find(Correction) is not None:
        raise BadInput(f"{where}: {kind} and Correction are both sent beside the delta: leave one of them out")
    draws = isinstance(piece, ClientSums)  # what it draws begins at the job's address, and its result is checked there
    held = {}
    for name, arguments in piece.takes.items():
        function = getattr(piece, name)
        called = contract(f"{where}: {kind}.{name}", function, _like_first, arguments=arguments, again=True)
        held[name] = function if draws else called
    return replace(piece, **held) if held else piece  # type: ignore[type-var]


def _like_first(found: Any, first: Any, *_: Any) -> str | None:
    """Says what is wrong with a result that is no tensor of the shape of the first argument."""
    return results.check_tensor(found, tuple(first.shape))


# ---------------------------------------------------------------------------------------------------------------------
# A user's own method with a check around each of its functions: a wrong result is one line that names the function.

ARGUMENTS = {  # of the functions of a method, of a phase and of its parts
    "answer": "state",
    "prepare": "state, pooled",
    "join": "t, steps",
    "explain_end": "state",
    "schedule": "t, state",
    "choose": "plan, losses",
    "sizes": "plan",
    "steps": "plan, sizes",
    "traffic": "t, plan",
    "remember": "t, state, plan, loss",
    "ask": "state, stats",
    "init": "models",
    "reduce": "uploads",
    "step": "state, stats, t",
    "bytes": "client, tier",
    "apply": "uploads",
}
_NEEDED = ("schedule", "init", "reduce", "step", "bytes", "apply")
_OF_NONE = {"schedule": ": its state is None where a run is planned and not begun: return the jobs of round 0 there"}


class _Method(NamedTuple):
    """What is known of a method beside its parts: how messages call it, R, N and the names of the network's layers."""

    where: str
    worlds: int
    clients: int
    layers: tuple[str, ...]


def guard_method(
    method: Any, where: str, *, worlds: int, clients: Clients, layers: tuple[str, ...], stack: Stack | None = None
) -> Method:
    """Wraps a method, so that one line names the part that raised, or returned what cannot be used.

    Args:
        method: What the user's function returned.
        where: How messages call it.
        worlds: R.
        clients: Who takes part, in which tiers.
        layers: Names of the network's layers.
        stack: The networks, where there are several.

    Raises:
        BadInput: It is no method, or one of its fields cannot be used.

    Example:
        >>> guard_method(None, "method mine", worlds=1, clients=Clients(()), layers=())
        Traceback (most recent call last):
        fedray.core.errors.BadInput: method mine returned None: return a fedray.methods.Method
    """
    if not isinstance(method, Method):
        raise BadInput(f"{where} returned {name_type(method)}: return a fedray.methods.Method")
    if not isinstance(method.name, str) or not method.name:
        raise BadInput(f"{where}: name = {method.name!r}: give the method a name")
    check_fields(where, method)
    about = _Method(where, worlds, clients.number, layers)
    for i, part in enumerate(method.parts):
        if not isinstance(part, Phase):
            raise BadInput(f"{where}: parts[{i}] is {name_type(part)}: give a Phase")
    fitted: Method = fit_parts(method, stack, where)
    if method.one_model_per_client and method.phase.models != clients.number:
        raise BadInput(
            f"{where}: one_model_per_client, but it trains {method.phase.models} models for {clients.number} "
            f"clients: set method.models = {clients.number}"
        )
    phase, parts = _guard_phase(fitted.phase, about), tuple(_guard_phase(part, about) for part in fitted.parts)
    own = phase.is_personal or phase.weighs or fitted.one_model_per_client
    each = clients.number if fitted.one_model_per_client else 0
    checks = method_checks(worlds, phase.models, len(clients.tiers), own=own, each=each)
    fields = _hold(fitted, where, checks)
    if "answer" in fields:
        fields["answer"] = guard_combine(fields["answer"], where)
    return replace(fitted, phase=phase, parts=parts, **fields)


def method_checks(worlds: int, models: int, tiers: int = 1, *, own: bool = False, each: int = 0) -> dict[str, Returns]:
    """For each function of a method: (what it returned, its arguments) -> what is wrong with it, or None.

    Args:
        worlds: R.
        models: K.
        tiers: T.
        own: Whether known clients answer with models or weights of their own.
        each: N, where client i answers with model i; else 0.
    """
    return {
        "answer": lambda found, state: (
            results.check_each(found, each) or results.check_answer(found, worlds, tiers, state, own=own)
        ),
        "prepare": lambda found, *_: results.check_state(found, worlds * models, None),
        "join": lambda found, _t, steps: results.check_joined(found, steps),
        "explain_end": lambda found, _state: results.check_reason(found),
    }


def phase_checks(worlds: int, clients: int, models: int) -> dict[str, Returns]:
    """Returns the same for each function of a phase.

    Args:
        worlds: R.
        clients: N.
        models: K.
    """
    ranges = {"client": clients, "model": models, "world": worlds}
    return {
        "schedule": lambda found, *_: results.check_plan(found, ranges),
        "choose": lambda found, plan, _losses: results.check_choice(found, plan, ranges),
        "sizes": lambda found, plan: results.check_counts(found, len(plan.client), "samples"),
        "steps": lambda found, plan, _sizes: results.check_pair(found, len(plan.client), "steps", "samples"),
        "traffic": lambda found, _t, plan: results.check_pair(found, len(plan.client), "bytes up", "bytes down"),
        "remember": lambda found, _t, state, *_: _check_next(found, state),
        "ask": lambda found, state, _stats: None if found is None else _check_next(found, state._replace(extra={})),
    }


def _check_next(found: Any, state: State) -> str | None:
    """Returns what is wrong with a state that follows another one."""
    return results.check_state(found, len(state.models), state)


def _hold(thing: Any, where: str, checks: Mapping[str, Returns], path: str = "") -> dict[str, Any]:
    """Returns the functions of a part of a method that are there, each held to its contract.

    Args:
        thing: a method, a phase, or what a phase has.
        where: how messages call the method.
        checks: for each function, what is wrong with what it returned.
        path: where the part stands, with a dot at its end.
    """
    found: dict[str, Any] = {}
    for name, returns in checks.items():
        if (function := getattr(thing, name)) is not None or name in _NEEDED:
            what, remedy = f"{where}: {path}{name}", _OF_NONE.get(name, "")
            found[name] = contract(what, function, returns, arguments=ARGUMENTS[name], again=True, remedy=remedy)
    return found


def _guard_phase(phase: Phase, about: _Method) -> Phase:
    """Checks the fields of a phase and holds its functions to their contracts."""
    where = about.where
    check_fields(where, phase)
    _check_local(where, phase.local)
    return watch_shared(replace(phase, **_hold_phase(phase, about)), where)


def _hold_phase(phase: Phase, about: _Method) -> dict[str, Any]:
    """Returns the functions of a phase, of its server, its compression and its pieces, held to their contracts."""
    where, server, compress = about.where, phase.server, phase.compress
    correction = phase.find(Correction)
    shared = None if correction is None else correction.shared

    def check_init(found: Any, _models: Any) -> str | None:
        if isinstance(found, Mapping) and shared is not None and shared not in found:
            return f"no {shared!r}, which Correction.shared names: return it, one row for each model"
        return results.check_tensors(found)

    serves: dict[str, Returns] = {
        "init": check_init,
        "reduce": lambda found, _: results.check_stats(found),
        "step": lambda found, state, *_: _check_next(found, state),
    }
    sends: dict[str, Returns] = {
        "bytes": lambda found, client, _: results.check_counts(found, len(client), "bytes"),
        "apply": lambda found, uploads: results.check_compressed(found, uploads, compress.own),
    }
    check_fields(where, server, "server.")
    check_fields(where, compress, "compress.")
    return {
        **_hold(phase, where, phase_checks(about.worlds, about.clients, phase.models)),
        "pieces": tuple(_guard_piece(piece, phase, about) for piece in phase.pieces),
        # somebody's own function reads tensors in main memory
        "server": server._replace(**_hold(server, where, serves, "server."), on_device=False),
        "compress": compress._replace(**_hold(compress, where, sends, "compress."), on_device=False),
    }


def _check_local(where: str, local: Any) -> None:
    """How clients train, as engines can read it."""
    if not isinstance(local, Local):
        raise BadInput(f"{where}: local is {name_type(local)}: give a Local")
    check_fields(where, local, "local.")
    if (local.epochs is None) == (local.steps is None):
        both = f"local.epochs = {local.epochs} and local.steps = {local.steps}"
        raise BadInput(f"{where}: {both}: give one of them, and None for the other")
    if (rule := local.schedule) is not None:
        check_fields(where, rule, "local.schedule.")
        if rule.kind in ("cosine", "linear") and rule.rounds < 1:
            raise BadInput(f"{where}: local.schedule.rounds = {rule.rounds!r}: give a whole number of at least 1")
    if local.loss is not None:
        check_code("loss", f"{where}: local.loss", local.loss)
    if local.gradient is not None:
        check_code("optimizer", f"{where}: local.gradient", local.gradient)
    if local.step is not None:
        check_code("optimizer", f"{where}: local.step", local.step)
    check_augmentations(where, local.augment)


# ---------------------------------------------------------------------------------------------------------------------
# Keys that decide a piece of a `Setting` which a user's own method does not put into its parts: a warning names them.
#
# A method that takes the place of a part with `replace(phase, server=...)` drops what the scenario's keys made of it.


class _Piece(NamedTuple):
    """What a key has decided: the key with its value, the fields of `Setting` with other values, and the remedy."""

    key: str
    other: dict[str, Any]
    remedy: str


_SERVER = "has a server without it: leave the key out, or name the server as merge"
_SCHEDULE = "has a schedule without it: leave the key out, or let the schedule call setting.participation"
_ASSIGN = "has a schedule without it: leave the key out, or name the schedule as assign"


def warn_of_unread_pieces(
    scenario: Scenario, pieces: Setting, method: Method, compose: Callable[[Setting], Method]
) -> None:
    """Says which keys of servers, schedules, participants and compression a method drops.

    The method is composed with the piece that a key has made and with another one. Where both reach the same code and
    values, and no code that holds the setting names the piece, the key cannot act.

    Args:
        scenario: has the keys.
        pieces: of the method.
        method: the user's own.
        compose: makes it from other pieces.
    """
    asked = list(_list_asked(scenario, pieces))
    if not asked:
        return
    given = reach(compose(pieces), Setting)
    for piece in asked:
        try:
            changed = compose(replace(pieces, **piece.other))
        except FedrayError:  # it needs the piece
            continue
        if given.named.isdisjoint(piece.other) and given.things == reach(changed, Setting).things:
            warn_user(f"{piece.key} cannot act, because {method.name} {piece.remedy}")


def _list_asked(scenario: Scenario, pieces: Setting) -> Iterator[_Piece]:
    """Returns the pieces that a key has decided."""
    server, people = scenario.server, scenario.participation
    if pieces.robust.kind != "none":
        yield _Piece(f"server.robust = {server.robust}", {"robust": Robust()}, _SERVER)
    if pieces.optimizer.kind != "none":
        yield _Piece(f"server.optimizer = {server.optimizer}", {"optimizer": Optimizer()}, _SERVER)
    if pieces.coefficients is not None:
        yield _Piece(f"server.coefficients = {server.coefficients}", {"coefficients": None}, _SERVER)
    if pieces.weighting != ServerKeys().weighting:
        other = {"weighting": ServerKeys().weighting}
        remedy = "has a server that does not read it: leave the key out, or let merge(rows, weighting) read it"
        yield _Piece(f"server.weighting = {pieces.weighting}", other, remedy)
    if pieces.compress is not None:
        remedy = "has a compression without it: leave the key out, or name the compression as compress"
        yield _Piece(f"compress.kind = {scenario.compress.kind}", {"compress": None}, remedy)
    if pieces.assign is not None and scenario.schedule.kind != "walk":
        yield _Piece(f"schedule.kind = {scenario.schedule.kind}", {"assign": None}, _ASSIGN)
    named = next((name for name in ("per_round", "fraction") if getattr(people, name) is not None), None)
    if named is not None and people.mode == "sync" and pieces.participants < pieces.clients.number:
        everyone = {"participation": invite_all(pieces.clients)}
        number = {"participants": pieces.clients.number, **everyone}
        yield _Piece(f"participation.{named} = {quote_value(getattr(people, named))}", number, _SCHEDULE)
        if people.selection.name != "uniform":
            yield _Piece(f"participation.selection = {people.selection.name}", everyone, _SCHEDULE)
