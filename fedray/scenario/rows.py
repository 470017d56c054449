"""Refuses keys without an effect, and contradictory values, by a table of conditions and reasons.

Example:
    >>> from fedray.scenario.loader import read_scenario
    >>> read_scenario({"server": {"momentum": 0.5}})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    fedray.core.errors.BadInput: server.momentum = 0.5 cannot act, because server.optimizer is none and only ...
"""

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from fedray.core.errors import BadInput, name_some, quote_value, warn_user
from fedray.core.options import MethodSpec, Needs
from fedray.core.types import SPARSE_KINDS
from fedray.methods import METHOD_SPECS
from fedray.methods.beta_predbayes import FIT
from fedray.methods.fens import FIXED
from fedray.scenario.names import KINDS, MODEL_SPECS, method_spec_of
from fedray.scenario.nested import expand, flatten, generalize_key, merge_keys, show_value
from fedray.scenario.schema import Scenario, find_key, section_fields, section_types
from fedray.scenario.sections import CLIENT_KINDS, TierKeys, data_spec_of

# ---------------------------------------------------------------------------------------------------------------------
# A row refuses a key that a user set and that has no effect. The message is `KEY = VALUE cannot act, because WHY: leave
# it out`. A row with a `value` refuses a wrong value, no matter who set the key. The message is `KEY = VALUE, but WHY:
# REMEDY`. Some keys need a certain value of another key, which is declared with the key (`Needs`). A single row covers
# all of them.
#
# Facts about a scenario, from which the conditions of rows are computed.


@dataclass(frozen=True)
class Case:
    """A key of a resolved scenario, and facts that decide whether the key has an effect and a valid value.

    Attributes:
        scenario: The scenario.
        key: The dotted key.
        own: The sections among `data`, `model` and `method` for which the caller passes a Python object instead of a
            name.
    """

    scenario: Scenario
    key: str
    own: Collection[str] = ()

    @property
    def value(self) -> Any:
        """Returns the value of the key."""
        return value_at(self.scenario, self.key)

    @property
    def name(self) -> str:
        """Returns the name of the method."""
        return self.scenario.method.name

    @property
    def spec(self) -> MethodSpec:
        """Returns the specification of the method, or the general specification for a Python function."""
        return method_spec_of(None if "method" in self.own else self.name)

    @property
    def options(self) -> dict[str, Any]:
        """Returns the options of the method."""
        return self.scenario.method.options

    @property
    def tier(self) -> TierKeys:
        """Returns the tier that the key belongs to."""
        return self.scenario.clients.tiers.get(self.key.removeprefix("clients.tiers.").partition(".")[0], TierKeys())

    @property
    def tiers(self) -> list[TierKeys]:
        """Returns all tiers, or a single tier with defaults if the scenario has no tiers."""
        return list(self.scenario.clients.tiers.values()) or [TierKeys()]

    @property
    def bases(self) -> int:
        """Returns the number of base models in `method.bases`."""
        return len(self.options.get("bases", ()))

    @property
    def is_full(self) -> bool:
        """Returns whether every client takes part in every round."""
        keys = self.scenario.participation
        return keys.fraction == 1 or (keys.per_round is not None and keys.per_round == self.scenario.clients.number)

    @property
    def has_one_model(self) -> bool:
        """Returns whether the method trains a single model. If the method is a Python object, returns False."""
        several = any(base.get("models", 1) > 1 for base in self.options.get("bases", ()))
        return not ("method" in self.own or self.scenario.method.models > 1 or several or self.spec.models == "clients")

    @property
    def walks(self) -> bool:
        """Returns whether models walk over a graph of clients."""
        return self.scenario.schedule.kind == "walk"

    @property
    def has_rounds(self) -> bool:
        """Returns whether training has rounds, in which clients wait for each other."""
        return self.scenario.participation.mode == "sync"

    @property
    def selects(self) -> bool:
        """Returns whether participants are chosen by a rule other than uniform random draws."""
        keys = self.scenario.participation.selection
        return keys.name != "uniform" or keys.object is not None

    @property
    def task(self) -> str:
        """Returns the task of the data, `classification` or `regression`, or an empty text if it is unknown."""
        name = self.scenario.data.name
        return "" if "data" in self.own else "regression" if name.startswith("uci/") else data_spec_of(name).task or ""


def _find_default(key: str) -> Any:
    """Returns the general default of a dotted key, without the defaults of methods. None means an unknown key."""
    section, _, last = generalize_key(key).rpartition(".")
    found = find_key(section, last) if section in section_types() else None
    return None if found is None else found.default


def value_at(scenario: Scenario, key: str) -> Any:
    """Returns the value of a dotted key in a resolved scenario, or None if the key is absent.

    Example:
        >>> value_at(Scenario(), "server.optimizer")
        'none'
    """
    at: Any = scenario
    for part in key.split("."):
        options = getattr(at, "options", {})
        at = at.get(part) if isinstance(at, dict) else options.get(part) if part in options else getattr(at, part, None)
    return at


