"""Keys without a value: misspelled ones are refused in the words in which one with a value is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fedray.core.errors import BadInput
from fedray.scenario import names
from fedray.scenario.loader import dump_scenario, read_scenario
from fedray.scenario.nested import expand
from fedray.scenario.schema import section_types
from fedray.tuning.sweep import read_sweep

SWEEP: dict[str, Any] = {"space": {"local.lr": [0.1, 0.2]}, "objectives": "accuracy"}
NEEDED: dict[str, dict[str, Any]] = {  # keys that a section must have
    "stop.roundz": {"stop.metric": "accuracy"},
    "evaluate.stop_at.roundz": {"evaluate.stop_at.metric": "accuracy", "evaluate.stop_at.value": 0.9},
    "evaluate.target.roundz": {"evaluate.target.metric": "accuracy", "evaluate.target.value": 0.9},
}


def misspelled() -> Iterator[str]:
    """A key that no section has, in each of them."""
    for section in section_types():
        if section != "table.*":  # a list
            yield ".".join(filter(None, (section.replace("*", "a"), "roundz")))


def refusal(read: Any, *given: Any) -> str:
    with pytest.raises(BadInput, match="is not a key of") as told:
        read(*given)
    assert "\n" not in str(told.value)
    return str(told.value)


@pytest.mark.parametrize("key", list(misspelled()))
def test_a_misspelled_key_without_a_value_was_taken(key: str) -> None:
    """In a file, an override, a cell, and the scenario and the overrides of a sweep: as one with a value."""
    none = expand({key: None})
    wanted = refusal(read_scenario, expand({key: 1, **NEEDED.get(key, {})}))
    assert wanted.startswith(f"{key} is not a key of")
    assert refusal(read_scenario, none) == wanted
    assert refusal(read_scenario, {"rounds": 3}, [f"{key}="]) == wanted
    cell = {"table": [{"name": "one", "overrides": {key: None}}]}
    assert refusal(read_scenario, cell) == f"table.one: {wanted}"
    assert refusal(read_sweep, {**SWEEP, "scenario": none}) == wanted
    assert refusal(read_sweep, {**SWEEP, "scenario": {}, "overrides": {key: None}}) == wanted


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("method: {name: fedprox, KEY}", "muu"),
        ("method: {name: fedavg, KEY}", "mu"),
        ("model: {name: cnn, KEY}", "chanels"),
        ("data: {name: digits, KEY}", "lmit"),
        ("data: {partition: {name: dirichlet, KEY}}", "alfa"),
        ("participation: {per_round: 2, selection: {name: oort, KEY}}", "explore"),
        ("method: {name: stacking, bases: [{name: mlp, KEY}]}", "hiden"),
        ("method: {name: feddf, networks: [{name: mlp, KEY}]}", "hiden"),
        ("table: [{name: a, KEY}]", "overides"),
        ("local.lrr", "lrr"),
    ],
)
def test_a_misspelled_option_without_a_value_was_taken(section: str, key: str) -> None:
    pair = [section.replace("KEY", f"{key}: {value}") for value in ("1", "")]
    one, other = (
        f"{text}:{value}\n" if text == section else f"{text}\n" for text, value in zip(pair, (" 1", ""), strict=True)
    )
    assert refusal(read_scenario, one) == refusal(read_scenario, other)


def test_a_known_key_without_a_value_has_its_default() -> None:
    """Also an option of the name that the other tree gives, which it removes; own names without options take any."""
    assert read_scenario("rounds:\nlocal: {lr: }\ndata: {partition: {file: }}\n") == read_scenario({})
    fedprox = {"method": {"name": "fedprox", "mu": 0.1}}
    assert read_scenario(fedprox, ["method={name: fedavg, mu: }"]).method.name == "fedavg"
    assert read_scenario(fedprox, ["method.mu="]).method.options == {
        "mu": read_scenario("method: fedprox").method.options["mu"]
    }
    table = {**fedprox, "table": [{"name": "one", "overrides": {"method": {"name": "fedavg", "mu": None}}}]}
    assert read_scenario(dump_scenario(read_scenario(table))).table[0].overrides["method.name"] == "fedavg"
    names.allow_name("method", "any_options")
    names.allow_name("loss", "smoothed", options={"smoothing": 0.1})
    read_scenario("method: {name: any_options, sigma: }\n")
    loss = {"local": {"loss": "smoothed", "smoothing": 0.2}}
    assert read_scenario(loss, ["local.loss=", "local.smoothing="]).local.loss is None
    assert refusal(read_scenario, loss, ["local.smothing="]) == refusal(read_scenario, loss, ["local.smothing=1"])
