"""Checks around each function of a user's own method: a wrong result becomes one line that names the function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from typing import Any, NamedTuple

from fedray.assembly import own_results as results
from fedray.assembly.own_results import watch_shared
from fedray.assembly.pieces import check_augmentations
from fedray.assembly.registry import check_code
from fedray.core.errors import BadInput
from fedray.core.method import Answer, Local, Method, Phase, Piece
from fedray.core.types import Clients, State
from fedray.features.correction import Correction
from fedray.features.measure import ClientSums, Measure
from fedray.features.stacking import Stack
from fedray.own_code.contract import Returns, check_fields, contract
from fedray.own_code.user_code import name_type

# ---------------------------------------------------------------------------------------------------------------------
# Refusals of what does not fit the scenario, before anything trains.


def refuse_unread_code(given: Local, method: Method) -> None:
    """Refuses a loss, an optimizer or augmentations that a user's method would ignore.

    Args:
        given: local training as the scenario and the passed objects describe it.
        method: the user's own method.

    Raises:
        BadInput: the method ignores one of them; the message names it.

    Example:
        >>> from types import SimpleNamespace
        >>> from fedray.core.method import LocalLoss
        >>> local = Local(loss=LocalLoss(len, name="mine"))
        >>> method = SimpleNamespace(name="own", parts=(), phase=SimpleNamespace(local=Local()))
        >>> refuse_unread_code(local, method)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedray.core.errors.BadInput: local.loss is given, but own does not read it: make its local with replace(...
    """
    for key, field in (("loss", "loss"), ("optimizer", "step"), ("augment", "augment")):
        if getattr(given, field) and not method.parts and not getattr(method.phase.local, field):
            raise BadInput(
                f"local.{key} is given, but {method.name} does not read it: make its local with "
                "replace(setting.local, ...), or leave it out"
            )


NOT_OF_PARTS = (  # fields of a phase that nothing calls if the phase is one of several
    "walk", "sizes", "steps", "remember", "choose", "work", "ask",
)  # fmt: skip
NOT_BESIDE_PARTS = ("answer", "prepare", "one_model_per_client", "explain_end")  # of a method


def fit_parts(method: Method, stack: Stack | None, where: str) -> Method:
    """Returns a method with one part for each network of a scenario; the first part is then the method's phase.

    Args:
        method: The user's own method.
        stack: The networks; None: there is one network, and the method has no parts.
        where: Name of the method in messages.

    Raises:
        BadInput: The parts do not fit the networks, or a part has a field that nothing would use.

    Example:
        >>> from types import SimpleNamespace
        >>> fit_parts(SimpleNamespace(parts=(1, 2)), None, "method mine")
        Traceback (most recent call last):
        fedray.core.errors.BadInput: method mine: it has 2 parts for 0 networks of method.networks: return \
parts=federated_each(setting), a phase of each
    """
    if stack is not None and (stack.meta is not None or stack.combine is not None):  # whose spec has `parts`
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
# Each function of a method, wrapped in its check.

ARGUMENTS = {  # arguments of the functions of a method, of a phase and of its parts
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
    """Facts that the checks of a method need: its name in messages, R, N, and the names of the network's layers."""

    where: str
    worlds: int
    clients: int
    layers: tuple[str, ...]


def guard_method(
    method: Any, where: str, *, worlds: int, clients: Clients, layers: tuple[str, ...], stack: Stack | None = None
) -> Method:
    """Wraps a method: an exception or an unusable result becomes one line that names the function.

    Args:
        method: What the user's function returned.
        where: How messages call it.
        worlds: number of worlds, R.
        clients: The population and its tiers.
        layers: Names of the network's layers.
        stack: The networks, if there are several.

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
    about = _Method(where, worlds, clients.number, layers)
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
    if asked := fields.get("answer"):

        def answer(*arguments: State) -> Answer:
            found: Answer = asked(*arguments)
            if found.combine is None:
                return found
            combine = contract(f"{where}: combine", found.combine, results.check_joined_answer, again=True)
            return found._replace(combine=combine)

        fields["answer"] = answer
    return replace(fitted, phase=phase, parts=parts, **fields)


def method_checks(
    worlds: int, models: int, tiers: int = 1, *, own: bool = False, each: int = 0
) -> dict[str, Returns | None]:
    """Returns a check for each function of a method: (result, arguments) -> the error in words, or None.

    Args:
        worlds: number of worlds, R.
        models: number of models, K.
        tiers: number of tiers, T.
        own: Whether known clients predict with models or weights of their own.
        each: N if client i predicts with model i; else 0.
    """
    return {
        "answer": lambda found, state: results.check_answer(found, worlds, tiers, state, own=own, each=each),
        "prepare": lambda found, *_: results.check_state(found, worlds * models, None),
        "join": lambda found, _t, steps: results.check_joined(found, steps),
        "explain_end": None,
    }


def phase_checks(worlds: int, clients: int, models: int) -> dict[str, Returns | None]:
    """Returns a check for each function of a phase, as `method_checks` does for a method.

    Args:
        worlds: number of worlds, R.
        clients: number of clients, N.
        models: number of models, K.
    """
    ranges = {"client": clients, "model": models, "world": worlds}
    return {
        "schedule": lambda found, *_: results.check_plan(found, ranges),
        "choose": lambda found, plan, _losses: results.check_choice(found, plan, ranges),
        "sizes": lambda found, plan: results.check_counts(found, len(plan.client), "samples"),
        "steps": lambda found, plan, _sizes: results.check_pair(found, len(plan.client), "steps", "samples"),
        "traffic": lambda found, _t, plan: results.check_pair(found, len(plan.client), "bytes up", "bytes down"),
        "remember": lambda found, _t, state, *_: results.check_state(found, len(state.models), state),
        "ask": lambda found, state, _stats: (
            None if found is None else results.check_state(found, len(state.models), state._replace(extra={}))
        ),
    }


def _hold(thing: Any, where: str, checks: Mapping[str, Returns | None], path: str = "") -> dict[str, Any]:
    """Returns the functions that a part of a method has, each wrapped in its check.

    Args:
        thing: a method, a phase, or a component of a phase.
        where: name of the method in messages.
        checks: for each function, the check of its result.
        path: path of the part inside the method, with a dot at the end.
    """
    found: dict[str, Any] = {}
    for name, returns in checks.items():
        if (function := getattr(thing, name)) is not None or name in _NEEDED:
            what, remedy = f"{where}: {path}{name}", _OF_NONE.get(name, "")
            found[name] = contract(what, function, returns, arguments=ARGUMENTS[name], again=True, remedy=remedy)
    return found


def _guard_phase(phase: Phase, about: _Method) -> Phase:
    """Wraps the functions of a phase, of its server, its compression and its pieces in their checks."""
    where, server, compress = about.where, phase.server, phase.compress
    check_fields(where, phase)
    _check_local(where, phase.local)
    correction = phase.find(Correction)
    shared = None if correction is None else correction.shared

    def check_init(found: Any, _models: Any) -> str | None:
        if isinstance(found, Mapping) and shared is not None and shared not in found:
            return f"no {shared!r}, which Correction.shared names: return it, one row for each model"
        return results.check_tensors(found)

    serves: dict[str, Returns | None] = {
        "init": check_init,
        "reduce": lambda found, _: results.check_stats(found),
        "step": lambda found, state, *_: results.check_state(found, len(state.models), state),
    }
    sends: dict[str, Returns | None] = {
        "bytes": lambda found, client, _: results.check_counts(found, len(client), "bytes"),
        "apply": lambda found, uploads: results.check_compressed(found, uploads, compress.own),
    }
    check_fields(where, server, "server.")
    check_fields(where, compress, "compress.")
    held: dict[str, Any] = {
        **_hold(phase, where, phase_checks(about.worlds, about.clients, phase.models)),
        "pieces": tuple(_guard_piece(piece, phase, about) for piece in phase.pieces),
        # somebody's own function reads tensors in main memory
        "server": server._replace(**_hold(server, where, serves, "server."), on_device=False),
        "compress": compress._replace(**_hold(compress, where, sends, "compress."), on_device=False),
    }
    return watch_shared(replace(phase, **held), where)


def _guard_piece(piece: Piece, phase: Phase, about: _Method) -> Piece:
    """Checks the fields of a piece and wraps its functions in their checks."""
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
    if isinstance(piece, Measure) and (phase.walk is not None or phase.nets or phase.find(Correction) is not None):
        raise BadInput(f"{where}: {kind} goes with no walk, no slices and no Correction: leave it out")
    draws = isinstance(piece, ClientSums)  # it draws from the job's key, and its result is checked there
    held = {}
    for name, arguments in piece.takes.items():
        function = getattr(piece, name)
        called = contract(
            f"{where}: {kind}.{name}",
            function,
            lambda found, first, *_: results.check_tensor(found, tuple(first.shape)),
            arguments=arguments,
            again=True,
        )
        held[name] = function if draws else called
    return replace(piece, **held) if held else piece  # type: ignore[type-var]


def _check_local(where: str, local: Any) -> None:
    """Checks that engines can use a description of local training."""
    if not isinstance(local, Local):
        raise BadInput(f"{where}: local is {name_type(local)}: give a Local")
    check_fields(where, local, "local.")
    if (local.epochs is None) == (local.steps is None):
        both = f"local.epochs = {local.epochs} and local.steps = {local.steps}"
        raise BadInput(f"{where}: {both}: give one of them, and None for the other")
    if local.schedule is not None:
        check_fields(where, local.schedule, "local.schedule.")
    for kind, field in (("loss", "loss"), ("optimizer", "gradient"), ("optimizer", "step")):
        if (code := getattr(local, field)) is not None:
            check_code(kind, f"{where}: local.{field}", code)
    check_augmentations(where, local.augment)
