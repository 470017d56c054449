"""Options of an own method are checked: the declared ones by name and kind, others by what the method reads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from small import scenario

import fedray
from fedray.assembly.study import build_study
from fedray.core.errors import BadInput
from fedray.core.method import Method
from fedray.methods import METHODS, Setting, federated
from fedray.scenario import names
from fedray.scenario.loader import read_scenario

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
        METHODS.pop(name)
        names._OWN["method"].pop(name)
        names._DECLARED.pop(("method", name), None)


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


def test_declared_options_have_defaults_and_kinds() -> None:
    assert read_scenario({"method": {"name": "declares"}}).method.options == {"sigma": 0.05}
    with pytest.raises(BadInput, match=r"^method.sigma = 'big' is not a number"):
        read_scenario({"method": {"name": "declares", "sigma": "big"}})