def find_rule_metrics(scenario: Scenario) -> dict[str, str]:
    """Returns the metrics that end a run, or choose one of its rounds, by the dotted keys that name them.

    Example:
        >>> from fedray.scenario.training import PatienceKeys
        >>> find_rule_metrics(Scenario(stop=PatienceKeys("nll")))
        {'stop.metric': 'nll'}
    """
    keys = ("evaluate.stop_at.metric", "evaluate.target.metric", "stop.metric", "checkpoint.best")
    return {key: metric for key in keys if (metric := value_at(scenario, key))}


def is_stack(scenario: Scenario) -> bool:
    """Returns whether the method trains several networks, as a stack or FedDF with several architectures does.

    Example:
        >>> from fedray.scenario.loader import read_scenario
        >>> [is_stack(read_scenario({"method": {"name": name}})) for name in ("stacking", "fens", "feddf")]
        [True, True, False]
    """
    spec, options = method_spec_of(scenario.method.name), scenario.method.options
    return spec.parts or ("networks" in spec.options and bool(options.get("networks")))


def explain_rounds(spec: MethodSpec) -> str:
    """Returns the reason why a method cannot train without rounds, or an empty text if the method can.

    Example:
        >>> explain_rounds(MethodSpec("a walk", walks=True)), explain_rounds(MethodSpec("FedAvg"))
        ('has no server', '')
    """
    return (
        "has no server" if spec.walks
        else "trains on the pooled data, as one client" if spec.pooled
        else "trains every client by itself" if spec.models == "clients"
        else spec.in_rounds
    )  # fmt: skip


def _explain_need(c: Case) -> str:
    """Returns the reason why a key has no effect, if the key needs a certain value of a second key.

    The text is empty if the second key has such a value, or if the key needs no second key.
    """
    section, _, last = c.key.rpartition(".")
    needs: Needs | None = None
    named = getattr(c.scenario, section) if section in ("method", "data", "model") else None
    if named is not None and last not in section_fields(section):
        spec = KINDS[section].specs.get(named.name)
        needs = spec.options[last].needs if spec is not None and last in spec.options else None
    elif section in section_types() and (found := find_key(section, last)) is not None:
        needs = found.needs
    if needs is None or (needs := needs.of(c.key)).key.partition(".")[0] in c.own:
        return ""
    value, values = value_at(c.scenario, needs.key), ", ".join(map(str, needs.values))
    only = f"{needs.key} is {value} and only {values} read{'s' * (len(needs.values) == 1)} it"
    return "" if value in needs.values else only


# ---------------------------------------------------------------------------------------------------------------------
# The table. If the conditions of several rows of a key hold, the message has the reason of the first row.


class Row(NamedTuple):
    """Keys, and the condition under which they have no effect or a wrong value.

    Attributes:
        keys: The dotted keys, separated by spaces. Inside a key, `*` stands for the name of a tier. At the end, `*`
            stands for all keys of the section.
        where: A function that takes a `Case` (a key of a scenario) and returns a true value if the condition holds. In
            `why`, `{found}` stands for this value.
        why: The reason, which follows "because" or "but" in the message. `{name}` stands for the method, `{s}` for the
            scenario, `{o}` for the options of the method, `{at}` for the section of the key, and `{tier}` for the tier
            that the key belongs to.
        remedy: The advice for a wrong value.
        value: A function that takes a `Case` and returns whether the value of its key is wrong. Default values are
            checked, too. None means that the row refuses every value that a user set.
    """

    keys: str
    where: Callable[[Case], Any]
    why: str
    remedy: str = "leave it out"
    value: Callable[[Case], bool] | None = None


def _changed(c: Case) -> bool:
    return bool(c.value != _find_default(c.key))


def _other_than(*plain: Any) -> Callable[[Case], bool]:
    return lambda c: c.value not in plain


def _one_of(*wrong: Any) -> Callable[[Case], bool]:
    return lambda c: c.value in wrong


_MEAN = "server.weighting server.coefficients server.robust server.trim server.byzantine"
_AT_SERVER = "server.seconds_per_step server.seconds_per_sample"
_EVERYBODY = "clients.* participation.* schedule.* data.partition.*"
_WHO_TRAINS_WHAT = "schedule.kind schedule.rows clients.tiers.*.models_per_round"
_INVITED = "participation.per_round participation.fraction participation.selection.*"
_DEVICE = " ".join(
    f"clients.tiers.*.{key}"
    for key in ("seconds_per_step", "seconds_per_sample", "uplink", "downlink", "latency", "spread")
)
_WORK = "clients.tiers.*.epochs clients.tiers.*.steps participation.partial"
_OWN_STEP = ("a server step of its own", "no server")
_BOTH = "give one of the two"

