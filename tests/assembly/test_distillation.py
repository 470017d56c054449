"""What the server of a user's own method holds and asks: rows that no client has, and what models say of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from own_names import forgetting_names
from small import scenario

import fedray
from fedray.assembly.distillation import share_of_server
from fedray.core.errors import BadInput
from fedray.core.types import State
from fedray.methods import Answer, Method, Setting, federated
from fedray.scenario.loader import read_scenario

KEYS = scenario({"rounds": 1, "report": False, "data": {"limit": 90}, "method": {"name": "judged", "models": 2}})


@pytest.fixture(autouse=True)
def names() -> Iterator[None]:
    with forgetting_names():
        yield


def judged(setting: Setting) -> Method:
    """Fed-ensemble of whose models the one answers that has the least loss on the server's rows."""

    def answer(state: State) -> Answer:
        x, y = setting.server_rows(0)
        with torch.no_grad():
            said = setting.outputs(state.models, x)
        losses = [float(torch.nn.functional.cross_entropy(one, y)) for one in said]
        return Answer(state, setting.models, np.eye(setting.models)[[int(np.argmin(losses))]])

    return Method("judged", federated(setting), answer)


def test_the_server_of_ones_own_method_had_no_rows_and_no_network() -> None:
    fedray.register("method", "judged", judged, options={"server_data": 0.2})
    run = fedray.run(KEYS)
    x, y = run.study.shards.server(0)
    assert len(y) == 18  # of 90 training rows
    said = run.predict(x.numpy()).members
    assert len(said) == 1  # models of weight 0 do not answer
    module = run.study.net.module.eval()
    inputs = run.study.shards.normalize(x[None], torch.tensor([0]))[0]
    losses, probabilities = [], []
    for model in run.models:
        module.load_state_dict(model)
        with torch.no_grad():
            out = module(inputs)
        losses.append(float(torch.nn.functional.cross_entropy(out, y)))
        probabilities.append(out.softmax(-1).numpy())
    assert np.allclose(said[0], probabilities[int(np.argmin(losses))], atol=1e-6)


def test_an_option_of_ones_own_method_took_rows_from_clients_by_its_name() -> None:
    fedray.register("method", "checked", judged, options={"validation": 0.5})
    assert share_of_server(read_scenario({"method": {"name": "checked"}})) == 0


@pytest.mark.parametrize(
    ("share", "says"),
    [
        (1.0, r"method\.server_data = 1\.0: give the share of the training rows that the server holds"),
        (-0.1, r"method\.server_data = -0\.1: give the share"),
        (1e-9, r"method\.server_data = 1e-09 leaves the server no rows: raise it"),
        (0, r"method\.server_data: the server holds no rows: declare this option of the method"),
    ],
)
def test_a_share_that_cannot_be_held_is_one_line(share: Any, says: str) -> None:
    fedray.register("method", "judged", judged, options={"server_data": share})
    with pytest.raises(BadInput, match=says):
        fedray.run(KEYS)


def test_models_of_another_length_are_one_line() -> None:
    def answer(setting: Setting) -> Method:
        x = torch.zeros(1, 1, 8, 8)
        return Method("judged", federated(setting), lambda state: Answer(setting.outputs(state.models[:, 1:], x), 1))  # type: ignore[arg-type]

    with pytest.raises(BadInput, match=r"outputs of models of shape \[2, \d+\]: give rows of \d+ numbers, \[S, d\]"):
        fedray.run({**KEYS, "method": {"models": 2}}, method=answer)


TOLD = {"server_data": 0.0, "inputs": "noise", "input_rows": 500}


def told(setting: Setting) -> Method:
    """Fed-ensemble that keeps what its server has."""
    phase = federated(setting)

    def init(models: torch.Tensor) -> dict[str, torch.Tensor]:
        found = [setting.server_inputs(world) for world in range(len(setting.seeds))]
        return {**phase.server.init(models), "inputs": torch.stack(found)}

    return Method("told", replace(phase, server=phase.server._replace(init=init)))


def test_the_server_of_ones_own_method_has_the_inputs_that_its_options_name() -> None:
    """`inputs` of a method of one's own was read by nobody."""
    fedray.register("method", "told", told, options=TOLD, models=2)
    keys = {**KEYS, "replicates": 2, "data": {"limit": 90}}
    noise = fedray.run({**keys, "method": "told"}).progress.state.extra["inputs"]
    assert noise.shape[:2] == (2, 500) and not torch.equal(noise[0], noise[1])  # one draw for each replicate
    assert abs(float(noise.mean())) < 0.05 and abs(float(noise.std()) - 1.0) < 0.05
    other = fedray.run({**keys, "method": {"name": "told", "inputs": "digits", "input_rows": 50}})
    assert other.progress.state.extra["inputs"].shape[:2] == (2, 50)
    withheld = fedray.run({**keys, "method": {"name": "told", "inputs": "withheld", "server_data": 0.2}})
    x = withheld.study.shards.server(1)[0]
    rows = withheld.study.shards.normalize(x[None], torch.tensor([1]))[0]
    assert torch.equal(withheld.progress.state.extra["inputs"][1], rows)


@pytest.mark.parametrize("inputs", ["noise", "digits"])
def test_the_server_has_inputs_as_the_clients_have_them(inputs: str) -> None:
    """With `standardize: false` the clients' went from 0 to 16, and the server's were standardized."""
    fedray.register("method", "told", told, options=TOLD, models=2)
    found = []
    for standardize in (False, True):
        keys = {**KEYS, "data": {"limit": 90, "standardize": standardize}}
        done = fedray.run({**keys, "method": {"name": "told", "inputs": inputs, "input_rows": 50}})
        found.append(done.progress.state.extra["inputs"][0])
    data = done.study.shards.data
    shift, scale = (torch.from_numpy(values[0]) for values in (data.shift, data.scale))
    torch.testing.assert_close(found[0], shift + scale * found[1], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"inputs": "mnistt"}, "method.inputs = mnistt is no data set: choose withheld, noise or a name"),
        ({"input_rows": 0}, "method.input_rows = 0: give how many inputs the server has, at least 1"),
    ],
)
def test_a_wrong_name_of_inputs_is_said(option: dict[str, Any], says: str) -> None:
    fedray.register("method", "told", told, options=TOLD, models=2)
    with pytest.raises(BadInput) as caught:
        fedray.run({**KEYS, "method": {"name": "told", **option}})
    assert says in str(caught.value)
