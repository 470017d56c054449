"""Lists the keys of scenarios with their meanings, types and defaults, for `fedray docs` and for the reference."""

import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fedray.core.errors import BadInput, suggest_nearest
from fedray.core.options import REQUIRED, Meaning, Needs, Option, describe_check
from fedray.scenario.loader import read_scenario, to_plain
from fedray.scenario.names import KINDS, known_names
from fedray.scenario.nested import flatten, load_yaml, show_value
from fedray.scenario.options import list_options
from fedray.scenario.schema import section_types


class Key(NamedTuple):
    """One key of a scenario.

    Attributes:
        name: The dotted key, with `*` in place of a name or an index.
        text: The description of the key.
        meaning: The values that the key may have.
        default: The value if a scenario does not set the key. `REQUIRED` means that the key must be set.
        needs: A second key, and the values of the second key with which this key has an effect. None means that this
            key always has an effect.
        section: Whether the key is a section, which holds further keys.
    """

    name: str
    text: str
    meaning: Meaning
    default: Any
    needs: Needs | None
    section: bool


@cache
def list_keys() -> tuple[Key, ...]:
    """Returns every key of the schema, section by section."""
    resolved, found = flatten(to_plain(read_scenario({}))), list[Key]()
    for section, owner in section_types().items():
        texts = read_attributes(owner)
        for one in fields(owner):
            if one.name == "options":
                continue
            default = one.default_factory() if one.default_factory is not MISSING else one.default
            name = f"{section}.{one.name}".removeprefix(".")
            if default is None:  # the schema lacks defaults that follow from other keys
                default = resolved.get(name)
            inside, option = "section" in one.metadata, one.metadata.get("key")
            meaning = Meaning("section" if inside else "mapping") if option is None else describe_check(option.check)
            needs = option.needs.of(name) if option and option.needs else None
            default = REQUIRED if default is MISSING else default
            found.append(Key(name, texts[one.name], meaning, default, needs, inside))
    return tuple(found)


def read_attributes(owner: type) -> dict[str, str]:
    """Returns the text of each attribute in the section `Attributes` of a docstring."""
    text = inspect.cleandoc(owner.__doc__ or "").partition("Attributes:\n")[2]
    found: dict[str, str] = {}
    for line in text.splitlines():
        if start := re.fullmatch(r"    (\w+): (.*)", line):
            last, found[start[1]] = start[1], start[2]
        elif line.startswith("        ") and found:
            found[last] += f" {line.strip()}"
        else:
            break
    return found


def show_name(name: str) -> str:
    """Returns a key as the reference shows it, with `NAME` or `[i]` in place of `*`.

    Example:
        >>> show_name("clients.tiers.*.uplink"), show_name("table.*.name")
        ('clients.tiers.NAME.uplink', 'table[i].name')
    """
    return name.replace("table.*", "table[i]").replace("*", "NAME")


def write_type(meaning: Meaning) -> str:
    """Describes in words which values a key may have."""
    kind, values, empty = meaning
    shown = f"{kind}: {values}" if values.startswith("`") else f"{kind}, {values}" if values else kind
    return f"{shown}, or null" if empty else shown


# ---------------------------------------------------------------------------------------------------------------------
# The same in a terminal: `fedray docs`.


def explain_keys(wanted: str | None, width: int = 100) -> str:
    """Returns a text that explains keys.

    `wanted` is a key, a section, or an option such as `method.mu` or `data.partition.alpha`. None means all keys.

    Raises:
        BadInput: There is no such key.

    Example:
        >>> print(explain_keys("local.momentum"))
        local.momentum = 0
            Momentum of `sgd`.
            number, [0, 1); acts where local.optimizer is sgd
    """
    wanted = "own" if wanted == "import" else wanted  # as the loader reads it
    keys = [key for key in list_keys() if wanted is None or _belongs(key.name, wanted)]
    lines = [line for key in keys for line in _explain_key(key, width)]
    lines += [] if wanted is None else _explain_options(wanted, width)
    if lines:
        return "\n".join(lines)
    known = [*(show_name(key.name) for key in list_keys()), *(f"{at}.{one}" for at, one, _, _ in _list_all_options())]
    raise BadInput(f"{wanted} is no key of scenarios: {suggest_nearest(str(wanted), known, '`fedray docs` lists all')}")


def _belongs(name: str, wanted: str) -> bool:
    """Returns whether the key `name` is `wanted`, or is in the section `wanted`. A `*` in `name` matches any name."""
    pattern = re.escape(show_name(name)).replace("NAME", "[^.]+").replace(r"\[i\]", r"(\[.+\]|\.[^.]+)?")
    return bool(re.fullmatch(pattern, wanted)) or show_name(name).startswith((f"{wanted}.", f"{wanted}["))


def _explain_key(key: Key, width: int) -> list[str]:
    default = "" if key.section or key.default is REQUIRED else f" = {show_value(key.default)}"
    more = [write_type(key.meaning)] + ["must be given"] * (key.default is REQUIRED)
    if key.needs is not None:
        more.append(f"acts where {show_name(key.needs.key)} is {' or '.join(map(str, key.needs.values))}")
    return _write_entry(f"{show_name(key.name)}{default}", key.text, more, width)


def _list_all_options() -> Iterator[tuple[str, str, str, Option]]:
    """Yields the section, the key, the object's name and the declaration of each option.

    Options of objects that a user registered are included.
    """
    for word, kind in KINDS.items():
        for name in known_names(word):
            for option, one in list_options(word, name)[0].items():
                yield kind.section, option, name, one._replace(text=one.text or find_option_text(word, name, option))


@cache
def read_option_texts() -> dict[str, dict[str, str]]:
    """Returns the descriptions of options, by kind and option. Options of methods are left out."""
    texts: dict[str, dict[str, str]] = load_yaml(Path(__file__).with_name("option_texts.yaml"))
    return texts


def find_option_text(kind: str, name: str, option: str) -> str:
    """Returns the description of an option. The text is empty for an option of a user's own object.

    Example:
        >>> find_option_text("model", "lstm", "hidden"), find_option_text("model", "mlp", "hidden")
        ('units of a recurrent layer', 'units of each hidden layer')
    """
    known = read_option_texts().get(kind, {})
    return known.get(f"{name}.{option}", known.get(option, ""))


def _explain_options(wanted: str, width: int) -> list[str]:
    """Returns the lines that explain an option, or all options of a section.

    `wanted` is the option or the section. Options with the same key and meaning share an entry.
    """
    entries: dict[tuple[str, ...], list[str]] = {}
    for at, option, name, one in _list_all_options():
        if wanted in (at, key := f"{at}.{option}"):
            default = "must be given" if one.default is REQUIRED else f"default {show_value(one.default)}"
            entries.setdefault((key, one.text, write_type(describe_check(one.check)), default), []).append(name)
    return [
        line
        for (key, text, *more), names in entries.items()
        for line in _write_entry(f"{key} ({', '.join(names)})", text, more, width)
    ]


def _write_entry(head: str, text: str, more: list[str], width: int) -> list[str]:
    indented = {"width": width, "initial_indent": "    ", "subsequent_indent": "    ", "break_on_hyphens": False}
    said = [text[:1].upper() + text[1:], "; ".join(more)]
    return [head, *(line for part in said for line in textwrap.wrap(part, **indented))]  # type: ignore[arg-type]