METHOD_ROWS = (  # keys that a method does not use, whatever the other keys are
    Row("method.models", lambda c: c.spec.models != "any", "{name} trains one model",
        "leave it out or choose fed_ensemble", lambda c: c.value > 1),
    Row("server.robust server.optimizer",
        lambda c: c.key.removeprefix("server.") in c.spec.fixed and _OWN_STEP[c.spec.walks],
        "{name} has {found}", "leave it at none", _other_than("none")),
    Row("schedule.kind", lambda c: c.spec.walks, "{name} has no server", "leave it at walk", _other_than("walk")),
    Row("graph.*", lambda c: not c.walks, "{name} uses no graph", "leave it out, or choose method random_walk",
        _changed),
    Row(f"local.* {_WORK} model.* lanes compress.* server.* predict.average predict.gamma clients.tf32 vary",
        lambda c: c.spec.fits, "in {name} clients fit method.learner and no network, and the learners vote"),
    Row("clients.tiers.*.downlink", lambda c: not c.spec.downloads, "{name} sends nothing to its clients"),
    Row(f"rounds local.* {_WORK} compress.* server.* model.weight_sd model.objective predict.noise",
        lambda c: not c.spec.trains, "{name} is fitted in closed form, without rounds"),
    Row(f"{_EVERYBODY} {_MEAN}",
        lambda c: c.spec.pooled
        and not c.key.endswith((".device", ".tf32", ".num_gpus"))
        and c.scenario.data.test_clients is None
        and not (CLIENT_KINDS.keys() & c.scenario.data.partition.options.keys())
        and (c.key, c.scenario.data.name) != ("clients.number", "synthetic"),
        "{name} trains on the pooled data, as one client"),
    Row("evaluate.personal evaluate.personal_steps evaluate.clients evaluate.by_tier", lambda c: c.spec.pooled,
        "{name} trains on the pooled data, as one client"),
    Row("server.lr server.momentum server.tau server.schedule.*",
        lambda c: "optimizer" in c.spec.fixed and _OWN_STEP[c.spec.walks], "{name} has {found}"),
    Row(_AT_SERVER, lambda c: "method" not in c.own and c.name in METHOD_SPECS and not c.spec.server_steps,
        "the server of {name} makes no steps of its own"),
    Row(_AT_SERVER, lambda c: next((key for key, value in (("solver", "exact"), ("meta_data", "federated"))
                                    if c.options.get(key) == value), ""),
        "method.{found} leaves the server no steps"),
    Row(_AT_SERVER, lambda c: not c.has_rounds, "without rounds nobody waits for the server"),
    Row(_MEAN, lambda c: "averages" in c.spec.fixed, "{name} has no mean of several clients' uploads"),
    Row("server.coefficients", lambda c: "coefficients" in c.spec.fixed, "{name} has a server of its own"),
    Row(_WHO_TRAINS_WHAT,
        lambda c: "schedules" in c.spec.fixed
        and not (c.key == "schedule.rows" and c.scenario.schedule.rows == "stratum" and not c.is_full
                 and not c.spec.walks and not c.spec.pooled),
        "{name} says by itself who trains which model"),
    Row("local.private", lambda c: not c.spec.splits, "{name} keeps no layers of its network at the clients"),
    Row("predict.gamma",
        lambda c: (c.spec.own_models or c.scenario.local.private) and ("weights" if c.spec.all_models else "a model"),
        "a known client of {name} answers with {found} of its own"),
    Row("clients.tiers.*.downlink", lambda c: c.options.get("aggregator") in FIXED,
        "method.aggregator is {o[aggregator]}, and nothing is sent to the clients"),
    Row(f"server.* {_INVITED}", lambda c: c.options.get("aggregator") in FIXED,
        "method.aggregator is {o[aggregator]}, which nobody trains"),
    Row(_INVITED, lambda c: c.spec.sampled, "every client samples in each round"),
    Row("method.patience", lambda c: "validation" in c.spec.options and c.options.get("validation") == 0,
        "method.validation is 0, so that no row says when to stop"),
    Row("method.input_rows", lambda c: "validation" in c.spec.options and c.options.get("inputs") == "withheld",
        "method.inputs is withheld: method.server_data says how many rows that are"),
    Row("model.*", lambda c: next((one for one in ("bases", "networks") if c.options.get(one)), ""),
        "method.{found} names the networks"),
    Row("clients.tiers.*.width", lambda c: not c.spec.slices, "every client of {name} trains the whole network"),
)  # fmt: skip

