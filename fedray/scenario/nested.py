"""Reads and writes YAML, and copies, merges, compares and flattens nested dicts."""

import math
import re
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, ClassVar

import numpy as np
import yaml
from yaml.composer import Composer
from yaml.constructor import ConstructorError, SafeConstructor

from fedray.core.errors import BadInput, quote_value, show_line
from fedray.files.run_files import RESTORE, make_damaged_error, make_unreadable_error, read_or_explain
from fedray.own_code.user_code import name_type
from fedray.scenario.names import NAMED, trains_one_model

# ---------------------------------------------------------------------------------------------------------------------
# Reading and writing of YAML: safe, bounded, without duplicate keys, and with the numbers of YAML 1.2 (`1e-3`).

MOST_BYTES = 2**20
MOST_VALUES = 100_000  # in a scenario; the value of an alias counts at each occurrence
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
_OTHERS = [f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map")]


def _whole(loader: SafeConstructor, node: yaml.ScalarNode) -> int | float:
    digits = str(loader.construct_scalar(node)).replace("_", "")
    return int(digits) if len(digits) < 30 else float(digits)  # Python refuses integers with very many digits


class _Loader(Composer, yaml.CSafeLoader):
    """A YAML loader for text, numbers, booleans, null, lists and mappings. Any other tag is an error.

    The text is scanned in C, ten times as fast as in Python. Nodes are composed in Python, where text that is nested
    too deeply raises an error. In C, such text would end the process.
    """

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012
    yaml_constructors: ClassVar[dict[Any, Any]] = {
        tag: make for tag, make in SafeConstructor.yaml_constructors.items() if tag is None or tag in (*_CORE, *_OTHERS)
    } | {"tag:yaml.org,2002:int": _whole}

    def __init__(self, text: str) -> None:
        yaml.CSafeLoader.__init__(self, text)
        Composer.__init__(self)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: ARG002
        """Returns the mapping of a node. Raises an error if a key occurs twice in the text."""
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    twice = f"the key {quote_value(key.value)} is here twice: remove one of the two"
                    raise ConstructorError(None, None, twice, key.start_mark)
                seen.add(key.value)
        return dict(super().construct_mapping(node, deep=True))


class _Dumper(yaml.CSafeDumper):
    """A YAML dumper that quotes every text that YAML 1.1 or 1.2 could take for a number."""

    def ignore_aliases(self, _data: Any) -> bool:
        """Returns True. A value that occurs several times is then repeated, and not written as an alias."""
        return True


for _tag, (_pattern, _first) in _CORE.items():
    _Loader.add_implicit_resolver(_tag, _pattern, _first)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _CORE["tag:yaml.org,2002:float"][0], list("-+.0123456789"))


def _text(dumper: yaml.CSafeDumper, value: str) -> yaml.ScalarNode:
    # PyYAML writes U+0085 unchanged, and a reader turns U+0085 into a space; in double quotes it is escaped
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if value.isprintable() else '"')


_Dumper.add_representer(str, _text)


def parse_yaml(text: str, where: str = "the scenario") -> Any:
    """Returns the value of a YAML text. An error in the text raises `BadInput` with the line number.

    Example:
        >>> parse_yaml("lr: 1e-3", "a scenario")
        {'lr': 0.001}
    """
    if len(text) > MOST_BYTES:
        raise BadInput(f"{where} has {len(text)} characters: {MOST_BYTES} at most")
    loader: Any = None
    try:
        loader = _Loader(text)
        return loader.get_single_data()
    except yaml.MarkedYAMLError as wrong:
        mark = wrong.problem_mark or wrong.context_mark
        last = text.count("\n")  # a text without a final line break: the parser's number is one too large
        line = f", line {min(mark.line, last) + 1}" if mark is not None else ""
        raise BadInput(f"{where}{line}: not valid YAML: {show_line(wrong.problem or wrong.context)}") from None
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as wrong:
        raise BadInput(f"{where}: not valid YAML: {show_line(wrong)}") from None
    finally:
        if loader is not None:
            loader.dispose()


def load_yaml(path: Path) -> Any:
    """Returns the value of a YAML file. Raises `BadInput` if the file cannot be read or is no valid YAML."""
    where = quote_value(str(path), 200)[1:-1]
    try:
        if path.is_dir():
            raise BadInput(f"{where} is a directory: name a scenario file in it")
        if not path.exists():
            raise BadInput(f"{where} does not exist: check the path, or see `fedray scenarios` for those of fedray")
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput(f"{where} is not UTF-8 text: name a scenario, which is a YAML file") from None
    except OSError as wrong:
        raise make_unreadable_error(Path(where), wrong, "give a YAML file") from None
    return parse_yaml(text, where)


