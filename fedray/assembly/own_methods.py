"""A user's own method with a check around each of its functions: a wrong result is one line that names the function.

Example:
    >>> guard_method(None, "method mine", worlds=1, clients=Clients(()), layers=())
    Traceback (most recent call last):
    fedray.core.errors.BadInput: method mine returned None: return a fedray.methods.Method
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from fedray.assembly import own_results as results
from fedray.assembly.augmentation import check_augmentations
from fedray.assembly.own_answer import guard_combine
from fedray.assembly.own_fields import check_course, require, require_function, require_number
from fedray.assembly.own_measure import check_measure
from fedray.assembly.own_parts import fit_parts
from fedray.assembly.own_shared import watch_shared
from fedray.assembly.own_training import check_code
from fedray.core.errors import BadInput
from fedray.core.local import Correction, LocalLoss, Transform
from fedray.core.method import Compress, Local, Method, Phase, Server
from fedray.core.types import Clients, State
from fedray.models.stacking import Stack
from fedray.own_code.user_code import blame_user_code, name_type

Check = Callable[..., str | None]  # (what a function returned, its arguments) -> what is wrong with it


ARGUMENTS = {  # of the functions of a method and of a phase
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
}
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
    """A method that says in one line which of its parts raised, or returned what cannot be used.

    Args:
        method: What the user's function returned.
        where: How messages call it.
        worlds: R.
        clients: Who takes part, in which tiers.
        layers: Names of the network's layers.
        stack: The networks, where there are several.

    Raises:
        BadInput: It is no method, or one of its fields cannot be used.
    """
    if not isinstance(method, Method):
        raise BadInput(f"{where} returned {name_type(method)}: return a fedray.methods.Method")
    if not isinstance(method.name, str) or not method.name:
        raise BadInput(f"{where}: name = {method.name!r}: give the method a name")
    require(where, "phase", method.phase, Phase)
    require(where, "parts", method.parts, tuple)
    about = _Method(where, worlds, clients.number, layers)
    for i, part in enumerate(method.parts):
        require(where, f"parts[{i}]", part, Phase)
    fitted: Method = fit_parts(method, stack, where)
    if method.one_model_per_client and method.phase.models != clients.number:
        raise BadInput(
            f"{where}: one_model_per_client, but it trains {method.phase.models} models for {clients.number} "
            f"clients: set method.models = {clients.number}"
        )
    phase, parts = _guard_phase(fitted.phase, about), tuple(_guard_phase(part, about) for part in fitted.parts)
    own = phase.is_personal or phase.mixture or fitted.one_model_per_client
    each = clients.number if fitted.one_model_per_client else 0
    checks = method_checks(worlds, phase.models, len(clients.tiers), own=own, each=each)
    fields = _guard_fields(fitted, where, checks)
    if "answer" in fields:
        fields["answer"] = guard_combine(fields["answer"], where)
    return replace(fitted, phase=phase, parts=parts, **fields)


def method_checks(worlds: int, models: int, tiers: int = 1, *, own: bool = False, each: int = 0) -> dict[str, Check]:
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


def phase_checks(worlds: int, clients: int, models: int) -> dict[str, Check]:
    """The same for each function of a phase.

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
    """What is wrong with a state that follows another one."""
    return results.check_state(found, len(state.models), state)


def _guard_fields(thing: Any, where: str, checks: Mapping[str, Check]) -> dict[str, Any]:
    """The functions of a method or a phase that are there, each guarded by its check."""
    there = {name: getattr(thing, name) for name in checks if getattr(thing, name) is not None}
    for name, function in there.items():
        require_function(where, name, function, ARGUMENTS[name])
    return {name: _guard(where, name, function, checks[name]) for name, function in there.items()}


def _guard(where: str, part: str, function: Callable[..., Any], check: Check) -> Callable[..., Any]:
    """A function of the user's whose exceptions and results are one line.

    Args:
        where: The method, for messages.
        part: What the function is of it.
        function: The user's.
        check: (result, *arguments) -> what is wrong with it, or None.
    """

    def call(*arguments: Any) -> Any:
        with blame_user_code(f"{where}: {part}", _OF_NONE.get(part, "")):
            found = function(*arguments)
        wrong = check(found, *arguments)
        if wrong is not None:
            raise BadInput(f"{where}: {part} returned {wrong}")
        return found

    return call


