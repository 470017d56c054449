"""Reads scenarios from strict YAML into frozen dataclasses, writes them as YAML, and checks keys against each other."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedray.core import options as opt
from fedray.core.errors import BadInput, name_some, quote_value, warn_user
from fedray.core.types import ADAPTIVE_OPTIMIZERS, Tier, count_test_clients, round_to_sum
from fedray.files.layout import holds_clients
from fedray.own_code.user_code import import_modules
from fedray.scenario import names, nested
from fedray.scenario.nested import KeyPath, Tree, expand, flatten, merge_keys, to_plain_values
from fedray.scenario.options import fold_local_options, fold_options
from fedray.scenario.rows import ALWAYS_DUMPED, Place, find_idle_keys, is_dump, judge_keys, refuse_wrong
from fedray.scenario.schema import CellKeys, PartitionKeys, Scenario, section_fields, validate_scenario
from fedray.scenario.sections import ClientKeys, ParticipationKeys, TierKeys, data_spec_of
from fedray.scenario.shipped import find_scenario_file

# ---------------------------------------------------------------------------------------------------------------------
# A scenario is loaded in four steps. The first makes plain values of bounded size from YAML. The second merges the
# overrides into the file. The third adds the defaults of the method, and defaults that follow from other keys. The
# fourth checks every key, and then that no keys contradict each other. Each error is a `BadInput` of one line, which
# has the key, the value and a remedy.

__all__ = ["NamedCell", "dump_scenario", "read_cells", "read_scenario", "refuse_scenario", "to_plain"]
Overrides = Mapping[str, object] | Sequence[str]
_TABLE = ("table", "published")
_MAKE = ("clients.tiers.", "participation.", "schedule.", "local.", "compress.", "server.", "predict.", "graph.")
_MOST_NAMED, _TIERS = 12, "clients.tiers"
_SWEEP = {"space", "objectives"}  # keys of a sweep file that no scenario has


class NamedCell(NamedTuple):
    """A cell of a table.

    Attributes:
        name: Name of the cell.
        scenario: The scenario of the cell, without a table.
    """

    name: str
    scenario: Scenario


def read_scenario(
    source: Mapping[str, Any] | str | Path,
    overrides: Overrides = (),
    *,
    explicit: bool = True,
    own: Collection[str] = (),
) -> Scenario:
    """Returns the scenario that a file, a YAML text or a dict describes.

    Args:
        source: Path of a YAML file, name of a scenario that comes with fedray, YAML text, or nested dicts. A text with
            a line break or `: ` is read as YAML.
        overrides: `key.path=value` strings with values as in YAML, or a mapping of dotted or nested keys. The value
            None (or nothing after `=`) removes a key, so that its default applies.
        explicit: Whether keys that have no effect are refused. If a key has no effect because of an override or a cell,
            a `ScenarioWarning` names the key instead. A resolved scenario, which has every key, is not checked.
        own: The sections among `data`, `model` and `method` for which the caller passes a Python object instead of a
            name.

    Raises:
        BadInput: The scenario has an error.

    Example:
        >>> s = read_scenario("method: {name: fedprox, mu: 0.1}", ["rounds=3", "local.lr=1e-3"])
        >>> s.rounds, s.local.lr, s.method.models, s.method.options
        (3, 0.001, 1, {'mu': 0.1})
        >>> read_scenario(dump_scenario(s)) == s
        True
        >>> read_scenario({"method": "fedavg", "clients": 50}).clients.number
        50
    """
    file, changes = _tree(source), _overrides(overrides)
    given = merge_keys(merge_keys({}, file), changes)
    base = _scenario(_without_table(given))
    outer = validate_scenario({key: given[key] for key in _TABLE if key in given})
    cells = [_read_cell(cell, given) for cell in outer.table]
    # the overrides of a cell become its differences from the resolved base, so that YAML can hold them
    changed = [flatten(nested.find_changes(to_plain(base), to_plain(place.scenario))) for place in cells]
    table = [replace(cell, overrides=keys) for cell, keys in zip(outer.table, changed, strict=True)]
    for i, cell in enumerate(table):
        if cell.name.lower() in {other.name.lower() for other in table[:i]}:
            raise BadInput(f"table[{i}].name = {cell.name!r} is the name of another cell: choose another")
    if explicit:
        places = [Place("", {}, _without_table(given), base), *cells]
        _judge(file, changes, places, own)
    return replace(base, table=table, published=outer.published)


def read_cells(scenario: Scenario) -> list[NamedCell]:
    """Returns the cells of a scenario's table. If the scenario has no table, the only cell is `base`.

    Each cell has a scenario of its own, without a table.
    """
    if not scenario.table:
        return [NamedCell("base", scenario)]
    base = _without_table(to_plain(scenario))
    return [
        NamedCell(cell.name, replace(_scenario(merge_keys(base, expand(cell.overrides))), published=cell.published))
        for cell in scenario.table
    ]


def _read_cell(cell: CellKeys, given: Mapping[str, Any]) -> Place:
    """Returns a cell with its name, the keys that it sets, all keys, and the resulting scenario."""
    try:
        own = expand(spell_sections(cell.overrides))
        if set(own) & set(_TABLE):
            raise BadInput(f"{min(set(own) & set(_TABLE))} cannot be set by a cell: write it beside the cell's name")
        merged = merge_keys(_without_table(given), own)
        return Place(cell.name, own, merged, _scenario(merged))
    except BadInput as wrong:
        raise BadInput(f"table.{cell.name}: {wrong}") from None


def _scenario(given: Mapping[str, Any]) -> Scenario:
    tree = with_defaults(_name_objects(given))
    for path, kind in names.NAMED.items():
        tree = _fold_named(tree, path, kind)
    if isinstance(tree.get("local"), Mapping):
        tree["local"] = fold_local_options(tree["local"], section_fields("local"))
    scenario = validate_scenario(tree)
    check_scenario(scenario)
    return scenario


def _name_objects(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the keys as messages show them.

    If a section has a Python object, the `name` of the section becomes the object's name.
    """
    alone = [path[0] for path, kind in names.NAMED.items() if len(path) == 1 and kind.alone]
    sections = {key: given[key] for key in alone if isinstance(given.get(key), Mapping)}
    named = {key: {"name": part["object"], **part} for key, part in sections.items() if part.get("object") is not None}
    return {**given, **named}