def read_mapping(path: Path) -> tuple[str, dict[str, Any]]:
    """Returns the text of a YAML file in a run directory, and the keys that the file holds.

    Raises:
        BadInput: The file is no valid YAML.
        FedrayError: The file cannot be read, or holds no keys.
    """
    content = read_or_explain(path, RESTORE)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise make_damaged_error(path, "it is not UTF-8 text") from None
    tree = parse_yaml(text, str(path))
    if not isinstance(tree, dict) or not all(isinstance(key, str) for key in tree):
        raise make_damaged_error(path, "no keys in it")
    return text, tree


def write_yaml(value: Any) -> str:
    """Returns plain values as YAML text. The keys keep their order."""
    return str(
        yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None)
    )


# ---------------------------------------------------------------------------------------------------------------------
# Operations on nested dicts: plain copies, merging, differences, dotted keys.

Tree = dict[str, Any]
KeyPath = tuple[str, ...]
MOST_DEPTH = 12
EXCLUSIVE: dict[str, tuple[str, str]] = {  # section -> two keys of which one removes the other
    "local": ("epochs", "steps"),
    "participation": ("per_round", "fraction"),
    "clients.tiers.*": ("share", "number"),
}


def dotted_key(path: KeyPath) -> str:
    """Returns a path of keys as a dotted key, such as `clients.tiers` or `table[0]`.

    Keys of more than 60 characters, and keys that are not printable, are quoted.

    Example:
        >>> dotted_key(("table", "[0]")), dotted_key(("local", "k" * 60)) == "local." + "k" * 60
        ('table[0]', True)
    """
    parts = [p if p.startswith("[") or (p.isprintable() and len(p) <= 60) else quote_value(p) for p in path]
    return ".".join(parts).replace(".[", "[")


def to_plain_values(value: Any, path: KeyPath = (), count: list[int] | None = None) -> Any:
    """Returns a copy of a value. The copy consists only of dict, list, str, int, float, bool and None.

    `count` is a list with one number, which says how many values were copied so far. The function increases it.

    Raises:
        BadInput: The value contains an object of another type, has too many values, or is nested too deeply.
    """
    count = [0] if count is None else count
    count[0] += 1
    if count[0] > MOST_VALUES or len(path) > MOST_DEPTH:
        raise BadInput(f"{dotted_key(path[:3])} holds too many values: {MOST_VALUES} at most, {MOST_DEPTH} levels deep")
    if isinstance(value, Mapping):
        return {_key(k, path): to_plain_values(v, (*path, _key(k, path)), count) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain_values(v, (*path, f"[{i}]"), count) for i, v in enumerate(value)]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, PurePath):
        value = str(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return int(value)
    if isinstance(value, float) and not math.isnan(value):
        return float(value)
    if isinstance(value, str):
        return str(value)
    name = dotted_key(path) or "the scenario"
    raise BadInput(
        f"{name} = {_safely_shown(value)} cannot be used: give a number of ordinary size, text, list or mapping"
    )


def merge_keys(base: Mapping[str, Any], over: Mapping[str, Any], path: KeyPath = ()) -> Tree:
    """Returns `base` with the keys of `over`, merged section by section.

    The value None in `over` removes a key, so that its default applies. If `over` changes the `name` of a section with
    options, most keys of `base` in this section are dropped. If two keys exclude each other (such as `epochs` and
    `steps`), the key in `over` is kept.

    Args:
        base: A tree of keys.
        over: A second tree of keys, which takes precedence.
        path: The path of keys to both trees.

    Example:
        >>> merge_keys({"local": {"epochs": 3, "lr": 0.1}}, {"local": {"steps": 5}})
        {'local': {'lr': 0.1, 'steps': 5}}
    """
    out = dict(base)
    if is_renamed(base, over, path):
        kept = NAMED[path].kept
        if path == ("method",) and not (trains_one_model(base.get("name")) or trains_one_model(over["name"])):
            kept = ("models",)  # if both methods train ensembles, K is kept
        out = {key: value for key, value in base.items() if key in kept}
    pair = EXCLUSIVE.get(generalize_key(".".join(path)))
    for one, other in (pair, pair[::-1]) if pair is not None else ():
        if over.get(one) is not None:  # a key that is given removes its partner
            out.pop(other, None)
    for key, value in over.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, Mapping):
            old = out.get(key)
            out[key] = merge_keys(old if isinstance(old, Mapping) else {}, value, (*path, key))
        else:
            out[key] = value
    return out


