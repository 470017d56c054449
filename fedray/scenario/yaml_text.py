"""Reading and writing of YAML: safe, bounded, without duplicate keys, and with the numbers of YAML 1.2 (`1e-3`).

Example:
    >>> parse_yaml("lr: 1e-3", "a scenario")
    {'lr': 0.001}
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import yaml
from yaml._yaml import CParser
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from fedray.core.errors import BadInput, quote_value, show_line
from fedray.files.bounded import RESTORE, read_or_explain, say_damaged, tell_apart

MOST_BYTES = 2**20
MOST_VALUES = 100_000  # after aliases are written out: bounds what "billion laughs" can ask for
_TOO_DEEP = "exceeded maximum nesting depth"  # says the C library of PyYAML 6.0.4; before, Python ran out of frames
_FLATTER = "lists and mappings are nested too deeply: write it flatter"
_INT = re.compile(r"[-+]?[0-9][0-9_]*")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_CORE = {  # YAML 1.2 core schema: no yes/no, no octal, no base 60, no dates
    "tag:yaml.org,2002:null": (re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    "tag:yaml.org,2002:bool": (re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    "tag:yaml.org,2002:int": (re.compile(_INT.pattern + "$"), list("-+0123456789")),
    "tag:yaml.org,2002:float": (
        re.compile(rf"(?:{_FLOAT.pattern}|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"),
        list("-+.0123456789"),
    ),
    "tag:yaml.org,2002:merge": (re.compile(r"(?:<<)$"), ["<"]),
}


class _Loader(Composer, CParser, SafeConstructor, Resolver):
    """A loader for texts, numbers, true and false, null, lists and mappings; any other tag is an error of one line.

    The text is scanned in C, ten times as fast as in Python. Nodes are composed in Python, where text that is nested
    too deeply is an error; in C it would end the process.
    """

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012
    yaml_constructors: ClassVar[dict[Any, Any]] = {}

    def __init__(self, text: str) -> None:
        CParser.__init__(self, text)
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)


class _Dumper(yaml.SafeDumper):
    """A dumper that quotes text which any reader could take for a number, by the rules of YAML 1.1 or 1.2."""

    def ignore_aliases(self, _data: Any) -> bool:
        """Returns true: a value that occurs several times is written out each time, without aliases."""
        return True


for _tag, (_pattern, _first) in _CORE.items():
    _Loader.add_implicit_resolver(_tag, _pattern, _first)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _CORE["tag:yaml.org,2002:float"][0], list("-+.0123456789"))


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    # PyYAML writes U+0085 raw, which reads back as a space, unless the text is in double quotes
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if value.isprintable() else '"')


def _scalar(loader: _Loader, node: yaml.Node) -> Any:
    """Returns the value of one word by its tag, also where the tag is written out (`!!bool x`)."""
    text = loader.construct_scalar(node)  # type: ignore[arg-type]  # an error of one line where it is no scalar
    kind = node.tag.rpartition(":")[2]
    if kind == "str":
        return text
    if not _CORE[node.tag][0].match(text):
        raise ValueError(f"line {node.start_mark.line + 1}: {quote_value(text)} is no {kind}: remove the tag")
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    digits = text.lower().replace("_", "")
    if kind == "int" and len(digits) < 30:  # Python refuses to read whole numbers of any length
        return int(digits)
    return float(digits.replace(".inf", "inf").replace(".nan", "nan"))


def _refuse_tag(_loader: _Loader, node: yaml.Node) -> Any:
    tag = quote_value(node.tag.replace("tag:yaml.org,2002:", "!!"))
    raise ValueError(f"line {node.start_mark.line + 1}: the tag {tag} is not known: write the value without it")


def _sequence(loader: _Loader, node: yaml.SequenceNode) -> list[Any]:
    return list(loader.construct_sequence(node, deep=True))


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: dict[str, int] = {}
    for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
        if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
            if key.value in seen:
                line = key.start_mark.line + 1
                raise ValueError(f"line {line}: the key {quote_value(key.value)} is here twice: remove one of the two")
            seen[key.value] = 1
    return dict(loader.construct_mapping(node, deep=True))


_Dumper.add_representer(str, _text)
_constructors: Any = _Loader  # PyYAML's types name only its own loaders
for _kind in ("null", "bool", "int", "float", "str"):
    _constructors.add_constructor(f"tag:yaml.org,2002:{_kind}", _scalar)
_constructors.add_constructor("tag:yaml.org,2002:seq", _sequence)
_constructors.add_constructor("tag:yaml.org,2002:map", _mapping)
_constructors.add_constructor(None, _refuse_tag)


def _weight(node: yaml.Node, known: dict[int, int]) -> int:
    """Counts the values below a node with every alias written out; 0 in `known` marks a node that is being counted.

    Values are counted before they are made: PyYAML before 6.0.4 expands merged keys (`<<`) while it makes values.
    """
    if id(node) in known:
        if known[id(node)] == 0:
            raise ValueError("an alias contains itself: write the values out")
        return known[id(node)]
    known[id(node)] = 0
    total = 1
    if isinstance(node, yaml.SequenceNode):
        total += sum(_weight(child, known) for child in node.value)
    elif isinstance(node, yaml.MappingNode):
        total += sum(_weight(key, known) + _weight(value, known) for key, value in node.value)
    known[id(node)] = total
    return total


def parse_yaml(text: str, where: str = "the scenario") -> Any:
    """Returns the value of a YAML text; any error is a `BadInput` of one line that names its position."""
    if len(text) > MOST_BYTES:
        raise BadInput(f"{where} has {len(text)} characters: {MOST_BYTES} at most")
    loader: Any = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _weight(node, {}) > MOST_VALUES:
            raise ValueError(f"holds more than {MOST_VALUES} values: shorten it")
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as wrong:
        mark = wrong.problem_mark or wrong.context_mark
        last = text.count("\n")  # the parser counts one more where a text ends without a line break
        line = f", line {min(mark.line, last) + 1}" if mark is not None else ""
        if wrong.problem == _TOO_DEEP:
            raise BadInput(f"{where}{line}: {_FLATTER}") from None
        raise BadInput(f"{where}{line}: not valid YAML: {show_line(wrong.problem or wrong.context)}") from None
    except (yaml.YAMLError, ValueError) as wrong:
        raise BadInput(f"{where}: {show_line(wrong)}") from None
    except (LookupError, TypeError, AttributeError) as wrong:  # PyYAML itself
        raise BadInput(f"{where}: not valid YAML: {show_line(wrong)}") from None
    except RecursionError:
        raise BadInput(f"{where}: {_FLATTER}") from None
    finally:
        if loader is not None:
            loader.dispose()


def load_yaml(path: Path) -> Any:
    """Returns the value of a YAML file."""
    where = quote_value(str(path), 200)[1:-1]
    try:
        if path.is_dir():
            raise BadInput(f"{where} is a directory: name a scenario file in it")
        if not path.exists():
            raise BadInput(f"{where} does not exist: check the path, or see `fedray scenarios` for those of fedray")
        if not path.is_file():
            raise BadInput(f"{where} is not a regular file: give a YAML file")
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise BadInput(f"{where} is larger than {MOST_BYTES} bytes: name a scenario, which is a small YAML file")
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput(f"{where} is not UTF-8 text: name a scenario, which is a YAML file") from None
    except OSError as wrong:
        raise tell_apart(Path(where), wrong, "give a YAML file") from None
    except ValueError as wrong:  # no path has such characters
        raise BadInput(f"{where} cannot be read: {show_line(wrong)}") from None
    return parse_yaml(text, where)


def read_mapping(path: Path) -> tuple[str, dict[str, Any]]:
    """Returns the text of a YAML file of a run directory, and its keys.

    Args:
        path: the file.

    Raises:
        BadInput: the file is no YAML.
        FedrayError: the file cannot be read, or holds no keys.
    """
    content = read_or_explain(path, RESTORE)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise say_damaged(path, "it is not UTF-8 text") from None
    tree = parse_yaml(text, str(path))
    if not isinstance(tree, dict) or not all(isinstance(key, str) for key in tree):
        raise say_damaged(path, "no keys in it")
    return text, tree


def write_yaml(value: Any) -> str:
    """Returns plain values as YAML text, with keys in their order."""
    return str(
        yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None)
    )