def _fold_named(tree: Mapping[str, Any], path: KeyPath, kind: names.Kind) -> Tree:
    """Moves the options of a section with a `name` into its key `options`.

    Changes nothing if the section is no mapping.
    """
    if path:
        inner = tree.get(path[0])
        return {**tree, path[0]: _fold_named(inner, path[1:], kind)} if isinstance(inner, Mapping) else dict(tree)
    named = {"name": kind.default if tree.get("object") is None else tree["object"], **tree}
    return fold_options(kind.word, kind.section, named, section_fields(kind.section))


def _without_table(tree: Mapping[str, Any]) -> Tree:
    return {key: value for key, value in tree.items() if key not in _TABLE}


# ---------------------------------------------------------------------------------------------------------------------
# Steps one and two: the keys of a file, and overrides, as nested plain values. A section that a user writes as one word
# or one number becomes a mapping: `method: fedavg` becomes `method: {name: fedavg}`.

_SHORT = {  # section -> the key that one word or one number stands for: `method: fedavg`, `clients: 50`
    **{kind.section: "name" for kind in names.NAMED.values()},
    "clients": "number",
    "local.schedule": "kind",
    "server.schedule": "kind",
}
_OUTER = ("local", "server", *(path[0] for path in names.NAMED if len(path) > 1))  # sections with such sections inside