def is_renamed(base: Mapping[str, Any], over: Mapping[str, Any], path: KeyPath) -> bool:
    """Returns whether `over` changes the `name` of a section with options."""
    if path not in NAMED:
        return False
    names = base.get("name", NAMED[path].default), over.get("name")
    return all(isinstance(name, str) for name in names) and names[0] != names[1]


def find_changes(base: Mapping[str, Any], cell: Mapping[str, Any], path: KeyPath = ()) -> Tree:
    """Returns the keys that `merge_keys` has to merge into `base` to get `cell`.

    A key that differs gets its value from `cell`. A key that `cell` lacks gets the value None.
    """
    out: Tree = {key: None for key in base if key not in cell}
    if is_renamed(base, cell, path):
        out = {key: None for key in out if key in NAMED[path].kept}
    for key, value in cell.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), Mapping):
            changed = find_changes(base[key], value, (*path, key))
            if changed:
                out[key] = changed
        elif key not in base or base[key] != value or is_renamed(base, cell, path):
            out[key] = value
    return out


def expand(overrides: Mapping[str, Any]) -> Tree:
    """Returns dotted keys as nested dicts.

    Example:
        >>> expand({"local.lr": 0.1, "local.schedule.warmup": 5, "local": {"schedule": {"kind": "cosine"}}})
        {'local': {'lr': 0.1, 'schedule': {'warmup': 5, 'kind': 'cosine'}}}
    """
    out: Tree = {}
    for key, value in overrides.items():
        parts = tuple(key.split("."))
        if not all(parts):
            raise BadInput(f"{quote_value(key)} is not a key: write it like local.lr")
        at = out
        for i, part in enumerate(parts[:-1]):
            at = at.setdefault(part, {})
            if not isinstance(at, dict):
                raise BadInput(
                    f"{dotted_key(parts[: i + 1])} is set as a whole and again as {dotted_key(parts)}: "
                    "use one of the two"
                )
        _put(at, parts, value)
    return out


def _put(at: Tree, path: KeyPath, value: Any) -> None:
    """Puts a value under the last part of its key. A mapping joins the keys that are there."""
    if isinstance(value, Mapping) and isinstance(at.setdefault(path[-1], {}), dict):
        for key, inner in value.items():
            _put(at[path[-1]], (*path, key), inner)
    elif path[-1] in at:
        raise BadInput(f"{dotted_key(path)} is set twice: use one of the two")
    else:
        at[path[-1]] = value


def flatten(tree: Mapping[str, Any], path: str = "") -> Tree:
    """Returns nested dicts as one dict with dotted keys. This is the reverse of `expand`.

    A mapping stays a value if it is empty, or if one of its keys is empty or contains a dot.
    """
    out: Tree = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value and not any("." in inner or not inner for inner in value):
            out |= flatten(value, f"{path}{key}.")
        else:
            out[f"{path}{key}"] = value
    return out


def generalize_key(key: str) -> str:
    """Returns a dotted key with `*` in place of the name of a tier.

    Example:
        >>> generalize_key("clients.tiers.weak.width"), generalize_key("local.lr")
        ('clients.tiers.*.width', 'local.lr')
    """
    return re.sub(r"(?<=^clients\.tiers\.)[^.]+", "*", key)


def show_value(value: Any) -> str:
    """Returns a value as text, in the form in which a user would write it.

    Example:
        >>> show_value(2.0), show_value(False), show_value([])
        ('2', 'false', 'none')
    """
    if value is None or value in ([], {}):
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def _key(key: object, path: KeyPath) -> str:
    if isinstance(key, int) and not isinstance(key, bool):
        key = _safely_shown(key)
    if not isinstance(key, str):
        raise BadInput(
            f"{dotted_key(path) or 'the scenario'} has the key {_safely_shown(key)}, which is not text: "
            "put it in quotes"
        )
    return str(key)


def _safely_shown(value: object) -> str:
    """Returns a number or text unchanged, and the type of any other object, for messages."""
    return quote_value(value) if isinstance(value, bool | int | float | str) else name_type(value)
