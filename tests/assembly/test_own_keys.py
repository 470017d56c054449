"""Keys and objects beside a method of one's own: what it does not read was dropped, and recorded as if it acted."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small import scenario

import fedray
from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study
from fedray.components.compression import dense
from fedray.components.schedule import permutation
from fedray.components.servers import mean
from fedray.core.errors import BadInput, ScenarioWarning
from fedray.core.local import LocalLoss
from fedray.core.method import Local
from fedray.core.types import Plan
from fedray.methods import Method, Setting, Transform, federated, start_empty
from fedray.scenario.loader import read_scenario

KEYS = scenario({"rounds": 1, "report": False, "data": {"limit": 90}, "clients": {"number": 3}})
FIXED = Local(lr=0.05, batch_size=8, epochs=1)


def compose(make: Callable[[Setting], Any], *changes: dict[str, Any]) -> Method:
    """The method of a study whose method is a user's."""
    own = UserObjects(method=make)
    return build_study(read_scenario(scenario(KEYS, *changes)), own).method


@contextmanager
def nothing_said() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def with_local(local: Callable[[Setting], Local]) -> Callable[[Setting], Method]:
    return lambda setting: Method("own", federated(setting, local=local(setting)))


def smooth(outputs: Any, targets: Any, context: Any) -> Any:
    return 0.5 * context.objective(outputs, targets)


def test_a_loss_and_an_optimizer_were_dropped_by_a_method_with_a_local_of_its_own() -> None:
    fixed = with_local(lambda _: FIXED)
    kept = with_local(lambda setting: replace(setting.local, pull=0.1))
    still = Transform(start_empty, lambda gradient, state, _parameters, _context: (0.0 * gradient, state), name="still")
    with pytest.raises(BadInput, match=r"local\.loss = smooth, but own does not read it: .* replace\(setting\.local"):
        fedray.run(KEYS, method=fixed, loss=smooth)
    for optimizer in (still, torch.optim.AdamW):
        with pytest.raises(BadInput, match=r"local\.optimizer = \w+, but own does not read it"):
            fedray.run(KEYS, method=fixed, optimizer=optimizer)
    run = fedray.run(KEYS, method=kept, loss=smooth, optimizer=still)
    assert run.study.method.phase.local.loss.name == "smooth"  # type: ignore[union-attr]  # it has a loss


def test_a_loss_that_is_built_on_the_scenarios_is_one_that_reads_it() -> None:
    def wrap(setting: Setting) -> Local:
        inner = setting.local.loss
        assert inner is not None
        loss = LocalLoss(lambda o, t, c: inner.function(o, t, c) + 0.01 * o.square().mean(-1), inner.reads)
        return replace(setting.local, loss=loss)

    with nothing_said():
        run = fedray.run(KEYS, method=with_local(wrap), loss=smooth, method__models=1)
    assert run.metrics["round"] == 1


def test_a_loss_in_whose_place_a_method_has_another_one_is_said() -> None:
    other = LocalLoss(lambda o, t, c: 0.25 * c.objective(o, t), name="quarter")
    with pytest.warns(ScenarioWarning, match=r"local\.loss = smooth, but own trains with one of its own"):
        fedray.run(KEYS, method=with_local(lambda setting: replace(setting.local, loss=other)), loss=smooth)


def test_no_key_that_nobody_wrote_is_said_to_be_replaced() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        build_study(read_scenario({"clients": 4}), UserObjects(method=with_local(lambda _: Local(lr=0.05))))
    assert [str(one.message) for one in said] == []


def test_keys_that_a_local_of_its_own_replaces_are_said() -> None:
    line = "local.lr = 3.0, local.epochs = 5 does not change how clients train with own"
    with pytest.warns(ScenarioWarning, match=line):
        compose(with_local(lambda _: FIXED), {"local": {"lr": 3.0, "epochs": 5}})
    with pytest.warns(ScenarioWarning, match=r"local.steps = 7 does not change"):
        compose(with_local(lambda _: FIXED), {"local": {"steps": 7, "epochs": None}})
    with nothing_said():
        compose(with_local(lambda _: FIXED))
        half = compose(with_local(lambda setting: replace(setting.local, lr=0.5 * setting.local.lr)))
    assert half.phase.local.lr == 0.025  # the key acts


def never(*_: Any) -> Any:
    raise AssertionError("it is replaced")


@pytest.mark.parametrize(
    ("ingredient", "usual", "keys", "line"),
    [
        ("merge", mean, {"server": {"robust": "median"}}, r"server\.robust = median takes the place of the merge of"),
        ("compress", dense, {"compress": {"kind": "topk", "ratio": 0.5}}, r"the section compress takes the place"),
        ("assign", permutation, {"schedule": {"kind": "random"}}, r"schedule\.kind = random takes the place"),
    ],
)
def test_a_key_in_the_place_of_the_core_of_a_method_is_said(
    ingredient: str, usual: Any, keys: dict[str, Any], line: str
) -> None:
    named: Any = federated
    with pytest.warns(ScenarioWarning, match=line):
        compose(lambda setting: Method("own", named(setting, **{ingredient: never})), keys)
    with nothing_said():
        compose(lambda setting: Method("own", named(setting, **{ingredient: usual})), keys)
        if ingredient != "merge":  # a method of fedray's, whose ingredients keys may replace
            build_study(read_scenario(scenario(KEYS, {"method": {"name": "shefl"}}, keys)))


def count(setting: Setting, whole: bool) -> Method:
    phase = federated(setting)

    def traffic(_t: int, plan: Plan) -> tuple[Any, Any]:
        sent = np.full(len(plan.client), 7) if whole else phase.compress.bytes(plan.client, 0 * plan.client)
        return sent, sent

    return Method("own", replace(phase, traffic=traffic))


def test_a_compression_that_no_byte_followed_was_silent() -> None:
    """Top-k changed the uploads of a method that counts the bytes of something else, which stayed what they were."""
    topk = {"compress": {"kind": "topk", "ratio": 0.1}}
    with pytest.warns(ScenarioWarning, match=r"compress\.kind = topk changes the uploads of own, but not the bytes"):
        compose(lambda setting: count(setting, True), topk)
    with nothing_said():
        compose(lambda setting: count(setting, True))
        compose(lambda setting: count(setting, False), topk)


def test_weights_of_clients_that_answer_with_their_own_model_are_said_not_to_act() -> None:
    def own(setting: Setting) -> Method:
        return Method("own", federated(setting), one_model_per_client=True)

    clients = {"clients": {"number": 3}, "method": {"models": 3}}
    with pytest.warns(ScenarioWarning, match=r"predict\.gamma = 0\.1 cannot act, because a known client of own"):
        compose(own, clients | {"predict": {"gamma": 0.1}})
    with nothing_said():
        compose(own, clients | {"predict": {"gamma": math.inf}})


def test_a_number_of_models_that_a_method_does_not_read_was_silent() -> None:
    def a_model_a_client(setting: Setting) -> Method:
        return Method("own", federated(replace(setting, models=setting.clients.number)))

    with pytest.warns(ScenarioWarning, match=r"method\.models = 2 cannot act, because own trains 3 models"):
        compose(a_model_a_client, {"method": {"models": 2}})
    with nothing_said():
        compose(a_model_a_client, {"method": {"models": 3}})
        compose(a_model_a_client, {"method": {"models": None}})