def _tree(source: Mapping[str, Any] | str | Path) -> Tree:
    folder = None
    if isinstance(source, str) and ("\n" in source or ": " in source or source.endswith(":")):
        tree = nested.parse_yaml(source)
    elif isinstance(source, Mapping):
        tree = source
    elif isinstance(source, str | Path) and str(source):
        path = find_scenario_file(str(source))
        tree, folder = nested.load_yaml(path), path.absolute().parent
    else:
        raise BadInput(f"the scenario = {quote_value(source)} is not a path, YAML text or dict: name a scenario file")
    if tree is None:
        raise BadInput("the scenario is empty: start from scenarios/quickstart.yaml")
    if not isinstance(tree, Mapping):
        raise BadInput(
            f"the scenario = {quote_value(to_plain_values(tree))} is not a mapping: write keys as 'rounds: 10'"
        )
    if not isinstance(source, Mapping) and tree.keys() >= _SWEEP:
        raise BadInput(f"{quote_value(str(source), 200)[1:-1]} is a sweep file: use `fedray tune`")
    return _drop_gone(spell_imports(spell_sections(to_plain_values(tree)), folder))


def list_given(source: Mapping[str, Any] | str | Path) -> dict[str, Any]:
    """Returns the values that a scenario sets, by dotted key."""
    return flatten(_tree(source))


def spell_sections(tree: Mapping[str, Any], path: str = "") -> Tree:
    """Puts a mapping in place of every section that a user wrote as one word or one number, as in `method: fedavg`.

    Example:
        >>> spell_sections({"method": "fedavg", "data": {"partition": "iid"}, "clients": 50})
        {'method': {'name': 'fedavg'}, 'data': {'partition': {'name': 'iid'}}, 'clients': {'number': 50}}
        >>> spell_sections({"method": "fedprox", "method.mu": 0.1})
        {'method': {'name': 'fedprox'}, 'method.mu': 0.1}
    """
    out: Tree = {}
    for key, value in tree.items():
        short = _SHORT.get(f"{path}{key}")
        if isinstance(value, Mapping):
            out[key] = spell_sections(value, f"{path}{key}.") if f"{path}{key}" in _OUTER else value
        elif short is not None and isinstance(value, int | float if short == "number" else str):
            out[key] = {short: value}
        else:
            out[key] = value
    return out


def spell_imports(tree: Tree, folder: Path | None) -> Tree:
    """Returns the keys of a scenario after the key `import` was renamed to `own.modules`.

    Paths of modules are relative to `folder`, the folder of the scenario file. None means the working directory.

    Example:
        >>> spell_imports({"rounds": 3, "import": "mine.py"}, Path("/home/ann"))
        {'rounds': 3, 'own': {'modules': ['/home/ann/mine.py']}}
    """
    if "import" not in tree:
        return tree
    given = opt.check_value("import", tree["import"], opt.list_of(opt.text, 100, scalar=True))
    files = [str((folder or Path()) / Path(name).expanduser()) if name.endswith(".py") else name for name in given]
    rest = {key: value for key, value in tree.items() if key != "import"}
    return merge_keys(rest, {"own": {"modules": files}})


def import_first(source: Mapping[str, Any] | str | Path, modules: Sequence[str] = ()) -> tuple[str, ...]:
    """Imports the given modules and the modules that a scenario names (`import`). Returns the names of all modules.

    Only commands that run a scenario import its modules.

    Raises:
        BadInput: The scenario cannot be read, or a module cannot be imported.
    """
    import_modules(modules)
    named = _part(_tree(source), "own").get("modules", ())
    own = [name for name in (named if isinstance(named, list | tuple) else ()) if name not in modules]
    import_modules(own, "import =")
    return (*modules, *own)


def _drop_gone(tree: Tree) -> Tree:
    """Returns the keys without `predict.conformal.relative_error`.

    Older resolved scenarios have this key, which has no effect any more.
    """
    predict = tree.get("predict")
    keys = predict.get("conformal") if isinstance(predict, Mapping) else None
    if isinstance(keys, Mapping) and keys.get("relative_error") == 0.01 and keys.get("quantile") in ("exact", "qq"):
        kept = {key: value for key, value in keys.items() if key != "relative_error"}
        return {**tree, "predict": {**tree["predict"], "conformal": kept}}
    return tree