ROWS = (
    *METHOD_ROWS,
    Row("method.scaler", lambda c: c.spec.slices and all(tier.width == 1 for tier in c.tiers),
        "no tier has a width below 1"),
    Row("*", _explain_need, "{found}"),
    # One model.
    Row("predict.gamma predict.average", lambda c: c.has_one_model and not c.spec.samples,
        "method.models is {s.method.models}"),
    Row("schedule.kind", lambda c: c.has_one_model, "method.models is {s.method.models}"),
    Row("schedule.rows", lambda c: c.has_one_model and (c.scenario.schedule.rows != "stratum" or c.is_full),
        "method.models is {s.method.models}"),
    Row("clients.tiers.*.models_per_round",  # with sparse uploads, `all` decides the number of entries
        lambda c: c.has_one_model and c.scenario.compress.kind not in SPARSE_KINDS,
        "method.models is {s.method.models}"),
    Row("clients.tiers.*.side_by_side", lambda c: c.has_one_model and c.bases < 2,
        "method.models is {s.method.models}"),
    # Data, and the network.
    Row("data.partition.skew", lambda c: c.scenario.data.partition.options.get("sizes") == "equal"
        and c.scenario.data.partition.name == "dirichlet_clients", "data.partition.sizes is equal"),
    Row("data.partition.skew data.partition.min_rows",
        lambda c: isinstance(c.scenario.data.partition.options.get("sizes"), list | tuple)
        and c.scenario.data.partition.name == "dirichlet_clients",
        "data.partition.sizes gives the size of each client"),
    Row("data.test_fraction", lambda c: "test" in c.scenario.data.options, "data.test names the test rows"),
    Row("predict.dropout_at_test",
        lambda c: "model" not in c.own and c.scenario.model.name in MODEL_SPECS
        and not c.scenario.model.options.get("dropout"),
        "the network {s.model.name} has no dropout (model.dropout)"),
    Row("predict.noise method.residuals", lambda c: c.task == "classification", "{s.data.name} has classes"),
    Row("predict.noise",
        lambda c: c.value == "residual" and c.scenario.model.objective == "gaussian_nll",
        "model.objective is gaussian_nll, whose networks say by themselves how large the noise is"),
    Row("predict.average", lambda c: c.task == "regression", "{s.data.name} has real targets"),
    # Training and the server.
    Row("local.steps", lambda c: c.scenario.local.epochs is not None, "local.epochs is {s.local.epochs}", _BOTH,
        _changed),
    Row("local.nesterov",
        lambda c: (c.scenario.local.optimizer, c.scenario.local.momentum) == ("sgd", 0), "local.momentum is 0",
        "set local.momentum to 0.9", _one_of(True)),
    Row("local.last_batch", lambda c: c.scenario.local.batch_size == "full", "local.batch_size is full"),
    Row("model.objective",
        lambda c: c.name == "qffl" and c.value == "gaussian_nll" and c.scenario.method.options["q"],
        "{name} takes powers of losses, and these losses may be below 0", "set it to mse, or method.q to 0"),
    Row("local.lr", lambda c: c.scenario.local.lr_grid, "local.lr_grid takes its place"),
    Row("local.lr_grid", lambda c: c.name == "qffl", "the server of {name} divides by local.lr", "give local.lr"),
    Row("local.lr_decay_every", lambda c: c.scenario.local.lr_decay == 1, "local.lr_decay is 1"),
    Row("vary", lambda c: c.scenario.replicates == 1, "replicates is 1"),
    Row("compress.kind", lambda c: not c.spec.sparse,
        "a part of what clients of {name} send says nothing without the rest", "set it to int8 or dense",
        _one_of(*SPARSE_KINDS)),
    Row("compress.adaptive",
        lambda c: len({tier.uplink for tier in c.tiers}) == 1
        and c.scenario.clients.trace is None and c.scenario.clients.profile is None,
        "all uplinks are alike"),
    Row("compress.resource_ratio",
        lambda c: all(tier.models_per_round == 1 for tier in c.tiers) and not c.spec.pooled,
        "no tier trains several models a round (clients.tiers.*.models_per_round)"),
    Row("server.coefficients", lambda c: len(c.tiers) == 1, "there is one tier of clients"),
    Row("server.weighting", lambda c: c.scenario.server.coefficients == "paper_eq2",
        "server.coefficients is paper_eq2, which weighs every upload by its tier", "set it to uniform",
        _other_than("uniform")),
    Row("server.schedule.*", lambda c: c.scenario.server.optimizer == "none",
        "server.optimizer is none (momentum with server.momentum = 0 is the mean with a rate)"),
    Row("server.robust", lambda c: c.scenario.server.coefficients != "fedavg",
        "server.coefficients is {s.server.coefficients}, and a robust server gives uploads the same weight",
        "set server.coefficients to fedavg", _other_than("none")),
    Row("server.robust", lambda c: c.scenario.server.weighting != "uniform",
        "server.weighting is {s.server.weighting}, and a robust server gives uploads the same weight",
        "set server.weighting to uniform", _other_than("none")),
    # Devices.
    Row("clients.tiers.*.epochs", lambda c: c.scenario.local.steps is not None,
        "local.steps is {s.local.steps}", "set the steps of the tier", lambda c: c.value is not None),
    Row("clients.tiers.*.steps", lambda c: c.scenario.local.steps is None,
        "local.epochs is {s.local.epochs}", "set epochs of the tier, or local.steps", lambda c: c.value is not None),
    Row("clients.trace graph.edges graph.failures", lambda c: c.scenario.data.test_clients is not None,
        "data.test_clients keeps clients out, and the file numbers only those that train",
        "leave one of the two out", _changed),
    Row("clients.profile", lambda c: c.scenario.clients.trace is not None,
        "clients.trace says what the devices are like", "leave one of the two out", _changed),
    Row(_DEVICE, lambda c: c.scenario.clients.profile is not None,
        "clients.profile = {s.clients.profile} gives every client figures of its own"),
    Row("clients.tf32", lambda c: c.scenario.clients.device == "cpu", "clients.device is cpu"),
    Row("clients.tiers.*.side_by_side",  # with walks and bases a client may train several models
        lambda c: c.tier.models_per_round == 1 and not c.walks and c.bases < 2, "the tier trains one model a round"),
    # Who takes part.
    Row("participation.fraction", lambda c: c.scenario.participation.per_round is not None,
        "participation.per_round is {s.participation.per_round}", _BOTH, _changed),
    Row("participation.partial", lambda c: {c.scenario.local.epochs, *(tier.epochs for tier in c.tiers)} <= {1, None}
        and c.scenario.local.steps is None, "clients train for one epoch"),
    Row("participation.overcommit participation.selection.*", lambda c: c.is_full and c.has_rounds,
        "all clients take part in every round"),
    Row("participation.staleness_a", lambda c: c.has_rounds, "participation.mode is sync"),
    Row("evaluate.every", lambda c: c.scenario.evaluate.every_seconds is not None,
        "evaluate.every_seconds takes its place"),
    Row("schedule.rows", lambda c: c.is_full and c.scenario.schedule.kind != "permutation",
        "schedule.kind is {s.schedule.kind}"),
    # Models that walk.
    Row("schedule.kind", lambda c: c.name in METHOD_SPECS and not c.spec.walks, "{name} has a server",
        "leave it out, or choose random_walk", _one_of("walk")),
    Row("participation.fraction participation.per_round participation.overcommit participation.dropout "
        "participation.deadline",
        lambda c: c.walks and not (c.is_full and c.key in ("participation.fraction", "participation.per_round")),
        "in a random walk the holders of models take part",
        "leave it out (graph.node_failure and graph.edge_failure make clients and links fail)", _changed),
    Row("participation.selection.name", lambda c: c.walks, "in a random walk the holders of models take part",
        value=lambda c: c.selects),
    Row("clients.tiers.*.models_per_round", lambda c: c.walks,
        "in a random walk a client trains the models that it holds", value=_other_than(1)),
    # No rounds.
    Row("participation.mode",
        lambda c: explain_rounds(c.spec) or (is_stack(c.scenario) and "with several networks trains in rounds"),
        "{name} {found}", "set it to sync", _other_than("sync")),
    Row("participation.per_round participation.fraction participation.overcommit",
        lambda c: not c.has_rounds and (c.key, c.value) != ("participation.fraction", 1),
        "participation.mode is {s.participation.mode}, which has no participants of a round",
        "leave it out: participation.concurrency says how many train at a time", _changed),
    Row("participation.partial", lambda c: not c.has_rounds, "participation.mode is {s.participation.mode}",
        "set participation.mode to sync, or clients.tiers.*.epochs", _changed),
    Row("participation.partial", lambda c: is_stack(c.scenario), "method {name} cannot use it",
        "leave it out (clients.tiers.*.epochs makes tiers train less)", _changed),
    Row("participation.selection.name", lambda c: not c.has_rounds,
        "participation.mode is {s.participation.mode}, and idle clients are drawn uniformly",
        value=lambda c: c.selects),
    Row("schedule.rows", lambda c: not c.has_rounds,
        "participation.mode is {s.participation.mode}, and the only rows without rounds are clients",
        "set it to client", _other_than("client")),
    Row("schedule.kind", lambda c: not c.has_rounds,
        "participation.mode is {s.participation.mode}, and it reads the losses of a round", "choose another kind",
        _one_of("adaptive")),
    Row("participation.overcommit",
        lambda c: c.scenario.participation.selection.name == "round_robin" and len(c.scenario.clients.tiers) > 1,
        "a round waits for the first clients of each tier, and round_robin ignores tiers", "leave it at 1",
        lambda c: c.value > 1),
    Row("server.weighting server.coefficients", lambda c: c.scenario.participation.mode == "async",
        "with participation.mode = async a server step uses a single upload"),
    Row("server.coefficients", lambda c: not c.has_rounds,
        "participation.mode is {s.participation.mode}, and equation 2 counts the clients of a round",
        "set it to equal_groups or fedavg", _one_of("paper_eq2")),
    Row("participation.selection.name", lambda c: c.scenario.schedule.rows == "stratum",
        "schedule.rows is stratum, whose strata choose one client each",
        "set schedule.rows to slot or client, or leave the selection at uniform", lambda c: c.selects),
    # Stacks and learners.
    Row("participation.selection.name", lambda c: is_stack(c.scenario) and c.value != "fair",
        "the bases of a stack have losses of their own", "choose uniform or fair", lambda c: c.selects),
    Row("predict.gamma predict.average local.lr_grid", lambda c: is_stack(c.scenario), "method {name} cannot use it",
        value=_changed),
    Row("schedule.kind", lambda c: is_stack(c.scenario), "method {name} cannot use it", "leave it at permutation",
        _one_of("walk")),
    Row("participation.overcommit", lambda c: is_stack(c.scenario) and c.spec.models == "clients",
        "method {name} cannot use it", "leave it at 1", lambda c: c.value > 1),
    Row("clients.availability clients.trace participation.dropout participation.deadline",
        lambda c: is_stack(c.scenario) and c.options.get("beta") == FIT,
        "with method.beta = fit the server works where client 0 would",
        "leave it out, or set method.beta to a number", _changed),
    Row("clients.availability clients.trace participation.dropout participation.deadline",
        lambda c: is_stack(c.scenario) and c.options.get("meta_data") == "pooled",
        "with method.meta_data = pooled the server needs the answers of every client",
        "leave it out, or set method.meta_data to federated", _changed),
    Row("rounds", lambda c: c.spec.fits, "{name} adds its learners in rounds", "give at least 1", _one_of(0)),
    Row("participation.selection.name", lambda c: c.spec.fits,
        "{name} counts the bytes of clients that come back, and must know who took part before",
        "leave it at uniform", lambda c: c.selects),
    # Predictions and tiers.
    Row("model.weights", lambda c: is_stack(c.scenario), "{name} trains several networks, each with its own weights"),
    Row("model.weights", lambda c: not c.spec.trains, "{name} is fitted in closed form, without first models"),
    Row("vary", lambda c: c.scenario.model.weights is not None,
        "model.weights gives the first models of all replicates", "leave it at all", _one_of("init")),
    Row("data.partition.min_rows",
        lambda c: c.scenario.data.name == "synthetic" and c.scenario.data.partition.name == "natural",
        "synthetic clients make their own rows (data.samples)"),
    Row("data.scale", lambda c: not c.scenario.data.standardize,
        "data.standardize is false, and inputs stay as they are"),
    Row("data.hold_out", lambda c: c.scenario.predict.conformal is not None,
        "predict.conformal needs rows that no model is trained on", "set it to 0.2, say", _one_of(0)),
    Row("evaluate.personal_steps", lambda c: math.isfinite(c.scenario.predict.gamma),
        "predict.gamma is {s.predict.gamma}, which weighs models as they are", "set predict.gamma to .inf",
        lambda c: c.value is not None),
    Row("predict.dropout_at_test",
        lambda c: (c.spec.asks and "clients would train by such answers")
        or (c.spec.parts and "networks are parts of a stack"),
        "method {name}, whose {found}, cannot use it", value=_one_of(True)),
    Row("clients.tiers.*.share", lambda c: c.tier.number is not None, "{at}.number is {tier.number}", _BOTH,
        lambda c: c.value is not None),
    Row("clients.tiers.*.models_per_round", lambda c: c.tier.models_per_round != "all",
        "method.models is {s.method.models}", "lower it or write all",
        lambda c: c.value != "all" and c.value > c.scenario.method.models),
)  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# The functions that apply the table to a scenario.


