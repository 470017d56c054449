"""A method of one's own: its functions, its parts, and the keys beside it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch
from modules import ask_modules
from small import scenario

import fedray
from fedray.assembly.distillation import share_of_server
from fedray.assembly.own_methods import guard_method, method_checks, phase_checks
from fedray.assembly.study import build_study
from fedray.core.errors import FedrayError
from fedray.core.method import Phase, Server
from fedray.core.types import Clients, State, Tier
from fedray.methods import Answer, Compress, Correction, Method, Setting, federated
from fedray.scenario.loader import read_scenario


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


@pytest.mark.parametrize("name", sorted({*phase_checks(1, 6, 1), *method_checks(1, 1)}))
def test_what_a_function_raises_is_one_line(name: str) -> None:
    guarded = guard(**{name: lambda *_: 1 / 0})
    function = getattr(guarded.phase if name in phase_checks(1, 6, 1) else guarded, name)
    with pytest.raises(FedrayError, match=f"^method mine: {name} raised ZeroDivisionError"):
        function()


# -- What the server of a user's own method holds and asks: rows that no client has, and what models say of them

JUDGED = scenario({"rounds": 1, "report": False, "data": {"limit": 90}, "method": {"name": "judged", "models": 2}})


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
    run = fedray.run(JUDGED)
    x, y = run.study.shards.server(0)
    assert len(y) == 18  # of 90 training rows
    said = run.predict(x.numpy()).members
    assert len(said) == 1  # models of weight 0 do not answer
    each = ask_modules(run.study, x, run.progress.state.models)
    losses = [float(torch.nn.functional.cross_entropy(out, y)) for out in each]
    assert np.allclose(said[0], each[int(np.argmin(losses))].softmax(-1), atol=1e-6)


def test_an_option_of_ones_own_method_took_rows_from_clients_by_its_name() -> None:
    fedray.register("method", "checked", judged, options={"validation": 0.5})
    assert share_of_server(read_scenario({"method": {"name": "checked"}})) == 0


OPTIONS = {"server_data": 0.0, "inputs": "noise", "input_rows": 500}


def told(setting: Setting) -> Method:
    """Fed-ensemble that keeps what its server has."""
    phase = federated(setting)

    def init(models: torch.Tensor) -> dict[str, torch.Tensor]:
        found = [setting.server_inputs(world) for world in range(len(setting.seeds))]
        return {**phase.server.init(models), "inputs": torch.stack(found)}

    return Method("told", replace(phase, server=phase.server._replace(init=init)))


def test_the_server_of_ones_own_method_has_the_inputs_that_its_options_name() -> None:
    fedray.register("method", "told", told, options=OPTIONS, models=2)
    keys = {**JUDGED, "replicates": 2, "data": {"limit": 90}}
    noise = fedray.run({**keys, "method": "told"}).progress.state.extra["inputs"]
    assert noise.shape[:2] == (2, 500) and not torch.equal(noise[0], noise[1])  # one draw for each replicate
    assert abs(float(noise.mean())) < 0.05 and abs(float(noise.std()) - 1.0) < 0.05
    other = fedray.run({**keys, "method": {"name": "told", "inputs": "digits", "input_rows": 50}})
    assert other.progress.state.extra["inputs"].shape[:2] == (2, 50)
    withheld = fedray.run({**keys, "method": {"name": "told", "inputs": "withheld", "server_data": 0.2}})
    x = withheld.study.shards.server(1)[0]
    rows = withheld.study.shards.scaling.normalize(x[None], torch.tensor([1]))[0]
    assert torch.equal(withheld.progress.state.extra["inputs"][1], rows)


@pytest.mark.parametrize("inputs", ["noise", "digits"])
def test_the_server_has_inputs_as_the_clients_have_them(inputs: str) -> None:
    fedray.register("method", "told", told, options=OPTIONS, models=2)
    found = []
    for standardize in (False, True):
        keys = {**JUDGED, "data": {"limit": 90, "standardize": standardize}}
        done = fedray.run({**keys, "method": {"name": "told", "inputs": inputs, "input_rows": 50}})
        found.append(done.progress.state.extra["inputs"][0])
    data = done.study.shards.data
    shift, scale = (torch.from_numpy(values[0]) for values in (data.shift, data.scale))
    torch.testing.assert_close(found[0], shift + scale * found[1], rtol=1e-5, atol=1e-4)


def test_a_correction_pulls_to_a_point_of_the_clients_own() -> None:
    """One step of a round goes along -(grad + mu (w - w_start) - mu h), with h from the client's earlier delta."""

    def pulled(mu: float) -> Callable[[Setting], Method]:
        term = Correction("own_point", lambda h, _: -mu * h, lambda h, _shared, delta, _length: (h + delta) / 2)
        return lambda setting: Method("mine", federated(setting, local=replace(setting.local, pull=mu), pieces=[term]))

    keys: dict[str, Any] = {"rounds": 2, "clients": 2, "model": {"name": "linear"}, "method": {"models": 1}}
    keys |= {"data": {"limit": 100, "partition": "iid"}, "local": {"epochs": 1, "batch_size": 100, "lr": 0.1}}
    keys |= {"runtime": "inline", "report": False, "evaluate": {"every": 1}}
    models: dict[tuple[float, int], torch.Tensor] = {}
    for mu in (0.0, 0.5):
        for rounds in (1, 2):
            models[mu, rounds] = fedray.run({**keys, "rounds": rounds}, method=pulled(mu)).progress.state.models
    start = fedray.run({**keys, "rounds": 0}, method="fedavg").progress.state.models
    h = (models[0.0, 1] - start) / 2  # the mean over two clients with equally many samples
    torch.testing.assert_close(models[0.5, 2] - models[0.0, 2], 0.1 * 0.5 * h, atol=1e-7, rtol=1e-3)
    assert float(h.abs().max()) > 1e-3