def _overrides(overrides: Overrides) -> Tree:
    if isinstance(overrides, Mapping):
        return expand(spell_sections(to_plain_values(overrides)))
    out: dict[str, Any] = {}
    for text in [overrides] if isinstance(overrides, str) else overrides:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise BadInput(f"{quote_value(text)} is not an override: write key=value, such as rounds=3")
        key = key.strip()
        if key in out:
            raise BadInput(f"{quote_value(key)[1:-1]} is set twice: use one of the two")
        out[key] = nested.parse_yaml(value, f"{quote_value(key)[1:-1]} = {quote_value(value)}")
    return expand(spell_sections(to_plain_values(out)))


def refuse_scenario(where: str, tree: Any) -> None:
    """Refuses a scenario file in a place where the file of a sweep is required.

    Raises:
        BadInput: The file has the keys of a scenario.
    """
    keys = tree.keys() if isinstance(tree, Mapping) else set()
    if keys & set(section_fields("")) and not keys & {"scenario", "space"}:
        raise BadInput(f"{quote_value(where, 200)[1:-1]} is a scenario, not a sweep: use `fedray run`")


# ---------------------------------------------------------------------------------------------------------------------
# Step three: the defaults of keys that a scenario leaves out. They come from the method, or follow from other keys.

_SIZES = ("share", "number")
GIVES_CLIENTS = ("natural", "column", "file", "flower")  # partitions that decide the number of clients themselves


def with_defaults(given: Mapping[str, Any]) -> Tree:
    """Adds to the keys of a scenario the defaults of its method, and defaults that follow from other keys.

    Values of wrong types stay as they are.

    Example:
        >>> with_defaults({"method": {"name": "stacking"}})["clients"]
        {'number': 5}
        >>> with_defaults({"participation": {"per_round": 10}})["schedule"]
        {'rows': 'slot'}
    """
    named = {path[0]: {"name": kind.default} for path, kind in names.NAMED.items() if len(path) == 1}
    method = _part(given, "method").get("name", names.NAMED["method",].default)
    out = merge_keys(
        merge_keys(named, {"method": {"name": method}}),
        _for_tiers(names.method_spec_of(method).defaults, _part(given, "clients", "tiers")),
    )
    out = merge_keys(out, given)  # a given fraction replaces the method's default `per_round`
    data = _part(out, "data")  # the default partition: a file, natural clients of the data, or i.i.d. samples
    if data and isinstance(data.get("partition", {}), Mapping):
        natural = data_spec_of(data.get("name")).natural or data.get("group") is not None
        natural = natural or holds_clients(str(data.get("name")), data.get("path"))
        by_file = "file" in data.get("partition", {})
        partition = {"name": "file" if by_file else "natural" if natural else "iid", **data.get("partition", {})}
        out["data"] = {**data, "partition": partition}
    if data.get("test_clients") is not None and "test_fraction" in data_spec_of(data.get("name")).options:
        _fill(out, "data", "test_fraction", 0.0, unless=("test",))
    _fill(out, "local", "epochs", 10, unless=("steps",))
    _fill(out, "clients", "number", _number(out, method))
    for one in ("local", "server"):
        schedule = _part(out, one, "schedule")  # without restarts the rate falls until the last round
        if schedule.get("kind") in ("cosine", "linear") and not schedule.get("restart"):
            out[one], last = dict(out[one]), out.get("rounds") or 20
            spec = names.method_spec_of(method)
            if one == "server" and "meta_rounds" in spec.options:  # its server learns in the last phase
                last = _part(out, "method").get("meta_rounds") or spec.options["meta_rounds"].default or last
            _fill(out[one], "schedule", "rounds", last)
    dealt = _part(out, "data", "partition").get("name")
    if dealt == "natural" and "clients" in data_spec_of(_part(out, "data").get("name")).options:  # of a toy
        _fill(out, "data", "clients", _part(out, "clients").get("number"))
    everyone = _part(out, "clients").get("number", ...)
    share, count = (_part(out, "participation").get(key) for key in ("fraction", "per_round"))
    _fill(out, "participation", "fraction", 1.0, unless=("per_round",))
    full = share in (None, 1) and count in (None, everyone)
    _fill(out, "schedule", "rows", "client" if full else "slot")
    server = _part(out, "server")  # some rules of the server need uniform weights
    equal = server.get("robust", "none") != "none" or server.get("coefficients") == "paper_eq2"
    if equal and "weighting" not in _part(given, "server"):
        out["server"] = {**server, "weighting": "uniform"}
    _fill(out, "server", "lr", 0.01 if server.get("optimizer") in ADAPTIVE_OPTIMIZERS else 1.0)
    return out


