"""Nothing is left out of the reference: every key, option, method, metric and public name has its entry."""

import doctest
import re
from dataclasses import fields
from functools import cache
from importlib import import_module

import md_pieces
import pytest
import reference
import reference_api
import reference_keys
import reference_methods
import reference_metrics
import theorems
from small import of_method

from fedray.assembly.study import build_study
from fedray.core.errors import BadInput
from fedray.methods import METHOD_SPECS, METHODS
from fedray.metrics.scores import SCORES
from fedray.scenario.keys import find_option_text, list_keys, read_option_texts, show_name
from fedray.scenario.loader import read_scenario, to_plain
from fedray.scenario.names import KINDS
from fedray.scenario.nested import flatten
from fedray.scenario.options import CLASSIFIERS
from fedray.scenario.rows import explain_rounds
from fedray.scenario.schema import section_types
from fedray.scenario.sections import CLIENT_KINDS

MODULES = ("md_pieces", "reference_keys", "reference_methods", "reference_metrics", "reference_api", "inventories")


@cache
def pages() -> dict[str, str]:
    return reference.write_reference()


def whole(start: str) -> str:
    return "\n".join(text for path, text in pages().items() if path.startswith(start))


def test_every_key_of_a_scenario_has_an_entry_with_type_default_unit_and_readers() -> None:
    text, wanted, units = whole("keys/"), 0, reference_keys.UNITS
    entries = dict(re.findall(r"^```\{confval\} (\S+)\n(.*?)^```$", text, flags=re.M | re.S))
    for section, owner in section_types().items():
        for one in fields(owner):
            if one.name == "options":
                continue
            name = f"{section}.{one.name}".removeprefix(".")
            entry = entries.pop(show_name(name))
            wanted += 1
            assert ":type: value" not in entry and "\n\n" in entry, name
            if ":type: section" in entry:
                continue
            assert ":default: " in entry and ":Read by: " in entry, name
            if re.search(r":type: .*number", entry):
                assert name in units, f"{name} is a number: give its unit in docs/reference/units.yaml"
    assert not entries and wanted == len(list_keys()) > 130


def test_the_reference_said_that_epochs_have_no_default() -> None:
    entries = dict(re.findall(r"^```\{confval\} (\S+)\n(.*?)^```$", whole("keys/"), flags=re.M | re.S))
    resolved = flatten(to_plain(read_scenario({})))
    for key in list_keys():
        if key.name in resolved and not key.section:
            assert f":default: {md_pieces.write_value(resolved[key.name])}\n" in entries[key.name], key.name
    assert ":default: `10`\n" in entries["local.epochs"]


@pytest.mark.parametrize("kind", ["model", "data", "partition", "selection", "schedule"])
def test_every_name_and_option_has_an_entry(kind: str) -> None:
    text = whole("keys/")
    for name, spec in KINDS[kind].specs.items():
        anchor = re.escape(f"({kind}-{name.replace('/', '-').lower()})=")
        (found,) = re.findall(rf"^{anchor}\n(.*?)(?=^\(|\Z)", text, re.M | re.S)
        for option in spec.options:
            assert f"| `{option}` |" in (text if option in CLIENT_KINDS else found), (name, option)


def test_so_has_every_option_of_a_classifier() -> None:
    for name, (_, options) in CLASSIFIERS.items():
        part = whole("keys/model").partition(f"### {name}\n")[2].partition("\n### ")[0]
        assert all(f"| `{option}` |" in part for option in options)


@pytest.mark.parametrize("name", METHOD_SPECS)
def test_every_method_has_its_algorithm_options_and_deviations(name: str) -> None:
    page = pages()[f"methods/{reference_methods.module_of(name)}.md"]
    part = page.partition(f"(method-{name})=\n")[2].partition("\n(method-")[0]
    assert reference_methods.read_algorithm(name) in part
    assert all(f"| `{option}` |" in part for option in METHOD_SPECS[name].options)
    assert "## Deviations\n\n1." in page
    assert f"method-{name}>`" in pages()["methods/index.md"]


