"""What a value may be: numbers that YAML 1.1 reads as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fedray.core.errors import BadInput
from fedray.core.validators import gpu_share, real, whole
from fedray.scenario.loader import read_scenario
from fedray.scenario.yaml_text import load_yaml

ROOT = Path(__file__).parents[2]
FILES = sorted(path for folder in ("scenarios", "tune") for path in (ROOT / folder).rglob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_file_is_the_same_to_every_reader_of_yaml(path: Path) -> None:
    """YAML 1.1 reads 12.5e6 as text, so that `fedray.run(yaml.safe_load(file))` was refused."""
    assert yaml.safe_load(path.read_text()) == load_yaml(path)


def test_a_number_with_an_exponent_passes_as_text() -> None:
    tree: dict[str, Any] = yaml.safe_load(
        "{rounds: 1e1, clients: {tiers: {weak: {uplink: 12.5e6}}}, local: {lr: 1e-3}}"
    )
    assert tree["clients"]["tiers"]["weak"]["uplink"] == "12.5e6", "YAML 1.1 reads it as text"
    scenario = read_scenario(tree)
    assert (scenario.rounds, scenario.clients.tiers["weak"].uplink, scenario.local.lr) == (10, 12.5e6, 1e-3)
    assert (real("[0, inf)")("1.5E+3"), whole(0, 10**4)(".5e3"), gpu_share("5e-1")) == (1500.0, 500, 0.5)


@pytest.mark.parametrize(
    "value", ["12", "1.5", "e3", "1e", "1e3 ", "0x1e3", "nan", "inf", "1_0e3", "1e999", "-1e3", "\u0661e3"]
)
def test_other_text_is_no_number(value: str) -> None:
    with pytest.raises(ValueError, match="is not a|is out of range"):
        real("[0, inf)")(value)
    with pytest.raises(BadInput, match="rounds = "):
        read_scenario({"rounds": value})


def test_infinity_is_written_as_yaml_writes_it() -> None:
    """The remedy named the interval with the very word that was refused."""
    for word in ("inf", "infinity"):
        with pytest.raises(BadInput, match=f"predict.gamma = '{word}' is not a number: write .inf$"):
            read_scenario({"predict": {"gamma": word}})
    with pytest.raises(BadInput, match=r"local.lr = 'inf' is not a number: give one in \(0, inf\)"):
        read_scenario({"local": {"lr": "inf"}})
    with pytest.raises(BadInput, match="leave it at .inf$"):
        read_scenario({"method": "stacking", "predict": {"gamma": 0.1}})


@pytest.mark.parametrize("word", ["cuda", "cuda:0", "gpu"])
def test_who_names_a_gpu_is_told_how_tiers_get_one(word: str) -> None:
    """`gpu` was answered by "did you mean cpu?"."""
    line = f"clients.device = '{word}' is not one of auto, cpu: leave it at auto, and give a tier GPUs"
    with pytest.raises(BadInput, match=line):
        read_scenario({"clients": {"device": word}})


@pytest.mark.parametrize(
    ("key", "entries"), [("local", {"augment": "crop,flip"}), ("model", {"name": "mlp", "hidden": "64, 32"})]
)
def test_a_list_that_lost_its_brackets_is_told_to_have_them(key: str, entries: dict[str, Any]) -> None:
    """As on the command line: local.augment=crop,flip."""
    (text,) = [value for value in entries.values() if "," in value]
    with pytest.raises(BadInput, match=rf"'{text}' is text: write a list with brackets, \[{text}\]$"):
        read_scenario({key: entries})
