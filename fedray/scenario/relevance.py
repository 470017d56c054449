"""Which of the keys that a user sets cannot act: nothing reads them in this scenario.

Example:
    >>> from fedray.scenario.loader import read_scenario
    >>> read_scenario({"server": {"momentum": 0.5}})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    fedray.core.errors.BadInput: server.momentum = 0.5 cannot act, because server.optimizer is none and only ...
"""

from __future__ import annotations

import math
import re
from collections.abc import (
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import fields
from typing import Any, NamedTuple

from fedray.core.errors import BadInput, warn_user
from fedray.core.spec import MethodSpec, Needs
from fedray.core.text import quote_value
from fedray.methods import METHOD_SPECS
from fedray.scenario.clients import TierKeys
from fedray.scenario.data import CLIENT_KINDS, data_spec_of, explain_idle_size
from fedray.scenario.methods import method_spec_of
from fedray.scenario.models import MODEL_SPECS
from fedray.scenario.names import KINDS
from fedray.scenario.nested import expand, flatten, merge_keys
from fedray.scenario.schema import Scenario, find_key, section_types

# ---------------------------------------------------------------------------------------------------------------------
# Values of keys that say that nothing special is done: they are true, and accepted, also where the key cannot act.

_NEUTRAL: dict[str, tuple[Any, ...]] = {  # key -> values; * stands for the name of a tier
    "server.weighting": ("uniform",),
    "server.coefficients": ("fedavg",),
    "server.lr": (1,),
    "compress.ratio": (1,),
    "compress.resource_ratio": (1,),
    "schedule.kind": ("permutation", "walk"),  # a walk is refused where there is a server
    "schedule.rows": ("client",),
    "clients.number": (1,),  # where all rows are one client's
    "clients.tiers.*.share": (1,),
    "clients.tiers.*.models_per_round": (1,),
    "clients.tiers.*.width": (1,),
    "data.partition.name": ("iid",),
    "participation.selection.name": ("uniform",),
    "participation.mode": ("sync",),
    "participation.alpha": (1,),
    "participation.staleness": ("constant",),
    "model.objective": ("auto",),
    "participation.overcommit": (1,),
    "participation.fraction": (1,),
    "participation.per_round": (1,),  # where all rows are one client's
    "local.lr_decay": (1,),
    "local.schedule.kind": ("constant",),
    "local.schedule.gamma": (1,),
    "predict.gamma": (math.inf,),
    "predict.average": ("probabilities",),
    "vary": ("all",),
    "lanes": ("auto",),
    "clients.device": ("auto",),
    "graph.transition": ("uniform",),
}


def is_neutral(key: str, value: Any) -> bool:
    """Whether the value of a key says that nothing special is done.

    Args:
        key: dotted.
        value: what it is set to.

    Example:
        >>> is_neutral("clients.tiers.weak.width", 1.0), is_neutral("rounds", 1)
        (True, False)
    """
    return value in _NEUTRAL.get(re.sub(r"(?<=^clients\.tiers\.)[^.]+", "*", key), ())


# ---------------------------------------------------------------------------------------------------------------------
# What a key needs stands where the key is defined: beside the field (`Needs`), in the option of a method, or in the
# method's `MethodSpec`. Here they are put together with what the numbers of a scenario say, such as K = 1.

RUNTIME = ("clients.per_actor", "clients.actors")  # where clients are computed never changes a result
PROFILED = (".seconds_per_step", ".seconds_per_sample", ".uplink", ".downlink", ".latency", ".spread")
_MEAN = ("server.weighting", "server.coefficients", "server.robust", "server.trim", "server.byzantine")
_TRAINING = ("rounds", "local.", "compress.", "server.", "model.weight_sd", "model.objective", "predict.noise")
_POPULATION = ("clients.", "participation.", "schedule.", "data.partition.", *_MEAN)


class Idle(NamedTuple):
    """A key that cannot act.

    Attributes:
        key: dotted.
        value: what it is set to.
        why: the reason, to be read behind "but".
    """

    key: str
    value: Any
    why: str


def find_idle_keys(given: Mapping[str, Any], scenario: Scenario, own: Collection[str] = ()) -> list[Idle]:
    """The keys that are set and cannot act, in their order.

    Args:
        given: what the user sets, as a tree.
        scenario: what it resolves to.
        own: which of data, model and method are Python objects, of which nothing is known here.

    Example:
        >>> from fedray.scenario.loader import read_scenario
        >>> scenario = read_scenario({"method": {"name": "fedavg"}})
        >>> [idle.key for idle in find_idle_keys({"server": {"lr": 0.1}, "rounds": 3}, scenario)]
        ['server.lr']
    """
    recorded = {kind for kind in ("data", "model", "method") if value_at(scenario, f"{kind}.object") is not None}
    found, own = [], {*own, *recorded}
    for key, value in flatten(given).items():
        if key not in RUNTIME and not says_nothing(key, value):
            why = _why_idle(key, scenario, own)
            if why:
                found.append(Idle(key, value, why))
    return found


def explain_idle_key(idle: Idle) -> str:
    """The line that refuses a key: key, value, reason, remedy.

    Example:
        >>> explain_idle_key(Idle("server.lr", 0.1, "server.optimizer is none"))
        'server.lr = 0.1 cannot act, because server.optimizer is none: leave it out'
    """
    return f"{idle.key} = {quote_value(idle.value)} cannot act, because {idle.why}: leave it out"


def says_nothing(key: str, value: Any) -> bool:
    """Whether the value of a key says that nothing is done, which is true wherever it stands."""
    if value is None or value is False or value in ("none", "dense", "always") or value in ([], {}):
        return True
    return (value == 0 and not key.startswith("predict.")) or is_neutral(key, value)


def _why_idle(key: str, scenario: Scenario, own: Collection[str]) -> str:
    """Why a key cannot act; empty if it can."""
    section = key.partition(".")[0]
    if section in own and section != "method":
        option = key.removeprefix(f"{section}.")
        return f"{KINDS[section].subject} a Python object" if option in value_at(scenario, section).options else ""
    spec = method_spec_of(None if "method" in own else scenario.method.name)
    return (
        _by_method(key, scenario, spec)
        or _by_widths(key, scenario, spec)
        or _by_need(key, scenario, own)
        or ("" if "method" in own else _by_one_model(key, scenario, spec))
        or explain_idle_size(key, scenario.data.partition.name, scenario.data.partition.options)
        or _by_data(key, scenario, own)
        or _by_population(key, scenario)
    )


def is_read(key: str, scenario: Scenario) -> bool:
    """Whether the method of a scenario reads a key at all, whatever the other keys say; for the reference.

    Args:
        key: dotted, not an option of the method itself.
        scenario: names the method.

    Example:
        >>> is_read("server.robust", Scenario()), is_read("graph.kind", Scenario())
        (True, False)
    """
    spec = method_spec_of(scenario.method.name)
    if key.startswith("graph."):
        return spec.walks
    decided = {"method.models": spec.models == "any", "server.robust": spec.robust}
    decided |= {"clients.tiers.*.width": spec.slices}
    decided |= dict.fromkeys(("server.optimizer", "server.lr", "server.momentum"), spec.optimizer)
    return decided.get(key, True) and not _by_method(key, scenario, spec)


def _by_method(key: str, scenario: Scenario, spec: MethodSpec) -> str:
    """What the method does not read, from its specification."""
    name = scenario.method.name
    if why := spec.idle(name, key, scenario.method.options):
        return why
    if not spec.downloads and key.endswith(".downlink"):
        return f"{name} sends nothing to its clients"
    if not spec.trains and key.startswith(_TRAINING):
        return f"{name} is fitted in closed form, without rounds"
    wrong_labels = CLIENT_KINDS.keys() & scenario.data.partition.options.keys()
    generated = scenario.data.name == "synthetic" and key == "clients.number"
    if spec.pooled and key.startswith(_POPULATION) and not wrong_labels and not generated:
        return f"{name} trains on the pooled data, as one client"
    if not spec.averages and key in _MEAN:
        return f"{name} has no mean of several clients' uploads"
    if not spec.coefficients and key == "server.coefficients":
        return f"{name} has a server of its own"
    if not spec.schedules and (key in ("schedule.kind", "schedule.rows") or key.endswith(".models_per_round")):
        strata = key == "schedule.rows" and scenario.schedule.rows == "stratum"
        partial = strata and not _is_full(scenario) and not spec.walks and not spec.pooled
        return "" if partial else f"{name} says by itself who trains which model"
    if key == "local.private" and not spec.splits:
        return f"{name} keeps no layers of its network at the clients"
    if (spec.own_models or scenario.local.private) and key == "predict.gamma":
        return f"a known client of {name} answers with {'weights' if spec.all_models else 'a model'} of its own"
    if key.startswith("model.") and (named := {"bases", "networks"} & scenario.method.options.keys()):
        listed = [one for one in named if scenario.method.options[one]]
        return f"method.{listed[0]} names the networks" if listed else ""
    return ""


def _by_widths(key: str, scenario: Scenario, spec: MethodSpec) -> str:
    """What needs tiers that train parts of the network."""
    if key.startswith("clients.tiers.") and key.endswith(".width") and not spec.slices:
        return f"every client of {scenario.method.name} trains the whole network"
    cuts_nothing = all(tier.width == 1 for tier in scenario.clients.tiers.values())
    return "no tier has a width below 1" if key == "method.scaler" and cuts_nothing and spec.slices else ""


def _by_need(key: str, scenario: Scenario, own: Collection[str]) -> str:
    """What the key's own field or option says it needs."""
    need = _need_of(key, scenario)
    if need is None or need.key.partition(".")[0] in own:
        return ""
    value = value_at(scenario, need.key)
    if value in need.values:
        return ""
    return f"{need.key} is {value} and only {', '.join(map(str, need.values))} read{'s' * (len(need.values) == 1)} it"


def _need_of(key: str, scenario: Scenario) -> Needs | None:
    section, _, last = key.rpartition(".")
    named: dict[str, Any] = {one: getattr(scenario, one) for one in ("method", "data", "model")}
    if section in named and last not in {f.name for f in fields(named[section])}:
        spec = KINDS[section].specs.get(named[section].name)
        option = None if spec is None else spec.options.get(last)
        return None if option is None else option.needs
    if section.startswith("clients.tiers") or section not in section_types():
        return None
    found = find_key(section, last)
    return None if found is None else found.needs


def value_at(scenario: Scenario, key: str) -> Any:
    """The value of a dotted key in a resolved scenario; None where it is absent.

    Example:
        >>> value_at(Scenario(), "server.optimizer")
        'none'
    """
    at: Any = scenario
    for part in key.split("."):
        options = getattr(at, "options", {})
        at = options.get(part) if part in options else getattr(at, part, None)
    return at


def _by_one_model(key: str, scenario: Scenario, spec: MethodSpec) -> str:
    """What needs several models."""
    several = any(base.get("models", 1) > 1 for base in scenario.method.options.get("bases", ()))
    if scenario.method.models > 1 or several or spec.models == "clients":
        return ""
    why = f"method.models is {scenario.method.models}"
    if key in ("predict.gamma", "predict.average") and not spec.samples:
        return why
    if key == "schedule.kind" or (
        key == "schedule.rows" and (scenario.schedule.rows != "stratum" or _is_full(scenario))
    ):
        return why
    if key.endswith(".models_per_round") and scenario.compress.kind not in ("topk", "randomk"):
        return why  # sparse uploads of a tier that trains `all` have a budget of their own
    return why if key.endswith(".side_by_side") and len(scenario.method.options.get("bases", ())) < 2 else ""


def _by_data(key: str, scenario: Scenario, own: Collection[str]) -> str:
    """What needs data of another kind."""
    name = scenario.data.name
    network = scenario.model
    known = "model" not in own and network.name in MODEL_SPECS
    if key == "predict.dropout_at_test" and known and not network.options.get("dropout"):
        return f"the network {network.name} has no dropout (model.dropout)"
    if key == "data.test_fraction" and "test" in scenario.data.options:
        return "data.test names the test rows"
    task = "" if "data" in own else "regression" if name.startswith("uci/") else data_spec_of(name).task
    if key in ("predict.noise", "method.residuals") and task == "classification":
        return f"{name} has classes"
    if key == "predict.noise" and scenario.predict.noise == "residual" and scenario.model.objective == "gaussian_nll":
        return "model.objective is gaussian_nll, whose networks say by themselves how large the noise is"
    return f"{name} has real targets" if key == "predict.average" and task == "regression" else ""


def _by_population(key: str, scenario: Scenario) -> str:
    """What needs several tiers, other links, a part of the clients or several replicates."""
    tiers = list(scenario.clients.tiers.values()) or [TierKeys()]
    keys, full, permuted = scenario.clients, _is_full(scenario), scenario.schedule.kind == "permutation"
    links = len({one.uplink for one in tiers}) > 1 or keys.trace is not None or keys.profile is not None
    gpus = any(one.num_gpus for one in tiers)
    tested = {
        "server.coefficients": (len(tiers) == 1, "there is one tier of clients"),
        "compress.adaptive": (not links, "all uplinks are alike"),
        "compress.resource_ratio": (
            all(one.models_per_round == 1 for one in tiers) and not method_spec_of(scenario.method.name).pooled,
            "no tier trains several models a round (clients.tiers.*.models_per_round)",
        ),
        "participation.overcommit": (full, "all clients take part in every round"),
        "participation.selection": (full, "all clients take part in every round"),
        "participation.staleness_a": (scenario.participation.mode == "sync", "participation.mode is sync"),
        "evaluate.every": (scenario.evaluate.every_seconds is not None, "evaluate.every_seconds takes its place"),
        "schedule.rows": (full and not permuted, f"schedule.kind is {scenario.schedule.kind}"),
        "local.lr": (bool(scenario.local.lr_grid), "local.lr_grid takes its place"),
        "local.lr_decay_every": (scenario.local.lr_decay == 1, "local.lr_decay is 1"),
        "vary": (scenario.replicates == 1, "replicates is 1"),
        "clients.device": (not gpus, "no tier has GPUs (clients.tiers.*.num_gpus)"),
        "clients.tf32": (
            not gpus or keys.device == "cpu",
            "clients.device is cpu" if gpus else "no tier has GPUs (clients.tiers.*.num_gpus)",
        ),
    }
    named = "participation.selection" if key.startswith("participation.selection.") else key
    idle, why = tested.get(named, (False, ""))
    if key.startswith("clients.tiers.") and key.endswith(PROFILED) and scenario.clients.profile is not None:
        idle, why = True, f"clients.profile = {scenario.clients.profile} gives every client figures of its own"
    if key.endswith(".side_by_side") and not _trains_several_parts(scenario):
        tier = scenario.clients.tiers.get(key.split(".")[2], TierKeys())
        idle, why = tier.models_per_round == 1, "the tier trains one model a round"
    return why if idle else ""


def _trains_several_parts(scenario: Scenario) -> bool:
    """Whether a client may train several models in a round whatever its tier says: walks, bases of a stack."""
    return scenario.schedule.kind == "walk" or len(scenario.method.options.get("bases", ())) > 1


def _is_full(scenario: Scenario) -> bool:
    """Whether every client takes part in every round."""
    keys, clients = scenario.participation, scenario.clients
    return keys.fraction == 1 or (keys.per_round is not None and keys.per_round == clients.number)


# ---------------------------------------------------------------------------------------------------------------------
# Settings in which one method equals another, such as one model: allowed, with a warning that names the other method.

_REGULAR = ("ring", "complete", "torus")


def name_limits(scenario: Scenario, own: Collection[str] = ()) -> list[str]:
    """One clause for each setting in which something is another thing: `key = value: what it is`.

    Args:
        scenario: has the settings.
        own: which of data, model and method are Python objects, of which nothing is known here.

    Example:
        >>> from fedray.scenario.loader import read_scenario
        >>> name_limits(read_scenario({"method": {"name": "fedprox", "mu": 0.01}}))
        []
        >>> name_limits(read_scenario({"compress": {"kind": "topk", "ratio": 0.5}}))
        []
    """
    is_own = "method" in own or scenario.method.object is not None
    found = [one for one in _limits(scenario) if not (is_own and one[0].startswith("method."))]
    return [f"{key} = {value} makes it {other}" for key, value, other in found]


def _limits(scenario: Scenario) -> Iterator[tuple[str, object, str]]:
    """Key, value, and what the method or its part is with it."""
    method, compress, server, graph = scenario.method, scenario.compress, scenario.server, scenario.graph
    for limit in method_spec_of(method.name).limits:
        value = method.models if limit.key == "models" else method.options.get(limit.key)
        if value == limit.value:
            yield f"method.{limit.key}", limit.value, limit.text
    slices = method.name in METHOD_SPECS and METHOD_SPECS[method.name].slices
    if slices and all(tier.width == 1 for tier in scenario.clients.tiers.values()):
        other = "FedAvg" if method.models == 1 else "Fed-ensemble"
        yield "clients.tiers.*.width", 1, f"{other} ({method.name} that cuts nothing)"
    if compress.kind in ("topk", "randomk") and compress.ratio == 1:
        kept = ", error feedback keeps nothing back" if compress.error_feedback else ""
        yield "compress.ratio", 1, f"a dense upload ({compress.kind} that keeps every entry{kept})"
    if server.robust == "trimmed_mean" and server.trim == 0:
        yield "server.trim", 0, "the plain mean (trimmed_mean that drops nothing)"
    if server.optimizer == "momentum" and server.momentum == 0 and server.lr == 1:
        yield "server.momentum", 0, "the plain mean (momentum 0 at rate 1)"
    if scenario.schedule.kind == "walk" and graph.transition == "metropolis" and graph.kind in _REGULAR:
        yield "graph.transition", "metropolis", f"uniform (every node of a {graph.kind} has as many neighbours)"


# ---------------------------------------------------------------------------------------------------------------------
# Keys that a user set and that nothing reads: they are refused, or named in a warning where an override made them so.
#
# A resolved scenario holds every key, so none of them says what a user wanted: it is read without these checks.

ALWAYS_DUMPED = {"graph", "checkpoint", "loggers", "predict"}  # a file with all of them may be a resolved scenario
_OLD_SECTIONS = ("graph", "predict")  # a resolved scenario of any version has all their keys
_YOUNGER = {"dropout_at_test"}  # except these
_MOST_NAMED = 3


class Place(NamedTuple):
    """A scenario that a file describes: its base, or a cell of its table.

    Attributes:
        name: of the cell; empty for the base.
        own: what the cell itself sets.
        given: all that is set.
        scenario: what it resolves to.
    """

    name: str
    own: Mapping[str, Any]
    given: Mapping[str, Any]
    scenario: Scenario


def is_dump(file: Mapping[str, Any], resolved: dict[str, Any]) -> bool:
    """Whether a file is a resolved scenario, also one of an earlier version, in which younger keys are missing.

    Args:
        file: its keys as a tree.
        resolved: what it resolves to, with every key.

    Example:
        >>> is_dump({"graph": {"kind": "ring"}, "predict": {}}, {"graph": {"kind": "ring", "edges": 3}, "predict": {}})
        False
    """
    for name in _OLD_SECTIONS:
        if not isinstance(file.get(name), dict) or not file[name].keys() >= resolved[name].keys() - _YOUNGER:
            return False
    return merge_keys(resolved, file) == resolved


def judge_keys(
    places: list[Place], overrides: Mapping[str, Any], alone: Callable[[], Scenario | None], own: Collection[str]
) -> None:
    """Refuses keys that cannot act, and warns, in one line, of those that an override or a cell made so.

    Args:
        places: the base and the cells.
        overrides: what the command line or the caller sets.
        alone: gives the scenario without the overrides; None if it cannot be read.
        own: which of data, model and method are Python objects.

    Raises:
        BadInput: a key cannot act wherever it stands.
    """
    idle = {place.name: find_idle_keys(place.given, place.scenario, own) for place in places}
    for place in places:
        for one in idle[place.name]:
            if place.name and one.key in flatten(place.own):
                raise BadInput(f"table.{place.name}: {explain_idle_key(one)}")
    for one in idle[""]:
        if all(_holds(idle[place.name], one.key) or not _is_set(place, one.key) for place in places):
            said_now = one.key in flatten(overrides)
            before = alone() if overrides and not said_now else places[0].scenario
            if said_now or (before is not None and _stays_idle(one.key, places, before)):
                raise BadInput(explain_idle_key(one))
    said = [*_name_idle(places, idle), *_name_limits(places, own)]
    if said:
        warn_user("; ".join(said))


def _stays_idle(key: str, places: list[Place], before: Scenario) -> bool:
    """Whether a key of the file could not act without the overrides and the Python objects either.

    The other keys are not looked at: `before` need not have what overrides are about, such as a tier.
    """
    return _holds(find_idle_keys(expand({key: flatten(places[0].given)[key]}), before), key)


def _holds(idle: list[Idle], key: str) -> bool:
    return any(one.key == key for one in idle)


def _is_set(place: Place, key: str) -> bool:
    return key in flatten(place.given)


def _name_idle(places: list[Place], idle: Mapping[str, list[Idle]]) -> list[str]:
    """Which keys cannot act and why, in which cells; keys with the same reason in the same cells are named together."""
    where: dict[tuple[str, str], list[str]] = {}
    for place in places[1:] or places:
        for one in idle[place.name]:
            where.setdefault((one.why, one.key), []).append(place.name)
    keys: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (why, key), cells in where.items():
        keys.setdefault((why, tuple(cells)), []).append(key)
    return [
        f"{', '.join(names)} cannot act{f' in {_name_cells(cells)}' if cells[0] else ''}, because {why}"
        for (why, cells), names in keys.items()
    ]


def _name_limits(places: list[Place], own: Collection[str]) -> list[str]:
    if len(places) == 1:
        return name_limits(places[0].scenario, own)
    limits: dict[str, list[str]] = {}
    for place in places[1:]:
        for text in name_limits(place.scenario, own):
            limits.setdefault(text, []).append(place.name)
    return [f"in {_name_cells(cells)} {text}" for text, cells in limits.items()]


def _name_cells(cells: Sequence[str]) -> str:
    more = f" and {len(cells) - _MOST_NAMED} more" if len(cells) > _MOST_NAMED else ""
    return f"cell{'s' if len(cells) > 1 else ''} {', '.join(cells[:_MOST_NAMED])}{more}"