def explain_idle(key: str, scenario: Scenario, own: Collection[str]) -> str:
    """Returns the reason why a key that is set has no effect, or an empty text if the key has an effect.

    `own` has the sections among `data`, `model` and `method` for which the caller passes a Python object.
    """
    section, _, option = key.partition(".")
    if section in own and section != "method":
        return f"the {KINDS[section].text} is a Python object" if option in value_at(scenario, section).options else ""
    case = Case(scenario, key, own)
    return next((why for row in _rows_of(key) if row.value is None and (why := _explain(row, case))), "")


def refuse_wrong(scenario: Scenario) -> None:
    """Refuses the first value that contradicts the other values of a scenario.

    Raises:
        BadInput: A value is wrong.
    """
    for row in ROWS:
        for key in _list_keys(row, scenario) if row.value is not None else ():
            case = Case(scenario, key)
            if row.value is not None and row.value(case) and (why := _explain(row, case)):
                raise BadInput(f"{key} = {show_value(case.value)}, but {why}: {row.remedy}")


def refuse_idle_objects(scenario: Scenario) -> None:
    """Refuses a schedule or a selection that the caller passes as a Python object and that has no effect.

    The scenario has the names of the passed objects.

    Raises:
        BadInput: An object has no effect.
    """
    own = find_own_sections(scenario)
    for word, key in (("schedule", "schedule.kind"), ("selection", "participation.selection.name")):
        name, case = value_at(scenario, f"{key.rpartition('.')[0]}.object"), Case(scenario, key, own)
        if name is None:
            continue
        plans = word == "schedule" and (case.spec.walks or (is_stack(scenario) and case.spec.models == "clients"))
        rows = [row for row in _rows_of(key) if row.value is None or (word == "selection" and row.value(case))]
        if word == "schedule":  # with one model it may still leave clients without a job
            rows = [row for row in rows if row in METHOD_ROWS]
        why = f"{case.name} plans its jobs by itself" if plans else ""
        if why := why or next((found for row in rows if (found := _explain(row, case))), ""):
            raise BadInput(explain_idle_key(Idle(word, name, why)))


