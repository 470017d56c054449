"""Methods that go wrong: what their function returns, and what each of their parts returns while it trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from own_case import Case

from fedray.core.method import Answer, Compress, Compressed, Phase, Server
from fedray.core.types import Plan, State
from fedray.methods import Correction, Method, PrivateLayers, RateSchedule, Setting, Vectors, federated

Setup = Callable[[Setting], Any]


def with_phase(**fields: Any) -> Setup:
    """Returns a method: Fed-ensemble with some fields of its phase replaced."""
    return lambda setting: Method("mine", replace(federated(setting), **fields))


def with_method(**fields: Any) -> Setup:
    return lambda setting: replace(Method("mine", federated(setting)), **fields)


def with_local(**fields: Any) -> Setup:
    return lambda setting: Method("mine", federated(setting, local=replace(setting.local, **fields)))


def with_server(**parts: Any) -> Setup:
    def compose(setting: Setting) -> Method:
        phase = federated(setting)
        return Method("mine", replace(phase, server=phase.server._replace(**parts)))

    return compose


def with_step(change: Callable[[Any], Any]) -> Setup:
    """Returns a method with a changed server: `change` is applied to each next state."""

    def compose(setting: Setting) -> Method:
        phase = federated(setting)
        server: Server = phase.server
        own = server._replace(step=lambda state, stats, t: change(server.step(state, stats, t)))
        return Method("mine", replace(phase, server=own))

    return compose


def with_memory(change: Callable[[dict[str, Any]], Any]) -> Setup:
    """Returns a method with a changed server: `change` is applied to its `extra` in each step."""

    def compose(setting: Setting) -> Method:
        phase = federated(setting)
        server: Server = phase.server

        def step(state: State, stats: Any, t: int) -> State:
            after = server.step(state, stats, t)
            return after._replace(extra=change(after.extra))

        own = server._replace(init=lambda models: {"mine": torch.zeros(len(models))}, step=step)
        return Method("mine", replace(phase, server=own))

    return compose


def with_plan(change: Callable[[Any], Any]) -> Setup:
    """Returns a method with a changed schedule: `change` is applied to its plan."""

    def compose(setting: Setting) -> Method:
        phase: Phase = federated(setting)
        return Method("mine", replace(phase, schedule=lambda t, state: change(phase.schedule(t, state))))

    return compose


def with_compress(**parts: Any) -> Setup:
    def compose(setting: Setting) -> Method:
        phase = federated(setting)
        compress: Compress = phase.compress._replace(**parts)
        return Method("mine", replace(phase, compress=compress))

    return compose


def with_answer(change: Callable[[Answer], Any]) -> Setup:
    def compose(setting: Setting) -> Method:
        return Method("mine", federated(setting), answer=lambda state: change(Answer(state, setting.models)))

    return compose


def with_correction(**parts: Any) -> Setup:
    def compose(setting: Setting) -> Method:
        usual = Correction("mine", offset=lambda own, _: own, update=lambda own, *_: own)
        return Method("mine", federated(setting, pieces=[replace(usual, **parts)]))

    return compose


def fail(*_: Any) -> Any:
    raise ValueError("my method\nis broken")


def none(*_: Any) -> Any:
    return None


def read_option(setting: Setting) -> Method:
    return Method("mine", federated(setting, local=replace(setting.local, pull=setting.options["mu"])))


def take_nothing() -> Any:
    return None


def later(round: int) -> Setup:
    """Returns a method with a schedule that raises an error from one round on."""

    def compose(setting: Setting) -> Method:
        phase = federated(setting)

        def schedule(t: int, state: State | None) -> Plan:
            if t >= round:
                raise ValueError("my method is broken")
            return phase.schedule(t, state)

        return Method("mine", replace(phase, schedule=schedule))

    return compose


def cut(state: State) -> State:
    return state._replace(models=state.models[:1])


def nan(state: State) -> State:
    return state._replace(models=state.models * np.nan)


RAISED = "ValueError: my method is broken"
_method = partial(Case, "method")
METHODS = [
    _method("returns None", none, "returned None"),
    _method("returns a tuple", lambda setting: ("mine", federated(setting)), "returned a tuple"),
    _method("returns a phase", federated, "returned a Phase"),
    _method("returns text", lambda _: "fedavg", "returned a str"),
    _method("returns the class", lambda _: Method, "returned"),
    _method("raises", fail, RAISED, {}, True),
    _method("takes nothing", take_nothing, r"it does not take \(setting\)"),
    _method("reads a missing option", read_option, "KeyError: 'mu'", {}, True),
    _method("answer is a number", with_method(answer=3), "answer raised TypeError"),
    _method("no models", with_phase(models=0), "models = 0"),
    _method("models is text", with_phase(models="two"), "models = 'two'"),
    _method("schedule is None", with_phase(schedule=None), "'NoneType' object is not callable"),
    _method("local is None", with_phase(local=None), "'NoneType' object has no attribute 'epochs'"),
    _method("vectors are text", with_phase(pieces=(Vectors(down=cast(Any, "1")),)), "down = '1'"),
    _method("an unknown layer is private", with_phase(pieces=(PrivateLayers(("nothing",)),)), "nothing"),
    _method("private is text", with_phase(pieces=(PrivateLayers(cast(Any, "head")),)), "layers"),
    _method("no learning rate", with_local(lr=None), "lr = None"),
    _method("a negative learning rate", with_local(lr=-0.1), "lr = -0.1"),
    _method("learning rate is NaN", with_local(lr=float("nan")), "lr = nan"),
    _method("an unknown optimizer", with_local(optimizer="lion"), "optimizer = 'lion'"),
    _method("an empty batch", with_local(batch_size=0), "batch_size = 0"),
    _method("neither epochs nor steps", with_local(epochs=None, steps=None), "epochs|steps"),
    _method("an unknown course", with_local(schedule=RateSchedule("cosin")), "local.schedule.kind = 'cosin'"),  # type: ignore[arg-type]
    _method("pull is text", with_local(pull="strong"), "pull = 'strong'"),
    _method("schedule raises", with_phase(schedule=fail), RAISED, {}, True),
    _method("schedule raises later", later(1), RAISED, {}, True),
    _method("plan is None", with_phase(schedule=none), "schedule returned None"),
    _method("plan is a tuple", with_plan(lambda p: (p.client, p.model, p.world)), "schedule returned a tuple"),
    _method("plan of lists", with_plan(lambda p: Plan(*(c.tolist() for c in p))), "schedule.*list"),
    _method("plan of real numbers", with_plan(lambda p: Plan(*(c + 0.5 for c in p))), "schedule.*float64"),
    _method("an unknown client", with_plan(lambda p: p._replace(client=p.client + 99)), "client"),
    _method("a negative client", with_plan(lambda p: p._replace(client=p.client - 9)), "client"),
    _method("an unknown model", with_plan(lambda p: p._replace(model=p.model + 5)), "model"),
    _method("an unknown world", with_plan(lambda p: p._replace(world=p.world + 1)), "world"),
    _method("columns of several lengths", with_plan(lambda p: p._replace(model=p.model[:1])), "schedule.*"),
    _method("a job twice", with_plan(lambda p: p.take([0, 0, 1])), "twice"),
    _method("init raises", with_server(init=fail), RAISED, {}, True),
    _method("init returns arrays", with_server(init=lambda m: {"a": m.numpy()}), "must be Tensor, not numpy.ndarray"),
    _method("reduce raises", with_server(reduce=fail), RAISED, {}, True),
    _method("reduce returns None", with_server(reduce=none), "server.reduce returned None"),
    _method("reduce returns tensors", with_server(reduce=lambda u: {"sum": u.delta}), "return a dict of statistics"),
    _method("step raises", with_server(step=fail), RAISED, {}, True),
    _method("step returns None", with_server(step=none), "server.step returned None"),
    _method("step returns a tuple", with_step(tuple), "server.step returned a tuple"),
    _method("step returns models", with_step(lambda s: s.models), "server.step returned a Tensor"),
    _method("step drops a model", with_step(cut), "server.step.*shape"),
    _method("step cuts the models", with_step(lambda s: s._replace(models=s.models[:, :2])), "server.step.*shape"),
    _method("step returns double", with_step(lambda s: s._replace(models=s.models.double())), "float64"),
    _method("step returns NaN", with_step(nan), "server.step.*NaN"),
    _method("step drops an extra", with_memory(lambda _: {}), "mine is None, and was"),
    _method("step cuts an extra", with_memory(lambda e: {"mine": e["mine"][:1]}), "mine is float32 of shape .1."),
    _method("step makes an extra NaN", with_memory(lambda e: {"mine": e["mine"] * np.nan}), "NaN in mine"),
    _method("step forgets the counters", with_step(lambda s: s._replace(counters=None)), "counters is None"),
    _method("bytes raises", with_compress(bytes=fail), RAISED, {}, True),
    _method("bytes returns None", with_compress(bytes=none), "compress.bytes returned None"),
    _method("bytes of another length", with_compress(bytes=lambda c, _: c[:1]), "compress.bytes"),
    _method("negative bytes", with_compress(bytes=lambda c, _: c - 999), "compress.bytes.*-9"),
    _method("apply raises", with_compress(apply=fail), RAISED, {}, True),
    _method("apply cuts the delta", with_compress(apply=lambda u: Compressed(u.delta[:, :3])), "compress.apply"),
    _method("apply returns NaN", with_compress(apply=lambda u: Compressed(u.delta * np.nan)), "compress.apply.*NaN"),
    _method("answer raises", with_method(answer=fail), RAISED, {}, True),
    _method("answer returns None", with_method(answer=none), "answer returned None"),
    _method("answer returns a state", with_method(answer=lambda s: s), "answer returned a State"),
    _method("answer of other models", with_answer(lambda a: a._replace(models=7)), "answer"),
    _method("weights of another shape", with_answer(lambda a: a._replace(weights=np.ones(9))), "answer.*weights"),
    _method("weights are NaN", with_answer(lambda a: a._replace(weights=np.full((1, 2), np.nan))), "answer.*NaN"),
    _method("weights are zero", with_answer(lambda a: a._replace(weights=np.zeros((1, 2)))), "answer.*weights"),
    _method("answer with NaN", with_answer(lambda a: a._replace(state=nan(a.state))), "answer.*NaN"),
    _method("prepare raises", with_method(prepare=fail), RAISED, {}, True),
    _method("prepare returns None", with_method(prepare=none), "prepare returned None"),
    _method("prepare cuts the models", with_method(prepare=lambda s, _: cut(s)), "prepare"),
    _method("sizes raises", with_phase(sizes=fail), RAISED, {}, True),
    _method("sizes returns None", with_phase(sizes=none), "sizes returned None"),
    _method("sizes of another length", with_phase(sizes=lambda _: np.array([3])), "sizes"),
    _method("negative sizes", with_phase(sizes=lambda p: -1 - p.client), "sizes.*-"),
    _method("traffic returns None", with_phase(traffic=none), "traffic raised TypeError"),
    _method("traffic of one way", with_phase(traffic=lambda _, p: p.client), "traffic"),
    _method("remember raises", with_phase(remember=fail), RAISED, {}, True),
    _method("remember returns None", with_phase(remember=none), "remember returned None"),
    _method("steps returns a number", with_phase(steps=lambda *_: 3), "steps raised TypeError"),
    _method("ask returns a number", with_phase(ask=lambda *_: 3), "ask returned an int"),
    _method("offset raises", with_correction(offset=fail), RAISED, {}, True),
    _method("offset returns None", with_correction(offset=none), "offset returned None"),
    _method("offset of another shape", with_correction(offset=lambda own, _: own[:, :3]), "offset"),
    _method("update raises", with_correction(update=fail), RAISED, {}, True),
    _method("update returns None", with_correction(update=none), "update returned None"),
    # what works
    _method("good", with_method()),
    _method("nobody trains", with_plan(lambda p: p.take(np.arange(0)))),
    _method("a plan of int32", with_plan(lambda p: Plan(*(c.astype(np.int32) for c in p)))),
    _method("a correction of its own", with_correction()),
    _method("keeps an extra", with_server(init=lambda m: {"mine": torch.zeros(len(m))})),
]  # fmt: skip
