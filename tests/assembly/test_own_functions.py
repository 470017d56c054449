"""A user's functions that cannot be called as fedray does: one line with the remedy, before anything trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from small import scenario
from torch import nn

import fedray
from fedray.assembly.own_methods import ARGUMENTS, method_checks, phase_checks
from fedray.core.errors import BadInput
from fedray.methods import Correction, Finish, LocalLoss, Method, Setting, Transform, federated, start_empty
from fedray.own_code.user_code import explain_uncallable, takes_positional

KEYS = scenario({"rounds": 1, "method": {"name": "fedavg"}, "data": {"limit": 90}, "report": False})
KEYS["participation"] = {"per_round": 2}


def loss(outputs: Any, targets: Any, context: Any) -> Any:
    return context.objective(outputs, targets)


def partition(labels: Any, clients: int, _generator: Any, _options: Any) -> Any:
    return np.array_split(np.arange(len(labels)), clients)


def selection(_known: Any, number: int, _generator: Any, _options: Any) -> Any:
    return np.arange(number)


def schedule(_models: int, _rows: str) -> Any:
    return lambda _now, drawn, _m, _state: (np.arange(len(drawn.client)), np.zeros(len(drawn.client), int))


def metrics(_scored: Any) -> float:
    return 1.0


def callbacks(_round: int, _scores: Any, _models: Any) -> bool:
    return False


def method(setting: Setting) -> Method:
    return Method("mine", federated(setting))


def model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


GOOD: dict[str, tuple[Callable[..., Any], str]] = {
    "loss": (loss, "outputs, targets, context"),
    "partition": (partition, "labels, clients, generator, options"),
    "selection": (selection, "known, number, generator, options"),
    "schedule": (schedule, "models, rows"),
    "metrics": (metrics, "scored"),
    "callbacks": (callbacks, "round, scores, models"),
    "method": (method, "setting"),
    "model": (model, ""),
}


def run(kind: str, thing: Any) -> fedray.Run:
    given: dict[str, Any] = {kind: thing}
    return fedray.run(KEYS, **given)


def taking(arguments: str) -> Any:
    """A function of these arguments, which does nothing."""
    return eval(f"lambda {arguments}: None")


class Wrapped:
    """An object that can be called."""

    def __init__(self, function: Any) -> None:
        self.__name__, self.function = "wrapped", function

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


class Plain:
    """A class of one argument."""

    def __init__(self, value: Any, /) -> None:
        self.value = value


def misfits(function: Any, arguments: str) -> Iterator[tuple[Any, str]]:
    """Things that cannot take the place of a function, and what is said of each."""
    takes = rf"does not take \({arguments}\)" if arguments else "cannot be called without arguments"
    names = arguments.split(", ") if arguments else []

    def by_name(*given: Any, must: int) -> Any:
        return function(*given[:must])

    def generates(*given: Any) -> Any:
        yield function(*given)

    async def waits(*given: Any) -> Any:
        return function(*given)

    yield taking(", ".join([*names, "more"])), takes
    if names:
        yield taking(", ".join(names[1:])), takes
        yield partial(function, None), takes
        yield taking(f"*, {arguments}"), takes
        yield type("Bad", (), {"__call__": lambda _self: None})(), takes
    yield by_name, "needs must=, which nobody gives it"
    yield generates, "has a yield, so that it returns a generator"
    yield waits, "is async, so that it returns a coroutine"
    yield 3, "is an int"


@pytest.mark.parametrize("kind", GOOD)
def test_functions_with_other_arguments_were_found_out_in_the_first_round_or_by_a_bare_type_error(kind: str) -> None:
    function, arguments = GOOD[kind]
    for thing, says in misfits(function, arguments):
        with pytest.raises(BadInput, match=rf"^{kind.removesuffix('s')}.*: it {says}.*: give .*$"):
            run(kind, thing)
    if kind not in ("model", "schedule"):
        with pytest.raises(BadInput, match=r"it is the class Plain: give "):
            run(kind, Plain)


@pytest.mark.parametrize("kind", GOOD)
def test_whatever_can_be_called_as_the_function_is_takes_its_place(kind: str) -> None:
    """A partial, an object, a lambda of any arguments, a function with further ones that have defaults."""
    function, arguments = GOOD[kind]
    longer = eval(
        f"lambda {arguments}{', ' if arguments else ''}more=1, *, last=2: function({arguments})", {"function": function}
    )

    def anything(*given: Any) -> Any:
        return function(*given)

    hashes = set()
    for thing in (function, partial(function), Wrapped(function), longer, anything):
        given = {"own": thing} if kind == "metrics" else thing
        hashes.add(run(kind, given).summary["model_hash"])
    assert len(hashes) == 1


def test_an_optimizer_whose_second_argument_is_not_called_lr_is_told_so() -> None:
    wanted = r"^optimizer: it does not take \(parameters, lr=\.\.\.\): give a fedray\.methods\.Transform, a function"
    for thing in (taking("parameters, rate"), taking("parameters"), taking("a, b, c")):
        with pytest.raises(BadInput, match=wanted):
            fedray.run(KEYS, optimizer=thing)
    fedray.run(KEYS, optimizer=lambda parameters, lr: torch.optim.SGD(parameters, lr))
    for rule, says in (
        (Transform(start_empty, taking("gradient, state")), "update that does not take"),
        (
            Transform(taking(""), taking("gradient, state, parameters, context")),
            r"init that does not take \(parameters\)",
        ),
    ):
        with pytest.raises(BadInput, match=f"^optimizer: it has an {says}"):
            fedray.run(KEYS, optimizer=rule)


@pytest.mark.parametrize("name", [*phase_checks(1, 1, 1), *method_checks(1, 1)])
def test_a_part_of_a_method_with_other_arguments_was_found_out_in_its_round(name: str) -> None:
    def of(setting: Setting) -> Method:
        phase = federated(setting)
        if name in phase_checks(1, 1, 1):
            return Method("mine", replace(phase, **{name: taking("a, b, c")}))
        return replace(Method("mine", phase), **{name: taking("a, b, c")})

    with pytest.raises(BadInput, match=rf": {name} does not take \({ARGUMENTS[name]}\): give a function"):
        fedray.run(KEYS, method=of)


def bad_step(setting: Setting) -> Method:
    phase = federated(setting)
    return Method("mine", replace(phase, server=phase.server._replace(step=taking("state, stats"))))


def bad_bytes(setting: Setting) -> Method:
    phase = federated(setting)
    return Method("mine", replace(phase, compress=phase.compress._replace(bytes=taking("client"))))


def bad_correction(setting: Setting) -> Method:
    correction = Correction("c", taking("own"), taking("own, shared, delta, length"))
    return Method("mine", federated(setting, pieces=[correction]))


def bad_finish(setting: Setting) -> Method:
    return Method("mine", federated(setting, pieces=[Finish(taking("final"))]))


def bad_loss(setting: Setting) -> Method:
    return Method("mine", federated(setting, local=replace(setting.local, loss=LocalLoss(taking("outputs, targets")))))


@pytest.mark.parametrize(
    ("thing", "says"),
    [
        (bad_step, r"server\.step does not take \(state, stats, t\)"),
        (bad_bytes, r"compress\.bytes does not take \(client, tier\)"),
        (bad_correction, r"Correction\.offset does not take \(own, shared\)"),
        (bad_finish, r"Finish\.finish does not take \(start, final\)"),
        (bad_loss, r"local\.loss: it does not take \(outputs, targets, context\)"),
    ],
)
def test_an_ingredient_of_a_method_with_other_arguments_was_found_out_while_it_trained(thing: Any, says: str) -> None:
    with pytest.raises(BadInput, match=rf"{says}: give a function"):
        fedray.run(KEYS, method=thing)


TURN = count()


def drawn_partition(labels: Any, clients: int, _generator: Any, _options: Any) -> Any:
    return np.array_split(np.random.permutation(len(labels)), clients)


def drawn_selection(known: Any, number: int, _generator: Any, _options: Any) -> Any:
    return np.roll(known.client, next(TURN))[:number]


@pytest.mark.parametrize(("kind", "thing"), [("partition", drawn_partition), ("selection", drawn_selection)])
def test_a_rule_that_draws_outside_its_generator_made_a_run_that_nobody_could_repeat(kind: str, thing: Any) -> None:
    with pytest.raises(
        BadInput, match=rf"{kind}\.name = .*, asked again, returns .* could be repeated: draw from its generator"
    ):
        run(kind, thing)


def test_an_optimizer_of_torch_that_needs_a_closure_ended_in_a_bare_type_error_about_the_data() -> None:
    with pytest.raises(
        BadInput, match=r"^local\.optimizer = LBFGS: its step needs a closure, which clients do not have"
    ):
        fedray.run(KEYS, optimizer=torch.optim.LBFGS)


def test_layers_in_a_list_were_told_to_require_gradients() -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.layers = [nn.Linear(64, 10)]

    with pytest.raises(BadInput, match=r"no trainable parameter: keep layers as attributes or in an nn\.ModuleList"):
        fedray.run(KEYS, model=Listed)


def test_what_does_not_say_what_it_takes_is_taken() -> None:
    assert takes_positional(iter, 5) and explain_uncallable(iter, "a, b, c") is None
    assert not takes_positional(lambda x: x, 1, ["y"]) and takes_positional(
        lambda x, **_more: x, 1, ["number", "thing"]
    )