def _part(tree: Mapping[str, Any], *path: str) -> Any:
    """Returns a section from nested keys, or an empty mapping if the section is absent."""
    at: Any = tree
    for key in path:
        at = at.get(key) if isinstance(at, Mapping) else None
    return at if isinstance(at, Mapping) else {}


def _fill(tree: Tree, section: str, key: str, value: Any, unless: tuple[str, ...] = ()) -> None:
    """Sets a key of a section.

    Does nothing if the section is no mapping, or has this key or a key of `unless`.
    """
    old = tree.get(section, {})
    if isinstance(old, Mapping) and value is not None and all(old.get(k) is None for k in (key, *unless)):
        tree[section] = {**old, key: value}


def _number(tree: Mapping[str, Any], method: object) -> int | None:
    """Returns the default number of clients N, or None if the partition decides it.

    If all tiers have a `number`, N is their sum. Otherwise a data set that generates its clients sets N. For all other
    data sets the method sets N.
    """
    tiers = [_part(tier).get("number") for tier in _part(tree, "clients", "tiers").values()]
    counted = [number for number in tiers if isinstance(number, int) and not isinstance(number, bool)]
    if tiers and len(counted) == len(tiers):
        return sum(counted) or None
    data, partition = (_part(tree, *path).get("name") for path in (("data",), ("data", "partition")))
    made = data_spec_of(data).clients
    if made is not None:
        given = _part(tree, "data").get("clients")
        return given if isinstance(given, int) and not isinstance(given, bool) else made
    given = _part(tree, "data", "partition")
    if partition in GIVES_CLIENTS or "file" in given or str(given.get("object")).startswith("flwr_datasets."):
        return None
    return names.method_spec_of(method).clients