def _guard_phase(phase: Phase, about: _Method) -> Phase:
    """A phase whose fields can be used and whose functions are checked."""
    where = about.where
    require_number(where, "models", phase.models, least=1, whole=True)
    require_number(where, "down_vectors", phase.down_vectors, whole=True)
    require_number(where, "up_vectors", phase.up_vectors, whole=True)
    require(where, "private", phase.private, tuple)
    for layer in phase.private:
        if layer not in about.layers:
            known = ", ".join(about.layers)
            raise BadInput(
                f"{where}: private has the layer {layer!r}, which the network lacks: choose among its layers, {known}"
            )
    if not set(phase.memory) <= set(phase.private):
        raise BadInput(f"{where}: memory = {phase.memory!r}: name layers of private, {phase.private!r}")
    require(where, "personal", phase.personal, tuple)
    _check_local(where, phase.local)
    for local in phase.personal:
        _check_local(where, local)
        if (local.loss, local.gradient, local.step) != (phase.local.loss, phase.local.gradient, phase.local.step):
            raise BadInput(f"{where}: personal has a loss or transformations that local has not: give both the same")
    check_measure(phase, where)
    require_function(where, "schedule", phase.schedule, ARGUMENTS["schedule"])
    guarded: dict[str, Any] = {
        **_guard_fields(phase, where, phase_checks(about.worlds, about.clients, phase.models)),
        "local": _guard_local(phase.local, where),
        "server": _guard_server(phase.server, where, phase.local.correction),
        "compress": _guard_compress(phase.compress, where),
    }
    return watch_shared(replace(phase, **guarded), where)


def _guard_server(server: Server, where: str, correction: Correction | None) -> Server:
    """A server whose three functions are checked."""
    require(where, "server", server, Server)
    for name, arguments in (("init", "models"), ("reduce", "uploads"), ("step", "state, stats, t")):
        require_function(where, f"server.{name}", getattr(server, name), arguments)
    shared = None if correction is None else correction.shared

    def check_init(found: Any, _models: Any) -> str | None:
        if isinstance(found, Mapping) and shared is not None and shared not in found:
            return f"no {shared!r}, which local.correction.shared names: return it, one row for each model"
        return results.check_tensors(found)

    return server._replace(
        init=_guard(where, "server.init", server.init, check_init),
        reduce=_guard(where, "server.reduce", server.reduce, lambda found, _: results.check_stats(found)),
        step=_guard(where, "server.step", server.step, lambda found, state, *_: _check_next(found, state)),
        on_device=False,  # somebody's own function reads tensors in main memory
    )


def _guard_compress(compress: Compress, where: str) -> Compress:
    """A compression whose two functions are checked."""
    require(where, "compress", compress, Compress)
    for name, arguments in (("bytes", "client, tier"), ("apply", "uploads")):
        require_function(where, f"compress.{name}", getattr(compress, name), arguments)

    def check_bytes(found: Any, client: Any, _tier: Any) -> str | None:
        return results.check_counts(found, len(client), "bytes")

    def check_apply(found: Any, uploads: Any) -> str | None:
        return results.check_compressed(found, uploads, compress.own)

    return compress._replace(
        bytes=_guard(where, "compress.bytes", compress.bytes, check_bytes),
        apply=_guard(where, "compress.apply", compress.apply, check_apply),
        on_device=False,
    )


def _guard_local(local: Local, where: str) -> Local:
    """Local training whose correction, and whose end, are checked."""

    def check(found: Any, own: Tensor, *_: Any) -> str | None:
        return results.check_tensor(found, tuple(own.shape))

    if local.finish is not None:
        local = replace(local, finish=_guard(where, "local.finish", local.finish, check))
    correction = local.correction
    if correction is None:
        return local
    guarded = correction._replace(
        offset=_guard(where, "local.correction.offset", correction.offset, check),
        update=_guard(where, "local.correction.update", correction.update, check),
    )
    return replace(local, correction=guarded)


def _check_local(where: str, local: Any) -> None:
    """How clients train, as engines can read it."""
    require(where, "local", local, Local)
    if local.optimizer not in ("sgd", "adam"):
        raise BadInput(f"{where}: local.optimizer = {local.optimizer!r}: choose sgd or adam")
    for name in ("lr", "lr_decay", "momentum", "weight_decay", "pull"):
        require_number(where, f"local.{name}", getattr(local, name))
    require_number(where, "local.lr_decay_every", local.lr_decay_every, least=1, whole=True)
    for name in ("batch_size", "epochs", "steps"):
        if getattr(local, name) is not None:
            require_number(where, f"local.{name}", getattr(local, name), least=1, whole=True)
    if (local.epochs is None) == (local.steps is None):
        both = f"local.epochs = {local.epochs} and local.steps = {local.steps}"
        raise BadInput(f"{where}: {both}: give one of them, and None for the other")
    if local.correction is not None:
        require(where, "local.correction", local.correction, Correction)
        require_function(where, "local.correction.offset", local.correction.offset, "own, shared")
        require_function(where, "local.correction.update", local.correction.update, "own, shared, delta, length")
    if local.schedule is not None:
        check_course(where, local.schedule)
    if local.loss is not None:
        require(where, "local.loss", local.loss, LocalLoss)
        check_code("loss", f"{where}: local.loss", local.loss)
    if local.gradient is not None:
        require(where, "local.gradient", local.gradient, Transform)
        check_code("optimizer", f"{where}: local.gradient", local.gradient)
    if local.step is not None:
        check_code("optimizer", f"{where}: local.step", local.step)
    check_augmentations(where, local.augment)
    if local.finish is not None:
        require_function(where, "local.finish", local.finish, "start, final")
