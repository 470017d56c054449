"""Every scenario file that is shipped says where it is from, resolves and survives YAML; three train a round."""

import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml
from shipped import FILES, built_names, find_kinds

from fedray.core.errors import BadInput
from fedray.scenario.loader import dump_scenario, read_cells, read_scenario
from fedray.scenario.nested import load_yaml
from fedray.scenario.schema import Scenario
from fedray.scenario.shipped import copy_shipped, list_shipped
from fedray.tuning.sweep import read_sweep

ROOT = Path(__file__).parents[2]
PAPERS = [path for path in FILES if path.parent.name == "papers"]
every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


@cache
def read(path: Path) -> tuple[Scenario, tuple[str, ...]]:
    """A file as a scenario, and the warnings that it gave."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        scenario = read_scenario(path)
    return scenario, tuple(str(one.message) for one in said)


@every_file
def test_it_resolves_and_survives_yaml_and_sets_no_path(path: Path) -> None:
    scenario, _ = read(path)
    assert read_scenario(dump_scenario(scenario)) == scenario
    cells = read_cells(scenario)
    for cell in cells:
        assert cell.scenario.data.root is None, cell.name
        assert all(0 < value <= 1 for name, value in cell.scenario.published.items() if name.startswith("accuracy"))
    for cell in find_kinds(cells, built_names):
        assert read_scenario(dump_scenario(cell.scenario)) == cell.scenario


@every_file
def test_it_holds_no_idle_keys(path: Path) -> None:
    """Except where a method of a table leaves one unread, which is named with its cells."""
    scenario, said = read(path)
    assert all("cell" in one for one in said) and (scenario.table or not said)


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_its_header_names_source_and_command(path: Path) -> None:
    header = "\n".join(line for line in path.read_text().splitlines() if line.startswith("#"))
    for needed in ("# Source: ", "paper", f"#   fedray table scenarios/papers/{path.name} "):
        assert needed in header


# -- The files that come with the package: each is listed with its sentence, runs by its name, and can be copied

SHIPPED = list_shipped()


def test_every_file_is_listed_once_with_a_sentence_and_its_command() -> None:
    expected = [*(ROOT / "scenarios").rglob("*.yaml"), *(ROOT / "tune").rglob("*.yaml")]
    assert sorted(file.path for file in SHIPPED.values()) == sorted(expected)
    assert all(len(file.what) > 20 and file.what.endswith(".") for file in SHIPPED.values())
    assert {name for name, file in SHIPPED.items() if file.command == "tune"} == {
        n for n in SHIPPED if n.startswith("tune/")
    }
    assert SHIPPED["quickstart"].command == "run" and SHIPPED["papers/fedag_table2"].command == "table"


def test_a_name_is_read_like_its_file_and_a_file_comes_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_scenario("quickstart") == read_scenario(ROOT / "scenarios" / "quickstart.yaml")
    monkeypatch.chdir(tmp_path)
    Path("quickstart").write_text("rounds: 1\n")
    assert read_scenario("quickstart").rounds == 1


@pytest.mark.parametrize("name", [name for name in SHIPPED if name.startswith("tune/")])
def test_a_copied_sweep_is_the_same_sweep(name: str, tmp_path: Path) -> None:
    """It names its scenario, which it no longer finds by a relative path."""
    copy = tmp_path / f"{Path(name).name}.yaml"
    copy_shipped(name, copy)
    ours, theirs = read_sweep(copy), read_sweep(SHIPPED[name].path)
    assert ours == replace(theirs, keys=replace(theirs.keys, scenario=ours.keys.scenario))
    with pytest.raises(BadInput, match="is there already"):
        copy_shipped(name, copy)


@pytest.mark.parametrize("path", [one.path for one in SHIPPED.values()], ids=list(SHIPPED))
def test_a_shipped_file_is_the_same_to_every_reader_of_yaml(path: Path) -> None:
    """YAML 1.1 reads 12.5e6 as text, so that `fedray.run(yaml.safe_load(file))` was refused."""
    assert yaml.safe_load(path.read_text()) == load_yaml(path)