def _for_tiers(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the defaults of a method, with tiers that fit the user's tiers.

    If the user adds a tier with a new name, all default tiers that the user does not name are dropped. If the user
    gives a share or a number for any tier, all default shares and numbers are dropped.
    """
    tiers = _part(defaults, "clients", "tiers")
    if not tiers or not given:
        return defaults
    if set(given) - set(tiers):
        tiers = {name: keys for name, keys in tiers.items() if name in given}
    if any(_part(keys).get(key) is not None for keys in given.values() if isinstance(keys, Mapping) for key in _SIZES):
        tiers = {name: {k: v for k, v in keys.items() if k not in _SIZES} for name, keys in tiers.items()}
    return {**defaults, "clients": {**defaults["clients"], "tiers": tiers}}


# ---------------------------------------------------------------------------------------------------------------------
# Step four: checks that keys do not contradict each other, tiers with their clients, and scenarios of methods that pool
# the data.


def check_scenario(scenario: Scenario) -> None:
    """Checks that no keys contradict each other. Raises `BadInput` for the first contradiction."""
    refuse_wrong(scenario)
    networks, tiers = scenario.method.options.get("networks", ()), scenario.clients.tiers
    named = [str(one.get("tier")) for one in networks]
    if any("tier" in one for one in networks) and sorted(named) != sorted(tiers):
        raise BadInput(
            f"method.networks has the tiers {', '.join(named)}, but clients.tiers are {', '.join(tiers) or 'none'}: "
            "name each tier in one network, or none in any"
        )
    shares = [tier.share for tier in tiers.values() if tier.share is not None]
    is_open = any(tier.share is None and tier.number is None for tier in tiers.values())
    total = sum(shares)
    if shares and (total > 1.001 or (total < 0.999 and not is_open)):
        raise BadInput(
            f"clients.tiers.*.share = {total:g} together: make the shares add up to 1 (of the clients that are in no "
            "tier with a number)"
        )
    number, unseen = scenario.clients.number, scenario.data.test_clients
    if number is not None and not (unseen is not None and names.method_spec_of(scenario.method.name).pooled):
        out = 0 if unseen is None else count_test_clients(unseen, number)
        tier_table(scenario, max(1, number - out))


def pool_clients(scenario: Scenario) -> Scenario:
    """Gives a scenario a single client with all samples, if its method pools the data.

    Returns other scenarios unchanged.
    """
    if not names.method_spec_of(scenario.method.name).pooled:
        return scenario
    data, number = scenario.data, scenario.clients.number or 1
    if data.name == "synthetic":  # each client generates its samples: one client generates all
        more = {"samples": number * data.options["samples"], "per_client": 0, "spread": 0.0}
        data = replace(data, options={**data.options, **more})
    keys = scenario.clients
    gpus = max((tier.num_gpus for tier in keys.tiers.values()), default=0.0)
    everything = {"pooled": TierKeys(models_per_round="all", num_gpus=gpus)}
    return replace(
        scenario,
        data=replace(data, partition=PartitionKeys("natural" if data.name == "synthetic" else "iid")),
        clients=ClientKeys(number=1, tiers=everything, device=keys.device, tf32=keys.tf32),
        participation=ParticipationKeys(fraction=1.0),
        schedule=replace(scenario.schedule, kind="permutation", rows="client"),
        evaluate=replace(scenario.evaluate, personal=False, personal_steps=None, clients=None, by_tier=False),
    )


def tier_table(scenario: Scenario, number: int) -> tuple[Tier, ...]:
    """Returns each tier with its number of clients. The numbers add up to N.

    A scenario without tiers has the single tier `client`. With a natural partition N is known only when the data are
    loaded.

    Raises:
        BadInput: The numbers of tiers, or of participants in a round, do not fit N.
    """
    per_round = scenario.participation.per_round
    if per_round is not None and per_round > number:
        raise BadInput(
            f"participation.per_round = {per_round}, but {number} clients train: lower it or raise clients.number"
        )
    tiers = scenario.clients.tiers or {"client": TierKeys()}
    counts = tier_counts(tiers, number)
    table = []
    for name, keys in tiers.items():
        models = None if isinstance(keys.models_per_round, str) else keys.models_per_round
        same = {key: value for key, value in asdict(keys).items() if key != "share"}
        table.append(Tier(**same | {"name": name, "number": counts[name], "models_per_round": models}))
    return tuple(table)


def tier_counts(tiers: Mapping[str, TierKeys], number: int) -> dict[str, int]:
    """Returns the number of clients of each tier.

    A tier with a `number` has this many clients. The remaining clients are divided by `share`. Tiers without `number`
    and `share` get equal parts of the rest. Numbers are rounded by the method of the largest remainder.

    Example:
        >>> from fedray.scenario.sections import TierKeys
        >>> tier_counts({"strong": TierKeys(share=0.2), "weak": TierKeys()}, 10)
        {'strong': 2, 'weak': 8}
    """
    fixed = {name: tier.number for name, tier in tiers.items() if tier.number is not None}
    taken = sum(fixed.values())
    if taken > number or (tiers and len(fixed) == len(tiers) and taken < number):
        shown = ", ".join(list(fixed)[:5])
        raise BadInput(
            f"clients.tiers have {taken} clients in all ({shown}), but {number} clients train: "
            "change the number of a tier, or take one out (clients.tiers.NAME=null)"
        )
    rest = number - taken
    shares = {name: tier.share for name, tier in tiers.items() if tier.share is not None}
    open_tiers = [name for name in tiers if name not in fixed and name not in shares]
    left = max(0.0, 1.0 - sum(shares.values()))
    unordered = {**shares, **{name: left / len(open_tiers) for name in open_tiers}}
    weights = {name: unordered[name] for name in tiers if name in unordered}
    total = sum(weights.values())
    if total <= 0:
        return {name: fixed.get(name, 0) for name in tiers}
    largest = sorted(weights, key=lambda name: -weights[name])  # among equal remainders the largest weight comes first
    counts = round_to_sum(np.array([weights[name] / total * rest for name in largest]), rest)
    dealt = dict(zip(largest, counts.tolist(), strict=True)) | fixed
    return {name: dealt[name] for name in tiers}


# ---------------------------------------------------------------------------------------------------------------------
# Keys that a user set and that have no effect, or that stay although an override replaces the method.


def _judge(file: Tree, changes: Tree, places: list[Place], own: Collection[str]) -> None:
    """Checks that every key that a user set has an effect. Skips resolved scenarios, which have every key.

    `file` has the keys of the file, `changes` has the overrides, and `places` has the base and the cells. `own` has the
    sections among `data`, `model` and `method` for which the caller passes a Python object.
    """

    @cache
    def alone() -> Scenario | None:
        try:
            return _scenario(merge_keys({}, _without_table(file)))
        except BadInput:
            return None

    whole = False
    if file.keys() >= ALWAYS_DUMPED:
        resolved = alone()
        if resolved is not None and is_dump(_without_table(file), to_plain(resolved)):
            places, whole = [Place("", {}, changes, places[0].scenario)], True
    judge_keys(places, changes, alone, own)
    if line := explain_kept_keys(file, changes, places[0].scenario, whole=whole):
        warn_user(line)


def explain_kept_keys(file: Tree, changes: Tree, scenario: Scenario, *, whole: bool) -> str:
    """Returns a line for the user if an override replaces the method, but keys of the file stay.

    The line names the keys of the file that differ from the defaults of the new method. In a file that a person wrote,
    it names only keys for which the old method has a default, because the other keys may be meant for every method. If
    there are no such keys, the text is empty. `whole` says whether the file is a resolved scenario, which fedray wrote.
    """
    if not nested.is_renamed(_part(file, "method"), _part(changes, "method"), ("method",)):
        return ""
    now, method = to_plain(scenario), scenario.method.name
    names_now = {"method": {"name": method}, "data": now["data"], "model": now["model"]}
    try:
        usual = to_plain(_scenario({**names_now, "clients": {"number": scenario.clients.number}}))
    except BadInput:  # the method needs further keys
        usual = names_now
    old = names.method_spec_of(_part(file, "method").get("name", names.KINDS["method"].default))
    first, set_now, value, default = (flatten(tree) for tree in (old.defaults, changes, now, usual))
    kept: dict[str, Any] = {}
    for key in flatten(file):
        mine = key in first or (whole and (key == "rounds" or key.startswith(_MAKE)))
        stays = key in value and key not in set_now and value[key] != default.get(key)
        if mine and stays and not key.startswith("method."):
            kept[_TIERS if key.startswith(_TIERS) else key] = value[key]
    idle = {one.key for one in find_idle_keys(expand(kept), scenario)}
    each = [key if key == _TIERS else f"{key} = {quote_value(kept[key], 40)}" for key in kept if key not in idle]
    keys = ", ".join(each[:_MOST_NAMED]) + ", ..." * (len(each) > _MOST_NAMED)
    return f"method.name = {method} keeps {keys} from the file: KEY=null gives its own default" if each else ""


def warn_of_own_cells(scenario: Scenario, overrides: Overrides, only: Sequence[str] = ()) -> None:
    """Warns of overrides that cells of the table replace by values of their own.

    `only` has the names of the cells that are run. An empty list stands for all cells.

    Example:
        >>> import warnings
        >>> table = [{"name": "short"}, {"name": "long", "overrides": {"rounds": 9}}]
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     warn_of_own_cells(read_scenario({"table": table}, ["rounds=2"]), ["rounds=2"], only=["short"])
        ...     warn_of_own_cells(read_scenario({"table": table}, ["rounds=2"]), ["rounds=2"])
        >>> [str(one.message) for one in caught]
        ['rounds = 2 cannot act in cell long, which has its own: change it in the file']
    """
    lines, run = [], [cell for cell in scenario.table if cell.name in only or not only]
    for key, value in flatten(_overrides(overrides)).items():
        if value is not None and (cells := [cell.name for cell in run if cell.overrides.get(key, value) != value]):
            lines.append(f"{key} = {quote_value(value)} cannot act in cell {name_some(cells)}, which has its own")
    if lines:
        warn_user(f"{'; '.join(lines)}: change it in the file")


# ---------------------------------------------------------------------------------------------------------------------
# A scenario as plain values and as YAML.


def to_plain(scenario: Scenario) -> dict[str, Any]:
    """Returns a scenario as plain values with all defaults, in the order of the fields.

    Leaves out keys whose value is None.
    """
    out = asdict(scenario, dict_factory=_join_options)
    for path, kind in names.NAMED.items():
        if kind.alone and "object" in (section := _part(out, *path)):  # the name does not describe the Python object
            del section["name"]
    everybody = {"name": names.KINDS["selection"].default}
    usual = names.method_spec_of(scenario.method.name).defaults.get("participation", {}).get("selection", everybody)
    if out["participation"]["selection"] == everybody == usual:  # older files lack this key
        del out["participation"]["selection"]
    if not out["clients"]["tf32"]:  # older files lack this key
        del out["clients"]["tf32"]
    return out


def dump_scenario(scenario: Scenario) -> str:
    """Returns a scenario as YAML text, from which `read_scenario` makes an equal scenario."""
    return nested.write_yaml(to_plain(scenario))


def _join_options(entries: list[tuple[str, Any]]) -> dict[str, Any]:
    """Makes the dict of a section, in which its options stand next to its name."""
    section = dict(entries)
    options: dict[str, Any] = section.pop("options", {})
    return {key: entry for key, entry in section.items() if entry is not None} | options


# ---------------------------------------------------------------------------------------------------------------------
# The keys of a scenario that act, for files that people edit. Keys that nobody set are left out, so if a person changes
# the method in the file, the defaults of the new method apply.


def find_acting_keys(scenario: Scenario, given: Mapping[str, Any]) -> Tree:
    """Returns the keys that a user has set, and all other keys of a scenario whose values do not follow from them.

    The values are those of the scenario. Keys without an effect are left out.

    Args:
        scenario: A resolved scenario. Its cells (`table`) are ignored.
        given: The keys that the user has set.

    Example:
        >>> given = {"method": {"name": "shefl", "models": 3}, "server": {"lr": 0.1}}
        >>> find_acting_keys(read_scenario(given, {"rounds": 9}, explicit=False), given)
        {'method': {'name': 'shefl', 'models': 3}, 'rounds': 9}
    """
    resolved, before = (to_plain(replace(one, table=[])) for one in (scenario, read_scenario(given, explicit=False)))
    tree = merge_keys(given, nested.find_changes(before, resolved))
    idle = {one.key for one in find_idle_keys(tree, scenario)}
    return expand({key: value for key, value in flatten(tree).items() if key not in idle})
