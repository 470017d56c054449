"""Options of own methods, partitions and selections: declared ones by name and kind, others by what is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from own_names import forgetting_names
from small import scenario

import fedray
from fedray.assembly.study import build_study
from fedray.components.selection import KnownClients
from fedray.core.errors import BadInput
from fedray.core.method import Method
from fedray.methods import Setting, federated
from fedray.scenario import names
from fedray.scenario.loader import read_scenario
from fedray.scenario.names import known_names

USED: list[float] = []


def compose(setting: Setting) -> Method:
    USED.append(setting.options.get("sigma", 0.05))
    return Method("mine", federated(setting))


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    fedray.register("method", "declares", compose, options={"sigma": 0.05})
    fedray.register("method", "reads", compose)
    yield
    for name in ("declares", "reads"):
        names._OWN.pop(("method", name))


def test_a_misspelled_option_of_an_own_method_no_longer_runs_with_the_default() -> None:
    with pytest.raises(BadInput, match=r"^method.sgma is not a key of method declares: did you mean method.sigma\?$"):
        read_scenario({"method": {"name": "declares", "sgma": 0.1}})


def test_an_option_that_an_own_method_does_not_read_is_refused() -> None:
    wrong = read_scenario(scenario({"method": {"name": "reads", "sgma": 0.1}}))
    with pytest.raises(BadInput, match=r"^method.sgma = 0.1, but reads does not read it: did you mean method.sigma\?$"):
        build_study(wrong)


@pytest.mark.parametrize("name", ["declares", "reads"])
def test_options_of_an_own_method_arrive(name: str) -> None:
    build_study(read_scenario(scenario({"method": {"name": name, "sigma": 0.5}})))
    assert USED[-1] == 0.5


def deal(labels: np.ndarray, clients: int, generator: np.random.Generator, options: Mapping[str, Any]) -> Any:
    order = generator.permutation(len(labels)) if options.get("shuffled", True) else np.arange(len(labels))
    return np.array_split(order, clients)


def choose(known: KnownClients, number: int, generator: np.random.Generator, options: Mapping[str, Any]) -> Any:
    order = generator.permutation(known.client) if options.get("drawn", True) else known.client
    return order[:number]


RULES = {"partition": (deal, "data.partition", "shuffled"), "selection": (choose, "participation.selection", "drawn")}


def run_with(kind: str, option: str) -> fedray.Run:
    section, rule = RULES[kind][1].split("."), {"name": "mine", option: False}
    few = {"rounds": 1, "participation": {"per_round": 3}}
    return fedray.run(scenario(few, {section[0]: {section[1]: rule}}), report=False)


@pytest.mark.parametrize("kind", RULES)
def test_an_option_that_an_own_rule_does_not_read_is_refused(kind: str) -> None:
    rule, section, option = RULES[kind]
    fedray.register(kind, "mine", rule)
    wrong = option + "s"
    line = rf"^{section}.{wrong} = false, but .*{rule.__name__} does not read it: did you mean {section}.{option}\?$"
    with pytest.raises(BadInput, match=line):
        run_with(kind, wrong)
    run_with(kind, option)


@pytest.mark.parametrize("kind", RULES)
def test_a_declared_option_need_not_be_read(kind: str) -> None:
    rule, _, option = RULES[kind]
    fedray.register(kind, "mine", rule, options={option: True})
    with pytest.raises(BadInput, match="later is not a key"):
        run_with(kind, "later")
    fedray.register(kind, "mine", rule, options={option: True, "later": True})
    assert run_with(kind, "later").summary["rounds"] == 1


def test_declared_options_have_defaults_and_kinds() -> None:
    assert read_scenario({"method": {"name": "declares"}}).method.options == {"sigma": 0.05}
    with pytest.raises(BadInput, match=r"^method.sigma = 'big' is not a number"):
        read_scenario({"method": {"name": "declares", "sigma": "big"}})


def test_a_registered_method_of_one_model_had_to_be_told_so_in_every_scenario() -> None:
    def single(setting: Setting) -> Method:
        return Method("single", federated(replace(setting, models=1)))

    with forgetting_names():
        fedray.register("method", "single", single)
        with pytest.raises(BadInput, match=r"= 5, but method single trains one model: .*or register it with mod"):
            build_study(read_scenario(scenario({"method": {"name": "single"}})))
        fedray.register("method", "single", single, models=1)
        assert build_study(read_scenario(scenario({"method": {"name": "single"}}))).method.phase.models == 1
        fedray.register("method", "several", compose, options={"sigma": 0.1}, models=3)
        assert read_scenario({"method": {"name": "several"}}).method.models == 3
        assert read_scenario({"method": {"name": "several", "models": 2}}).method.models == 2
        assert known_names("method")["several"].endswith("options: sigma = 0.1; method.models: 3")
        for models in (0, 1.0, True, "three"):
            with pytest.raises(BadInput, match="^method.name = 'several': models = .*: give the number of models"):
                fedray.register("method", "several", compose, models=models)  # type: ignore[arg-type]
        with pytest.raises(BadInput, match=r"^model.name = 'wide': models = 3 is for methods: leave it out$"):
            fedray.register("model", "wide", compose, models=3)
    assert read_scenario({"method": "fed_ensemble"}).method.models == 5