def is_read(key: str, scenario: Scenario) -> bool:
    """Returns whether the method of a scenario uses a key.

    The dotted key must not be an option of the method.

    Example:
        >>> is_read("server.robust", Scenario()), is_read("graph.kind", Scenario())
        (True, False)
    """
    rows = set(METHOD_ROWS).intersection(_rows_of(key))
    return not any(_explain(row, Case(scenario, key)) for row in rows)


def _explain(row: Row, c: Case) -> str:
    """Returns the reason of a row for a key, or an empty text if the condition of the row does not hold."""
    found = row.where(c)
    if not found:
        return ""
    at = c.key.rpartition(".")[0]
    return row.why.format(found=found, name=c.name, s=c.scenario, o=c.options, at=at, tier=c.tier)


@lru_cache(4096)
def _rows_of(key: str) -> tuple[Row, ...]:
    """Returns the rows for a key, in the order of the table."""
    return tuple(row for row in ROWS if any(_pattern(one).fullmatch(key) for one in row.keys.split()))


@lru_cache
def _pattern(keys: str) -> re.Pattern[str]:
    return re.compile(re.escape(keys).replace(r"\*\.", r"[^.]+\.").replace(r"\*", ".+"))


def _list_keys(row: Row, scenario: Scenario) -> Iterator[str]:
    """Yields the keys of a row, with the tiers and keys of the scenario in place of `*`."""
    for key in row.keys.split():
        if key.startswith("clients.tiers.*."):
            yield from (key.replace("*", tier) for tier in scenario.clients.tiers)
        elif key.endswith(".*"):
            yield from (f"{key[:-1]}{last}" for last in section_fields(key[:-2]))
        else:
            yield key


