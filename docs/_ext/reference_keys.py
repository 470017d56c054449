"""The pages of the scenario keys: one for each section, from the schema and the tables that `fedray check` uses.

What the schema does not say stands in `docs/reference/units.yaml` (units). What an option means that stands beside the
name of data, a network, ... is in `fedray/scenario/option_texts.yaml`. A method's options say it themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from md_pieces import begin_sentence, write_table, write_value

from fedray.core.options import REQUIRED, Needs, Option, describe_check
from fedray.methods import METHOD_SPECS
from fedray.scenario.keys import Key, find_option_text, list_keys, show_name, write_type
from fedray.scenario.loader import read_scenario
from fedray.scenario.names import MODEL_SPECS
from fedray.scenario.options import CLASSIFIERS
from fedray.scenario.rows import is_read
from fedray.scenario.schema import Scenario, section_types
from fedray.scenario.sections import CLIENT_KINDS, DATA_SPECS, PARTITION_SPECS, SCHEDULE_SPECS, SELECTION_SPECS

REFERENCE = Path(__file__).parents[1] / "reference"
UNITS: dict[str, str] = yaml.safe_load((REFERENCE / "units.yaml").read_text())
NAMED: dict[str, tuple[str, Mapping[str, Any]]] = {  # page -> kind of the options, and its names
    "model": ("model", MODEL_SPECS),
    "data": ("data", DATA_SPECS),
    "data.partition": ("partition", PARTITION_SPECS),
    "participation.selection": ("selection", SELECTION_SPECS),
    "schedule": ("schedule", SCHEDULE_SPECS),
}
TITLES = {"": "The run as a whole"}


@cache
def find_readers(key: str) -> tuple[str, ...]:
    """Returns the methods that read a key, as their specifications say."""
    return tuple(name for name in METHOD_SPECS if is_read(key, _scenario_of(name)))


@cache
def _scenario_of(method: str) -> Scenario:
    return read_scenario({"method": {"name": method}})


def write_readers(key: str) -> str:
    """Returns the methods that read a key, in words."""
    readers = find_readers(key)
    if len(readers) == len(METHOD_SPECS):
        return "every method"
    others = [name for name in METHOD_SPECS if name not in readers]
    few, start = (others, "every method but ") if len(others) < len(readers) else (readers, "")
    return start + ", ".join(f"{{ref}}`{name} <method-{name}>`" for name in few)


def write_needs(needs: Needs | None) -> str:
    """Returns the condition on another key under which a key is read, in words."""
    if needs is None:
        return ""
    known = any(key.name == needs.key for key in list_keys())  # the option of a method is no key of the schema
    key = f"{'{confval}' if known else ''}`{show_name(needs.key)}`"
    return f"where {key} is {' or '.join(f'`{value}`' for value in needs.values)}"


def write_key(key: Key) -> str:
    """Returns the entry of a key."""
    default = "must be given" if key.default is REQUIRED else write_value(key.default)
    if key.section:
        return f"```{{confval}} {show_name(key.name)}\n:type: section\n\n{begin_sentence(key.text)}\n```\n"
    lines = [f"```{{confval}} {show_name(key.name)}", f":type: {write_type(key.meaning)}", f":default: {default}", ""]
    lines += [begin_sentence(key.text), ""]
    lines += [f":Unit: {UNITS[key.name]}"] if UNITS.get(key.name) else []
    lines += [f":Acts: {write_needs(key.needs)}"] if key.needs else []
    return "\n".join([*lines, f":Read by: {write_readers(key.name)}", "```", ""])


def _page_of(key: str) -> str:
    return key.partition(".")[0] or "run"


def write_options(kind: str, name: str, options: Mapping[str, Option]) -> str:
    """Returns the table of the options of a name."""
    rows = []
    for option, (default, check, text, needs, _) in options.items():
        text = begin_sentence(text or find_option_text(kind, name, option))
        if needs:
            text += f" Acts {write_needs(needs)}."
        shown = "must be given" if default is REQUIRED else write_value(default)
        rows.append([f"`{option}`", text, write_type(describe_check(check)), shown])
    return write_table(["option", "what it is", "type", "default"], rows)


def _write_names(page: str) -> Iterator[str]:
    """Returns the names that a section may have, each with its options."""
    kind, specs = NAMED[page]
    yield {
        "model": "## Networks",
        "data": "## Data sets",
        "partition": "## Partitions",
        "selection": "## Client selections",
        "schedule": "## Kinds of schedules",
    }[kind]
    if kind == "partition":
        yield "Every partition also has these options ([what they do](../../partitions.md)):"
        yield write_options(kind, "", CLIENT_KINDS)
    for name, spec in specs.items():
        yield f"({kind}-{name.replace('/', '-').lower()})=\n### {name}\n\n{begin_sentence(spec.text)}"
        yield write_options(kind, name, {key: one for key, one in spec.options.items() if key not in CLIENT_KINDS})


def _write_classifiers() -> Iterator[str]:
    yield "## Classifiers\n\nA base of `stacking` and the learner of boosting may be a classifier of scikit-learn."
    for name, (text, checks) in CLASSIFIERS.items():
        yield f"### {name}\n\n{begin_sentence(text)} Options that are left out have scikit-learn's defaults."
        told = {key: begin_sentence(find_option_text("classifier", name, key)) for key in checks}
        rows = [[f"`{key}`", told[key], write_type(describe_check(check))] for key, check in checks.items()]
        yield write_table(["option", "what it is", "type"], rows)


def _write_page(page: str, keys: list[Key]) -> str:
    title = "The run as a whole" if page == "run" else f"`{page}`"
    parts = [f"# {title}", "Keys without a section." if page == "run" else ""]
    section = ""
    for key in keys:
        here = key.name.rpartition(".")[0]
        if here not in ("", page) and here != section:
            about = (section_types()[here].__doc__ or "").partition("\n")[0]
            parts.append(f"## `{show_name(here)}`\n\n{about}")
        section = here
        parts.append(write_key(key))
    if page == "method":
        parts.append("The options of each method stand on [its page](../methods/index.md).")
    for named in (page, *(one for one in NAMED if one.startswith(f"{page}."))):
        parts += _write_names(named) if named in NAMED else []
    parts += _write_classifiers() if page == "model" else []
    return "\n\n".join(part for part in parts if part) + "\n"


def write_pages() -> dict[str, str]:
    """Returns every page of the scenario keys by its path below `docs/reference/generated`."""
    pages: dict[str, list[Key]] = {"run": []}
    for key in list_keys():
        page = "run" if "." not in key.name and not key.section else _page_of(key.name)
        pages.setdefault(page, []).append(key)
    written = {f"keys/{page}.md": _write_page(page, keys) for page, keys in pages.items() if keys}
    rows = [[f"[{'without a section' if page == 'run' else f'`{page}`'}]({page}.md)", _about(page)] for page in pages]
    index = [
        "# Scenario keys",
        "A scenario is a YAML file, or a Python mapping. `fedray check FILE` refuses keys that are wrong or have no "
        "effect; with `--all` it prints every key with its value. On the command line a key is written with dots, "
        "`local.lr=0.1`; in Python with two underscores, `local__lr=0.1`. Where an override makes a key of the file "
        "idle, a note names it.",
        write_table(["section", "what it says"], rows),
        "```{toctree}\n:hidden:\n\n" + "\n".join(pages) + "\n```",
    ]
    return {**written, "keys/index.md": "\n\n".join(index) + "\n"}


def _about(page: str) -> str:
    if page == "run":
        return "Seed, rounds, runtime, replicates and what a run leaves."
    return next((begin_sentence(key.text) for key in list_keys() if key.name == page), "")
