"""Every function of a user's method is guarded: what it raises and what it returns wrongly is one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch
from small import scenario

import fedray
from fedray.assembly.own_methods import guard_method, method_checks, phase_checks
from fedray.assembly.study import build_study
from fedray.core.errors import BadInput, FedrayError
from fedray.core.method import Compress, Method, Phase, Server
from fedray.core.parts import PartStep
from fedray.core.types import Clients, Plan, State, Tier
from fedray.methods import Answer, Correction, Finish, PersonalPasses, PrivateLayers, Setting, federated, federated_each
from fedray.scenario.loader import read_scenario

PLAN = Plan(np.arange(3), np.zeros(3, np.int64), np.zeros(3, np.int64))
STATE = State(torch.zeros(1, 2), torch.zeros(1, 0, dtype=torch.int64), {})
TWO = State(torch.zeros(2, 2), torch.zeros(2, 0, dtype=torch.int64), {})
STEPS = [PartStep(STATE, STATE, {})]
LOSS = np.ones(3)


@lru_cache
def plain() -> Method:
    return build_study(read_scenario(scenario({"method": {"name": "fedavg"}, "data": {"limit": 60}}))).method


def guard(**fields: Any) -> Method:
    """FedAvg with some functions replaced, of the method or of its phase, all of them guarded."""
    own = {name: value for name, value in fields.items() if name in Phase.__dataclass_fields__}
    whole: dict[str, Any] = {name: value for name, value in fields.items() if name not in own}
    phase: Any = replace(plain().phase, **own)
    clients = Clients((Tier("strong", 2), Tier("weak", 4)))
    return guard_method(replace(plain(), phase=phase, **whole), "method mine", worlds=1, clients=clients, layers=())


def list_functions(kind: type) -> set[str]:
    """The fields that hold a function, or may hold one."""
    hints = get_type_hints(kind, localns={"Tensor": torch.Tensor, "Sequence": Sequence})
    return {name for name, hint in hints.items() if any(get_origin(one) is Callable for one in (hint, *get_args(hint)))}


def test_half_of_the_functions_were_not_guarded() -> None:
    assert list_functions(Phase) == phase_checks(1, 6, 1).keys()
    assert list_functions(Method) == method_checks(1, 1).keys()
    parts = {Server: {"init", "reduce", "step"}, Compress: {"bytes", "apply"}, Correction: {"offset", "update"}}
    assert {part: list_functions(part) for part in parts} == parts


WRONG: list[tuple[str, Any, tuple[Any, ...], str]] = [
    ("steps", 3, (PLAN, PLAN.client), "an int: return a pair, the steps and the samples of each job"),
    ("steps", (PLAN.client, 3), (PLAN, PLAN.client), r"an int: return an array of whole numbers, \[3\]"),
    ("steps", (PLAN.client[:2],) * 2, (PLAN, PLAN.client), r"shape \[2\] for 3 jobs: return the steps of each job"),
    ("traffic", 3, (0, PLAN), "an int: return a pair, the bytes up and the bytes down of each job"),
    ("remember", None, (0, STATE, PLAN, LOSS), "None: return a State"),
    ("ask", 3, (STATE, {}), "an int: return a State"),
    ("join", 3, (0, STEPS), "an int: return a list of 1 tensors"),
    ("join", [], (0, STEPS), "0 tensors: return a list of 1 tensors"),
    ("join", [torch.zeros(2, 2)], (0, STEPS), r"models of a part that are shape \[2, 2\]: return \[1, 2\]"),
    (
        "answer",
        Answer(STATE._replace(models=torch.zeros(1, 3)), 1),
        (STATE,),
        r"an Answer with models of shape \[1, 3\]",
    ),
    (
        "answer",
        Answer(STATE._replace(models=torch.zeros(2, 2), counters=torch.zeros(1, 1)), 2),
        (STATE._replace(counters=torch.zeros(1, 1)),),
        r"an Answer with counters of shape \[1, 1\]: give \[2, 1\], a row for each",
    ),
    ("answer", Answer(STATE, 1, tiers=np.ones((1, 1))), (STATE,), r"an Answer whose tiers are shape .*, \[1, 2, 1\]"),
    (
        "answer",
        Answer(STATE, 1, tiers=np.array([[[1.0], [0.0]]])),
        (STATE,),
        "an Answer whose tiers .* all 0 in a tier",
    ),
    (
        "answer",
        Answer(TWO, 2, np.array([[1.0, 0.0]]), tiers=np.array([[[1.0, 0.0], [0.5, 0.5]]])),
        (STATE,),
        "an Answer whose tiers weigh a model that has no weight: give it some in weights",
    ),
    ("explain_end", 5, (STATE,), "an int: return words, or '' while training goes on"),
]


@pytest.mark.parametrize(("name", "found", "given", "says"), WRONG)
def test_what_a_function_returns_wrongly_is_one_line(name: str, found: Any, given: tuple[Any, ...], says: str) -> None:
    guarded = guard(**{name: lambda *_: found})
    with pytest.raises(BadInput, match=f"^method mine: {name} returned {says}"):
        getattr(guarded.phase if name in phase_checks(1, 6, 1) else guarded, name)(*given)


@pytest.mark.parametrize("name", sorted({*phase_checks(1, 6, 1), *method_checks(1, 1)}))
def test_what_a_function_raises_is_one_line(name: str) -> None:
    guarded = guard(**{name: lambda *_: 1 / 0})
    function = getattr(guarded.phase if name in phase_checks(1, 6, 1) else guarded, name)
    with pytest.raises(FedrayError, match=f"^method mine: {name} raised ZeroDivisionError"):
        function()
    with pytest.raises(BadInput, match=f"^method mine: {name} is an int: give a function"):
        guard(**{name: 3})


def test_what_functions_return_right_is_handed_on() -> None:
    models = [torch.ones(1, 2)]
    guarded = guard(
        steps=lambda _, size: (size, size), ask=lambda *_: None, join=lambda *_: models, explain_end=lambda _: ""
    )
    assert guarded.phase.steps is not None and guarded.phase.ask is not None
    assert guarded.join is not None and guarded.explain_end is not None
    assert guarded.phase.steps(PLAN, PLAN.client) == (PLAN.client, PLAN.client)
    assert (guarded.phase.ask(STATE, {}), guarded.explain_end(STATE)) == (None, "")
    assert guarded.join(0, STEPS) is models


def test_nothing_public_made_an_ensemble_rule_of_ones_own() -> None:
    """A rule that asks the first model alone answers what that model says, and trains what Fed-ensemble trains."""

    def first(setting: Setting) -> Method:
        def answer(state: State) -> Answer:
            weights = np.zeros((len(setting.seeds), setting.models))
            weights[:, 0] = 1.0
            return Answer(state, setting.models, weights)

        return Method("first", federated(setting), answer)

    keys = scenario({"rounds": 1, "method": {"models": 2}, "data": {"limit": 90}, "report": False})
    run, plain = fedray.run(keys, method=first), fedray.run(keys)
    images = run.study.split("test", 0)[0].numpy()[:5]
    first_of_all, everyone = run.predict(images), plain.predict(images)
    assert np.allclose(first_of_all.mean, everyone.members[0]) and not np.allclose(everyone.mean, everyone.members[0])
    assert run.summary["model_hash"] == plain.summary["model_hash"]


def test_the_default_number_of_models_was_called_a_wish_of_the_user() -> None:
    def one(setting: Setting) -> Method:
        return Method("one", federated(replace(setting, models=1)))

    with pytest.raises(
        BadInput, match=r"^method.models = 5, but method .*one trains one model: set method.models = 1$"
    ):
        fedray.run(scenario({"method": {"name": "fed_ensemble", "models": None}}), method=one)


def test_clients_without_a_model_of_their_own_were_not_seen() -> None:
    with pytest.raises(BadInput, match="one_model_per_client, but it trains 1 models for 6 clients: set method.models"):
        guard(one_model_per_client=True)


def test_what_finishes_local_training_and_what_is_memory_are_checked() -> None:
    wrong: Any = 3
    guarded = guard(pieces=(Finish(lambda start, _final: start[:1]),)).phase.find(Finish)
    assert guarded is not None
    with pytest.raises(BadInput, match=r"^method mine: Finish\.finish returned .*shape \[1, 2\]"):
        guarded.finish(torch.zeros(3, 2), torch.zeros(3, 2))
    with pytest.raises(BadInput, match=r"^method mine: Finish\.finish is an int: give a function"):
        guard(pieces=(Finish(wrong),))
    with pytest.raises(BadInput, match=r"PrivateLayers\.memory = \('head',\): name some of its layers, \(\)"):
        guard(pieces=(PrivateLayers((), memory=("head",)),))


def test_a_field_that_is_a_piece_now_is_one_line_that_names_it() -> None:
    def mine(setting: Setting) -> Method:
        return Method("mine", replace(federated(setting), up_vectors=1))  # type: ignore[call-arg]

    with pytest.raises(BadInput, match=r"mine: up_vectors is a piece now: call phase\.add\(Vectors\(\.\.\.\)\)$"):
        fedray.run(scenario(), method=mine)


def test_weights_of_tiers_beside_models_of_the_clients_own_are_refused() -> None:
    passes = (PersonalPasses((plain().phase.local,)),)
    answer = guard(answer=lambda state: Answer(state, 1, tiers=np.ones((1, 2, 1))), pieces=passes).answer
    assert answer is not None
    with pytest.raises(BadInput, match="tiers, but its known clients have models or weights of their own: leave tiers"):
        answer(STATE)


def test_a_model_for_each_client_beside_networks_was_told_a_remedy_that_is_refused() -> None:
    """It said to set method.models = 6, and then that the field is not read beside parts."""

    def both(setting: Setting) -> Method:
        parts = federated_each(setting)
        return Method("both", parts[0], parts=parts, join=lambda _t, _steps: [], one_model_per_client=True)

    fedray.register("method", "both_of_parts", both, options={"networks": []}, models=1)
    networks = [{"name": "mlp", "hidden": [4]}, {"name": "linear"}]
    keys = scenario({"method": {"name": "both_of_parts", "models": 1, "networks": networks}, "data": {"limit": 60}})
    del keys["model"]  # the list names the networks
    with pytest.raises(BadInput, match="one_model_per_client is not called beside parts"):
        build_study(read_scenario(keys))
