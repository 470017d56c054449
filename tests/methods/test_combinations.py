"""What goes together, as specifications, the page on combinations and the README say it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from reference_methods import write_readme
from small import NEEDS, of_method, scenario

from fedray.assembly.study import build_study
from fedray.core.errors import BadInput
from fedray.methods import METHOD_SPECS
from fedray.scenario.loader import read_scenario

OPTIONS: dict[str, dict[str, Any]] = {"ditto": {"lambda": [0.1, 1.0]}, "lg_fedavg": {"shared_layers": 1}}
README = (Path(__file__).parents[2] / "README.md").read_text()
CHANGES: dict[str, dict[str, Any]] = {
    "several models": {"method": {"models": 3}},
    "robust": {"server": {"robust": "median", "coefficients": "fedavg"}},
    "optimizer": {"server": {"optimizer": "yogi"}},
}
EVERYTHING: dict[str, Any] = {
    "participation": {"per_round": 2, "selection": "oort", "overcommit": 2, "dropout": 0.1, "deadline": 9.0},
    "compress": {"kind": "topk", "ratio": 0.5, "error_feedback": True},
    "clients": {"number": 6, "tiers": {"fast": {"share": 0.5}, "slow": {"share": 0.5, "seconds_per_step": 1.0}}},
}


@pytest.mark.parametrize("method", sorted(METHOD_SPECS.keys() - {"scaffold"}))  # which has all of this, with plain SGD
def test_the_page_on_what_combines_names_every_exception(method: str) -> None:
    """All ways to draw, to compress and to schedule at once are what a method combines with, or the page names it."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "combine_methods.md").read_text()
    table = page.partition("## Exceptions")[2].partition("\n## ")[0]
    exceptions = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.rpartition(" | ")[0])}
    random: dict[str, Any] = {"schedule": {"kind": "random"}}
    changes = {"any": {**random, "method": {"models": 2}}, "clients": random, "one": {}}[METHOD_SPECS[method].models]
    keys = scenario({"method": {"name": method}}, NEEDS.get(method, {}), changes, EVERYTHING)
    try:
        build_study(read_scenario(keys))
        assert method not in exceptions
    except BadInput as refused:
        assert method in exceptions, refused


def test_the_readme_names_all_methods() -> None:
    """`python docs/_ext/reference_methods.py` writes it."""
    assert write_readme(README) == README


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("method", METHOD_SPECS)
def test_a_method_combines_with_what_its_specification_says(method: str, change: str) -> None:
    """What is allowed builds, what is not is one line."""
    spec = METHOD_SPECS[method]
    allowed = {"several models": spec.models == "any", "robust": spec.robust, "optimizer": spec.optimizer}
    tree = of_method(method, CHANGES[change])
    if allowed[change]:
        assert build_study(read_scenario(tree)).method.name == method
        return
    with pytest.raises(BadInput, match=r"one model|server") as wrong:
        build_study(read_scenario(tree))
    assert "\n" not in str(wrong.value)


@pytest.mark.parametrize("method", METHOD_SPECS)
def test_a_method_keeps_private_state_where_its_specification_says_so(method: str) -> None:
    phase = build_study(
        read_scenario(of_method(method, {"method": OPTIONS.get(method, {}), "data": {"hold_out": 0.2}}))
    ).method.phase
    private = METHOD_SPECS[method].private
    assert bool(phase.own) == bool(private and ", if " not in private)
