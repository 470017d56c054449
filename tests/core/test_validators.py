"""What a value may be: numbers that YAML 1.1 reads as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fedray.core.options import gpu_share, real, whole
from fedray.scenario.loader import read_scenario
from fedray.scenario.nested import load_yaml

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
