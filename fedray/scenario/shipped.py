"""The scenario files and sweeps that come with the package, by name: `quickstart`, `papers/fedag_table2`, `tune/quick`.

A wheel holds copies of `scenarios/` and `tune/`; in a checkout they are the folders themselves.

Example:
    >>> list_shipped()["quickstart"].what
    'Five models over 100 clients of real handwriting, two classes a client.'
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from fedray.core.errors import BadInput
from fedray.core.text import find_nearest, show_line
from fedray.files.plain import expand_user_path, make_parent, write_atomically

_PACKAGE = Path(__file__).parents[1]
FOLDERS = {"": "scenarios", "tune/": "tune"}  # the beginning of a name, and its folder


class Shipped(NamedTuple):
    """A file that comes with the package.

    Attributes:
        path: Where it is.
        command: What it is for: `run`, `table` or `tune`.
        what: Its first sentence.
    """

    path: Path
    command: str
    what: str


def list_shipped() -> dict[str, Shipped]:
    """Returns the files by name."""
    root = _PACKAGE / "shipped" if (_PACKAGE / "shipped").is_dir() else _PACKAGE.parent
    found = {}
    for begin, folder in FOLDERS.items():
        for path in sorted((root / folder).rglob("*.yaml")):
            text = path.read_text(encoding="utf-8")
            command = "tune" if begin else "table" if "\ntable:" in text else "run"
            name = begin + path.relative_to(root / folder).with_suffix("").as_posix()
            found[name] = Shipped(path, command, _read_first_sentence(text))
    return found


def _read_first_sentence(text: str) -> str:
    """Returns the first sentence of the comment at the head of a file."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#") or not line.strip("# "):
            break
        lines.append(line.strip("# "))
    return re.split(r"(?<!Fig)\.\s", " ".join(lines))[0].rstrip(".") + "."


def find_scenario_file(given: str, key: str = "scenario", folder: Path = Path()) -> Path:
    """Finds a scenario file: a path, or the name of one that comes with the package.

    Args:
        given: What was typed.
        key: What it is, for messages about paths.
        folder: To which a path is relative.

    Raises:
        BadInput: It is neither a path to a file nor a name.

    Example:
        >>> find_scenario_file("quickstart").name
        'quickstart.yaml'
    """
    path = folder / expand_user_path(key, given)
    if path.exists() or path.suffix:
        return path
    known = list_shipped()
    if given in known:
        return known[given].path
    near = find_nearest(given, tuple(known))
    hint = f"did you mean {near}? " if near else ""
    raise BadInput(f"{show_line(given)}: {hint}there is no such file, and `fedray scenarios` lists no such name")


def copy_shipped(name: str, out: Path) -> None:
    """Copies a file that comes with the package, to be changed; a sweep's copy names its scenario instead of its path.

    Args:
        name: Its name.
        out: The new file.

    Raises:
        BadInput: There is no such name, or the new file is there already.
    """
    text = find_scenario_file(name).read_text(encoding="utf-8")
    if out.exists():
        raise BadInput(f"{out} is there already: remove it, or give another --out")
    make_parent(out)
    write_atomically(out, re.sub(r"^scenario: \.\./scenarios/(\S+)\.yaml", r"scenario: \1", text, flags=re.M).encode())