@pytest.mark.parametrize("name", METHOD_SPECS)
def test_the_reference_said_that_walks_and_corrections_can_do_without_rounds(name: str) -> None:
    """Each page says what a scenario of the method does; `participation.mode` is refused where it says no."""
    part = pages()[f"methods/{reference_methods.module_of(name)}.md"].partition(f"(method-{name})=\n")[2]
    (says,) = re.findall(r"^\| `participation.mode` without rounds \| (\w+)", part.partition("\n(method-")[0], re.M)
    try:
        build_study(read_scenario(of_method(name, {"participation": {"mode": "semi"}})))
        assert says == "yes"
    except BadInput as refused:
        assert says == "no" and str(refused).startswith("participation.mode = semi, but"), refused


def test_a_method_that_refuses_sparse_uploads_says_so() -> None:
    row = "| `compress.kind` | `dense` or `int8` |"
    refusing = {f"methods/{name}.md" for name, spec in METHOD_SPECS.items() if not spec.sparse}
    assert {name for name, text in pages().items() if row in text} == refusing
    assert refusing == {"methods/pvi.md", "methods/ivon_admm.md"}


def test_the_page_on_training_without_rounds_names_methods_that_need_rounds() -> None:
    text = (reference_methods.README.parent / "docs" / "how-to" / "asynchronous.md").read_text()
    (named,) = re.findall(r"^- methods that need rounds.*?;$", text, re.MULTILINE | re.DOTALL)
    found = set(re.findall(r"`(\w+)`", named))
    assert len(found) > 3 and all(explain_rounds(METHOD_SPECS[name]) for name in found)


def test_the_page_on_selections_describes_them_all() -> None:
    text = (reference_methods.README.parent / "docs" / "how-to" / "selection.md").read_text()
    assert all(re.search(rf"^\| `(\{{name: )?{name}\b", text, re.MULTILINE) for name in KINDS["selection"].specs)


def test_every_option_says_what_it_means() -> None:
    for word, kind in KINDS.items():
        for name, spec in kind.specs.items():
            assert all(one.text or find_option_text(word, name, key) for key, one in spec.options.items()), (
                f"{name}: describe its options in fedray/scenario/option_texts.yaml"
            )


def test_formulas_belong_to_methods_and_scores_that_there_are() -> None:
    texts = {name: import_module(METHODS[name].__module__).__doc__ or "" for name in METHOD_SPECS}
    formulas = {found for text in texts.values() for found in re.findall(r"^Formulas of (\w+):$", text, re.MULTILINE)}
    assert formulas == METHOD_SPECS.keys()
    assert reference_metrics.FORMULAS.keys() == reference_metrics.list_scores().keys() >= SCORES.keys()
    for kind, known in read_option_texts().items():
        specs = KINDS[kind].specs if kind in KINDS else {}
        options = {each for name, spec in specs.items() for key in spec.options for each in (key, f"{name}.{key}")}
        options |= {key for _, table in CLASSIFIERS.values() for key in table} if kind == "classifier" else set()
        assert known.keys() <= options, kind


def test_every_score_has_an_entry_with_its_unit_and_formula() -> None:
    entries = dict(re.findall(r"^### (\S+)\n(.*?)(?=^#|\Z|^\(metric)", pages()["metrics.md"], flags=re.M | re.S))
    assert entries.keys() == reference_metrics.list_scores().keys()
    assert all("\n$$\n" in entry and ":Unit: " in entry for entry in entries.values())


@pytest.mark.parametrize("module", reference_api.MODULES)
def test_every_public_name_has_an_entry(module: str) -> None:
    page = pages()[f"api/{module}.md"]
    public = import_module(module).__all__
    assert public and all(
        re.search(rf"^\.\. (?:auto\w+|py:data):: {module}\.{name}$", page, flags=re.M) for name in public
    )


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_the_makers_run(name: str) -> None:
    assert doctest.testmod(import_module(name)).failed == 0


def test_what_holds_the_theorems_of_earlier_tests_is_there() -> None:
    assert theorems.find_missing() == []