# ---------------------------------------------------------------------------------------------------------------------
# Values that request nothing special. Like a key's general default, they are accepted even if the key has no effect.
# The default of a name is listed here if it is accepted: other names choose something even if they are defaults.

_NEUTRAL: dict[str, tuple[Any, ...]] = {  # key -> values beside the default; * stands for the name of a tier
    "compress.ratio": (1,),
    "compress.resource_ratio": (1,),
    "schedule.kind": ("walk",),  # a row refuses a walk if there is a server
    "clients.number": (1,),  # if a single client has all samples
    "clients.tiers.*.share": (1,),
    "data.partition.name": ("iid",),
    "participation.selection.name": ("uniform",),
    "participation.alpha": (1,),
    "participation.staleness": ("constant",),
    "participation.fraction": (1,),
    "participation.per_round": (1,),  # if a single client has all samples
    "local.schedule.gamma": (1,),
    "server.schedule.gamma": (1,),
}


# ---------------------------------------------------------------------------------------------------------------------
# The keys that a user set and that have no effect, by the rows above.

RUNTIME = ("clients.per_actor", "clients.actors")  # keys that decide where clients are computed: no result changes
OF_SEVERAL_MODELS = ("predict.gamma", "predict.average")  # a single model predicts the same with any value: no warning


class Idle(NamedTuple):
    """A key without an effect.

    Attributes:
        key: The dotted key.
        value: The value that the user set.
        why: The reason why the key has no effect, which follows "because" in the message.
    """

    key: str
    value: Any
    why: str


def find_idle_keys(given: Mapping[str, Any], scenario: Scenario, own: Collection[str] = ()) -> list[Idle]:
    """Returns the keys of `given` without an effect, in the order of `given`.

    `own` has the sections among `data`, `model` and `method` for which the caller passes a Python object.

    Example:
        >>> from fedray.scenario.loader import read_scenario
        >>> scenario = read_scenario({"method": {"name": "fedavg"}})
        >>> [idle.key for idle in find_idle_keys({"server": {"lr": 0.1}, "rounds": 3}, scenario)]
        ['server.lr']
    """
    found, own = [], {*own, *find_own_sections(scenario)}
    for key, value in flatten(given).items():
        if key not in RUNTIME and not changes_nothing(key, value) and (why := explain_idle(key, scenario, own)):
            found.append(Idle(key, value, why))
    return found


def find_own_sections(scenario: Scenario) -> set[str]:
    """Returns the sections among `data`, `model` and `method` that name a Python object."""
    return {kind for kind in ("data", "model", "method") if value_at(scenario, f"{kind}.object") is not None}


def explain_idle_key(idle: Idle) -> str:
    """Returns the message for a key without an effect, with the key, its value, the reason and a remedy.

    Example:
        >>> explain_idle_key(Idle("server.lr", 0.1, "server.optimizer is none"))
        'server.lr = 0.1 cannot act, because server.optimizer is none: leave it out'
    """
    return f"{idle.key} = {quote_value(idle.value)} cannot act, because {idle.why}: leave it out"


def changes_nothing(key: str, value: Any) -> bool:
    """Returns whether a value of a key changes nothing, such as None or the key's general default.

    Such a value is accepted in every scenario.

    Example:
        >>> changes_nothing("clients.tiers.weak.width", 1.0), changes_nothing("rounds", 1)
        (True, False)
    """
    if value is None or value is False or value in ("none", "dense", "always") or value in ([], {}):
        return True
    if value == 0 and not key.startswith("predict."):
        return True
    is_default = value == _find_default(key) and not key.endswith(".name")
    return is_default or value in _NEUTRAL.get(generalize_key(key), ())


# ---------------------------------------------------------------------------------------------------------------------
# Keys that a user set and that have no effect are refused. If an override is the reason, a warning names them instead.
#
# A resolved scenario holds every key, including those that nobody set. Such a file is loaded without these checks.

ALWAYS_DUMPED = {"graph", "checkpoint", "loggers", "predict"}  # a file with all of these may be a resolved scenario
_OLD_SECTIONS = ("graph", "predict")  # sections of which resolved scenarios of all versions hold every key
_YOUNGER = {"dropout_at_test"}  # keys of these sections that older versions lack


class Place(NamedTuple):
    """One of the scenarios that a file describes: the base, or a cell of the table.

    Attributes:
        name: Name of the cell. It is empty for the base.
        own: The keys that the cell sets. For the base there are no such keys.
        given: All keys that are set, by the base or by the cell.
        scenario: The resolved scenario.
    """

    name: str
    own: Mapping[str, Any]
    given: Mapping[str, Any]
    scenario: Scenario


def is_dump(file: Mapping[str, Any], resolved: dict[str, Any]) -> bool:
    """Returns whether a file is a resolved scenario. A file of an earlier version of fedray may lack newer keys.

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
    """Refuses keys without an effect. Warns of keys that have no effect because of an override or a cell.

    Args:
        places: The base and the cells.
        overrides: The keys that the command line or the caller sets.
        alone: Function that returns the scenario without the overrides, or None if this scenario has an error.
        own: The sections among `data`, `model` and `method` for which the caller passes a Python object instead of a
            name.

    Raises:
        BadInput: A cell sets a key that has no effect in the cell. Or the base or an override sets a key that has no
            effect in any scenario.
    """
    idle = {place.name: find_idle_keys(place.given, place.scenario, own) for place in places}
    for place in places:
        for one in idle[place.name]:
            if place.name and one.key in flatten(place.own):
                raise BadInput(f"table.{place.name}: {explain_idle_key(one)}")
    for one in idle[""]:
        if all(_holds(idle[place.name], one.key) or one.key not in flatten(place.given) for place in places):
            said_now = one.key in flatten(overrides)
            before = alone() if overrides and not said_now else places[0].scenario
            # Does the key in the file have an effect without the overrides and the Python objects? Only this key is
            # checked: other overrides may need something that `before` lacks, such as a tier.
            key = expand({one.key: flatten(places[0].given)[one.key]})
            if said_now or (before is not None and _holds(find_idle_keys(key, before), one.key)):
                raise BadInput(explain_idle_key(one))
    cells: dict[tuple[str, str], list[str]] = {}  # (key, reason) -> cells
    for place in places[1:] or places:
        for one in idle[place.name]:
            if one.key not in OF_SEVERAL_MODELS or not Case(place.scenario, one.key, own).has_one_model:
                cells.setdefault((one.key, one.why), []).append(place.name)
    keys: dict[tuple[str, str], list[str]] = {}  # (cells, reason) -> keys
    for (name, why), names in cells.items():
        keys.setdefault((f"in cell {name_some(names)}: " if names[0] else "", why), []).append(name)
    if keys:
        warn_user(
            "; ".join(f"{where}{', '.join(some)} cannot act, because {why}" for (where, why), some in keys.items())
        )


def _holds(idle: list[Idle], key: str) -> bool:
    return any(one.key == key for one in idle)
