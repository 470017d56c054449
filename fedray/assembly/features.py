"""Makes private layers, slices of networks, walks, stacks, conformal sets and asynchronous training of a scenario."""

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedray.components.random_walk import Graph, Outages, make_walks
from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.method import Method, Walk, reads_ensemble
from fedray.core.options import MethodSpec
from fedray.core.types import EVALUATED_CLIENTS, Clients, IntArray, Net, Tier
from fedray.data.shards import Shards
from fedray.features.correction import Correction
from fedray.features.personal import Tuning, trained_layers
from fedray.features.slices import TierNet
from fedray.features.stacking import Base, Stack, Voter, voting_net
from fedray.files.plain import expand_user_path
from fedray.files.run_files import read_number_table, read_whole
from fedray.methods.setting import Setting
from fedray.metrics.conformal import ConformalRule, withholds_enough
from fedray.models.nets import build_net
from fedray.scenario.names import method_spec_of
from fedray.scenario.options import CLASSIFIERS
from fedray.scenario.schema import ModelKeys, Scenario
from fedray.scenario.sections import GraphKeys
from fedray.scenario.training import ConformalKeys
from fedray.simulation.study import AsyncRule
from fedray.training.chain import find_changed_call

# ---------------------------------------------------------------------------------------------------------------------
# The layers of a network that stay with the clients (`local.private`).

NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.LocalResponseNorm, nn.RMSNorm)


def find_private_layers(net: Net, wanted: Sequence[str]) -> tuple[str, ...]:
    """Finds the layers of a network that the words of `local.private` select, and returns the layers' names.

    Args:
        net: The network.
        wanted: The words: `norm` (all normalization layers), `head` (the last layer), or patterns of layer names such
            as `fc*`.

    Raises:
        BadInput: A word selects no layer.

    Example:
        >>> from fedray.models.nets import build_net
        >>> net = build_net("mlp", (4,), 3, "cross_entropy", hidden=[8])
        >>> find_private_layers(net, ["head"]), find_private_layers(net, ["*"])
        (('3',), ('1', '3'))
        >>> find_private_layers(net, ["conv*"])
        Traceback (most recent call last):
        fedray.core.errors.BadInput: local.private = conv*: the network mlp has no such layer: its layers are 1, 3
    """
    layers = tuple(dict.fromkeys(name.rpartition(".")[0] for name in net.layout.names))
    found: set[str] = set()
    for word in wanted:
        if word == "norm":
            mine = {name for name in layers if isinstance(net.module.get_submodule(name), NORMS)}
        elif word == "head":
            last = [name for name, part in net.module.named_modules() if any(True for _ in part.parameters(False))][-1]
            head = trained_layers(net.layout)[-1]  # which may also contain frozen layers
            if head != last and not last.startswith(f"{head}."):
                raise BadInput(
                    f"local.private = head: the last layer of the network {net.name}, {last}, has no trained "
                    f"parameters of its own: name what stays with the clients, {head} say"
                )
            mine = {head}
        else:
            mine = {name for name in layers if fnmatchcase(name, word)}
        if not mine:
            known = ", ".join(filter(None, layers))[:300]  # a parameter outside of all layers has the name "" here
            raise BadInput(f"local.private = {word}: the network {net.name} has no such layer: its layers are {known}")
        found |= mine
    return tuple(name for name in layers if name in found)


# ---------------------------------------------------------------------------------------------------------------------
# The networks of the tiers, for methods whose clients train slices of the network.


def cut_network(
    scenario: Scenario, spec: MethodSpec, net: Net, tiers: Sequence[Tier], sample: tuple[int, ...]
) -> tuple[TierNet, ...]:
    """Returns the slice of the network that each tier trains.

    The tuple is empty if all tiers train the whole network.

    Args:
        scenario: The scenario, which has the method's options.
        spec: The specification of the method.
        net: The whole network.
        tiers: The tiers.
        sample: The shape of a network input.

    Raises:
        BadInput: A tier trains a slice, but the network does not consist of plain layers.

    Example:
        >>> from fedray.core.types import Tier
        >>> from fedray.models.nets import build_net
        >>> from fedray.scenario.loader import read_scenario
        >>> net = build_net("mlp", (4,), 3, "cross_entropy", hidden=[8])
        >>> scenario = read_scenario({"method": "heterofl"})
        >>> tiers = (Tier("strong", 5), Tier("weak", 5, width=0.25))
        >>> found = cut_network(scenario, method_spec_of("heterofl"), net, tiers, (4,))
        >>> [(one.net.layout.d, round(one.work, 2)) for one in found]
        [(67, 1.0), (19, 0.28)]
    """
    if spec.slices is None:
        return ()
    method, widths = scenario.method, [tier.width for tier in tiers]
    changed = None if min(widths) == 1 else find_changed_call(net.module)
    if changed is not None:
        raise BadInput(
            f"model.name = {net.name}: its forward {changed}, which slices of it would not have: take it out"
        )
    nets: tuple[TierNet, ...] = spec.slices(net, widths, torch.zeros(1, *sample), method.options, method.name)
    return nets


# ---------------------------------------------------------------------------------------------------------------------
# Training without a server: the graph of clients, the failures of nodes and edges, and the walks of models.
#
# An edge file (`graph.edges`, CSV or Parquet) has the columns `node` and `neighbour`, and one row per edge. A table of
# failures (`graph.failures`) has the columns `first` and `last` (the first and last step, from 0) and `node`. If only
# one edge of the node fails, the row also has a `neighbour`.

MOST_EDGES = 200_000  # networkx uses about a kilobyte per edge
TRIES = 100  # most draws of a random graph until it is connected
DRAWN = ("erdos_renyi", "watts_strogatz")  # random graphs, which each replicate draws


def make_walk(scenario: Scenario, nodes: int, seeds: tuple[int, ...]) -> Walk:
    """Returns the walks of a scenario's models from client to client.

    Args:
        scenario: The scenario.
        nodes: Number of clients, N.
        seeds: One seed for each world.

    Raises:
        BadInput: The graph cannot be made or is not connected, or one of its files cannot be used.
    """
    keys = scenario.graph
    different = dict.fromkeys(seeds if keys.kind in DRAWN else seeds[:1])
    drawn = {seed: make_graph(keys, nodes, seed) for seed in different}
    graphs = [drawn.get(seed, drawn[seeds[0]]) for seed in seeds]
    table = (
        read_failures(expand_user_path("graph.failures", keys.failures), nodes) if keys.failures else Outages().table
    )
    outages = Outages(keys.node_failure, keys.edge_failure, table)
    return make_walks(graphs, scenario.method.models, seeds, keys.transition, outages)


def make_graph(keys: GraphKeys, nodes: int, seed: int) -> Graph:
    """Returns the graph of N nodes. A random graph is drawn up to 100 times, until it is connected.

    Args:
        keys: The section `graph` of the scenario.
        nodes: Number of nodes, N.
        seed: Seed of the random numbers.

    Raises:
        BadInput: The graph cannot be made, or is not connected.

    Example:
        >>> make_graph(GraphKeys(kind="ring"), nodes=4, seed=0).neighbor.tolist()
        [1, 3, 0, 2, 1, 3, 0, 2]
        >>> len(make_graph(GraphKeys(kind="erdos_renyi", probability=0.1), nodes=12, seed=0).neighbor)  # a later draw
        24
    """
    import networkx as nx

    if (keys.kind == "edges") != (keys.edges is not None):
        raise BadInput(f"graph.kind = {keys.kind}, but graph.edges is {keys.edges}: a file goes with edges alone")
    if keys.edges is not None:
        path = expand_user_path("graph.edges", keys.edges)
        table = read_number_table("graph.edges", path, ("node", "neighbour"), ())
        pairs = [read_whole("graph.edges", path, name, table[name], nodes) for name in ("node", "neighbour")]
        graph = nx.Graph([(i, j) for i, j in zip(*(one.tolist() for one in pairs), strict=True) if i != j])
        graph.add_nodes_from(range(nodes))
        if not nx.is_connected(graph):
            raise BadInput(f"graph.edges = {keys.edges}: the graph is not connected: add edges")
        return _list_neighbors(graph)
    each = {"complete": nodes - 1, "erdos_renyi": _probability(keys, nodes) * (nodes - 1)}
    edges = nodes * each.get(keys.kind, keys.neighbours if keys.kind == "watts_strogatz" else 4) / 2
    if nodes < 2 or edges > MOST_EDGES:
        raise BadInput(
            f"clients.number = {nodes}: a {keys.kind} graph has about {edges:.2g} edges, 1 to {MOST_EDGES:.0e} are "
            "possible: change it, or choose another graph.kind"
        )
    for attempt in range(TRIES if keys.kind in DRAWN else 1):
        drawn = _make_with_networkx(keys, nodes, int(rng.keys(seed, "graph", attempt)) & 0xFFFFFFFF)
        if nx.is_connected(drawn):
            return _list_neighbors(drawn)
    raise BadInput(
        f"graph.kind = {keys.kind}: {TRIES} drawn graphs of {nodes} nodes were not connected: raise graph.probability "
        "or graph.neighbours"
    )


def _make_with_networkx(keys: GraphKeys, nodes: int, seed: int) -> Any:
    import networkx as nx

    if keys.kind == "torus":
        side = next((a for a in range(int(np.sqrt(nodes)), 2, -1) if nodes % a == 0), None)  # a x b = N, nearly square
        if side is None:
            raise BadInput(f"clients.number = {nodes} fills no torus of 3 x 3 or more: take 9, 12, 15, 16, 18, ...")
        grid = nx.grid_2d_graph(side, nodes // side, periodic=True)
        return nx.convert_node_labels_to_integers(grid, ordering="sorted")
    if keys.kind == "erdos_renyi":
        return nx.fast_gnp_random_graph(nodes, _probability(keys, nodes), seed=seed)
    if keys.kind == "watts_strogatz":
        if keys.neighbours >= nodes:
            raise BadInput(f"graph.neighbours = {keys.neighbours}, but clients.number is {nodes}: lower it")
        return nx.watts_strogatz_graph(nodes, keys.neighbours, _probability(keys, nodes), seed)
    plain = {"ring": nx.cycle_graph, "complete": nx.complete_graph, "star": lambda n: nx.star_graph(n - 1)}
    return plain[keys.kind](nodes)


def _probability(keys: GraphKeys, nodes: int) -> float:
    """Returns the value of `graph.probability`, or its default if the key is not set.

    For `erdos_renyi` this is the probability of each edge in a random graph of N nodes, 2 log(N) / N by default. With a
    probability above log(N) / N, a large graph is almost surely connected. For other graphs it is the probability that
    an edge is rewired, 0.1 by default.
    """
    usual = min(1.0, 2 * float(np.log(nodes)) / nodes) if keys.kind == "erdos_renyi" else 0.1
    return usual if keys.probability is None else keys.probability


def _list_neighbors(graph: Any) -> Graph:
    """Lists the neighbors of each node of a connected graph."""
    lists = [sorted(graph.neighbors(i)) for i in range(graph.number_of_nodes())]
    start = np.cumsum([0] + [len(one) for one in lists]).astype(np.int64)
    return Graph(start, np.array([j for one in lists for j in one], dtype=np.int64))


def read_failures(path: Path, nodes: int) -> IntArray:
    """Reads a table of failures of nodes and edges, `[failures, 4]`.

    Each row is (first step, last step, node, neighbor). The neighbor is -1 if the whole node fails.
    """
    key = "graph.failures"
    table = read_number_table(key, path, ("first", "last", "node"), ("neighbour",))
    first, last = (read_whole(key, path, name, table[name], 2**53) for name in ("first", "last"))
    if not (first <= last).all():
        raise BadInput(f"graph.failures = {path}: a row lacks first <= last: correct it")
    neighbor = np.full(len(first), -1)
    if "neighbour" in table:
        given = ~np.isnan(table["neighbour"])  # an empty cell means that the whole node fails
        neighbor[given] = read_whole(key, path, "neighbour", table["neighbour"][given], nodes)
    return np.stack([first, last, read_whole(key, path, "node", table["node"], nodes), neighbor], axis=1)


# ---------------------------------------------------------------------------------------------------------------------
# Stacks: the bases, and the meta model that combines them.

META: dict[str, tuple[str, dict[str, Any]]] = {"softmax": ("linear", {}), "mlp": ("mlp", {"hidden": (50,)})}


def make_stack(scenario: Scenario, classes: int, clients: int, network: Callable[[Scenario], Net]) -> Stack:
    """Makes the stack of a scenario, which combines several networks or classifiers (its bases) with a meta model.

    `method.bases` names the bases. Without this key the scenario's model is the only base.

    Args:
        scenario: The scenario.
        classes: Number of classes, C. It is 0 for regression.
        clients: Number of clients, N.
        network: A function that makes the network of a scenario.

    Raises:
        BadInput: A base does not fit the task. Or `folds` is `client` (each fold leaves out one client), but there is
            only one client.

    Example:
        >>> from fedray.models.nets import build_net
        >>> from fedray.scenario.loader import read_scenario
        >>> scenario = read_scenario({"rounds": 3, "method": {"name": "stacking"}})
        >>> stack = make_stack(scenario, 10, 5, lambda one: build_net("linear", (4,), 10, "cross_entropy"))
        >>> len(stack.bases), stack.folds, stack.rounds  # one base; each of the five clients is left out once
        (1, 5, 3)
    """
    keys, within = scenario.method.options, scenario.method.options["folds"] == "within"
    if not within and clients < 2:
        raise BadInput(
            "method.folds = client leaves out the only client: raise clients.number, or write method.folds: within"
        )
    models = scenario.method.models
    folds = keys["fold_number"] if within else clients
    classifiers = [_classifier(_model_keys(base), classes) for base in keys["bases"]]
    bases = tuple(
        classifier or Base(network(replace(scenario, model=_model_keys(base))), base.get("models", models))
        for base, classifier in zip(keys["bases"], classifiers, strict=True)
    ) or (Base(network(scenario), models),)
    if bases[0].net.objective == "gaussian_nll":
        raise BadInput(
            "model.objective = gaussian_nll predicts variances, which stacking does not combine: set it to mse"
        )
    stack = Stack(
        bases=bases,
        meta=None,
        folds=folds,
        within=within,
        rounds=scenario.rounds,
        meta_rounds=keys.get("meta_rounds", scenario.rounds),
        meta_lr=keys.get("meta_lr", scenario.local.lr),
        meta_optimizer=keys.get("meta_optimizer", scenario.local.optimizer),
        features=keys["features"],
        pooled=keys["meta_data"] == "pooled",
    )
    if keys["meta"] not in META:
        return stack
    name, options = META[keys["meta"]]
    first, width = bases[0].net, stack.count_features()
    return stack._replace(meta=build_net(name, (width,), first.outputs, first.objective, **options))


def _model_keys(base: dict[str, Any]) -> ModelKeys:
    """Returns the section `model` of the scenario for a base (an architecture of a stack)."""
    return ModelKeys(base["name"], options={key: base[key] for key in base if key not in ("name", "models")})


def _classifier(model: ModelKeys, classes: int) -> Base | None:
    """Makes a base (a part of a stack) of a scikit-learn classifier, or returns None if `model` names a network.

    `model` is the section that describes the base, and `classes` is the number of classes, C.
    """
    if model.name not in CLASSIFIERS:
        return None
    if not classes:
        raise BadInput(f"method.bases has {model.name}, which predicts classes, but the targets are real: leave it out")
    return Base(voting_net(model.name, classes), 1, Voter(model.name, model.options))


# ---------------------------------------------------------------------------------------------------------------------
# The rule that makes conformal sets, and a check that enough samples are held out.


def make_rule(keys: ConformalKeys, classes: int, data: str) -> ConformalRule:
    """Returns the conformal rule that the keys describe for a data set.

    Args:
        keys: The section `predict.conformal` of the scenario.
        classes: Number of classes, C. It is 0 for regression.
        data: Name of the data set, for the message.

    Raises:
        BadInput: The score does not fit the task.
    """
    score = ("lac" if classes else "regression") if keys.score == "auto" else keys.score
    if (score == "regression") == bool(classes):
        has, remedy = ("classes", "lac, aps or raps") if classes else ("real targets", "regression")
        raise BadInput(f"predict.conformal.score = {score}, but {data} has {has}: choose {remedy}, or leave it at auto")
    return ConformalRule(keys.alpha, score, keys.quantile, keys.penalty, keys.k_reg)


def check_withheld_rows(rule: ConformalRule, shards: Shards, hold_out: float, *, halved: bool = False) -> None:
    """Raises an error if alpha is too small for the number of held-out samples.

    With such an alpha, all conformal sets of some world (a seed and a fold) would contain every label.

    Args:
        rule: The rule that makes conformal sets.
        shards: The clients' data.
        hold_out: `data.hold_out`, for the message.
        halved: Whether only every second held-out sample of a client gives the threshold, as in a sweep.

    Raises:
        BadInput: Too few samples are held out.
    """
    for world in range(shards.worlds):
        sizes = [len(shards.client_holdout(world, c)) for c in range(min(shards.number, EVALUATED_CLIENTS))]
        sizes = [-(-size // 2) for size in sizes] if halved else sizes
        if not withholds_enough(sizes, rule):
            rows, clients = sum(sizes), int(np.count_nonzero(sizes))
            least = math.ceil(np.float64(1e4) * clients / (rows + clients)) / 1e4
            remedy = "raise it" if rule.quantile == "qq" else f"raise it to {least:g} at least"
            raise BadInput(
                f"predict.conformal.alpha = {rule.alpha:g}, but {rows} {'of the ' * halved}rows withheld by {clients} "
                f"clients {'(a sweep scores the others) ' * halved}are too few for it, so that every label would be in "
                f"every set: {remedy}, or raise data.hold_out = {hold_out:g}"
            )


# ---------------------------------------------------------------------------------------------------------------------
# Training steps of clients of the run on their own samples before they predict.


def add_tuning(scenario: Scenario, setting: Setting, method: Method) -> Method:
    """Adds the training steps that clients of the run make before they predict (`evaluate.personal_steps`).

    Args:
        scenario: The scenario.
        setting: The setting of the method. Its `local` describes the training steps.
        method: The method.

    Raises:
        BadInput: Clients of the run do not predict with the models that the method trains.
    """
    steps, phase, spec = scenario.evaluate.personal_steps, method.phase, method_spec_of(scenario.method.name)
    if steps is None:
        return method
    others = method.answer is not None or method.one_model_per_client or phase.is_personal or phase.weighs
    if others or setting.stack is not None or spec.network is not None or phase.work is not None or not spec.trains:
        raise BadInput(
            f"evaluate.personal_steps = {steps}, but known clients of {method.name} predict with other models than "
            "those that clients train together: leave it out"
        )
    loss = setting.local.loss
    if reads_ensemble(loss) or (loss is not None and loss.shared is not None):
        what = "the ensemble" if reads_ensemble(loss) else "a tensor of the server"
        raise BadInput(
            f"evaluate.personal_steps = {steps}, but local.loss reads {what}, which a client has in training alone: "
            "leave it out"
        )
    local = replace(setting.local, epochs=None, steps=steps, lr_decay=1.0, schedule=None, pull=0.0)
    return replace(method, phase=phase.add(Tuning(replace(phase, local=local, pieces=()))))


# ---------------------------------------------------------------------------------------------------------------------
# Asynchronous training: the rule of the server's steps, and sums of uploads for several server steps at once.

MOST_NUMBERS = 4_000_000  # most values in the sums of one call, about 32 MB
IN_ROUNDS = ("choose", "remember", "ask", "walk")  # only synchronous training calls these functions of a phase


def make_async_rule(scenario: Scenario, clients: Clients) -> AsyncRule | None:
    """Returns the rule of asynchronous training, or None if training is synchronous.

    Example:
        >>> from fedray.core.types import Tier
        >>> from fedray.scenario.loader import read_scenario
        >>> scenario = read_scenario({"method": {"name": "fedavg"}, "participation": {"mode": "buffered", "goal": 3}})
        >>> make_async_rule(scenario, Clients((Tier("phones", 20),)))
        AsyncRule(mode='buffered', concurrency=20, goal=3, tick=10.0, ...)
    """
    keys = scenario.participation
    if keys.mode == "sync":
        return None
    given = {one.name: getattr(keys, one.name) for one in fields(AsyncRule)}
    return AsyncRule(**given | {"concurrency": min(clients.number, keys.concurrency or clients.number)})


def add_groups(rule: AsyncRule, setting: Setting, method: Method, compose: Callable[[Setting], Method]) -> Method:
    """Returns the method for asynchronous training.

    One call of its function `Server.reduce` computes the sums of several server steps. The uploads of one model in one
    server step are a group. `Server.reduce` treats each group as a world with one model.

    Args:
        rule: The rule of asynchronous training.
        setting: The setting of the method.
        method: The method for synchronous training.
        compose: A function that composes the method from a setting.

    Raises:
        BadInput: The method cannot be trained asynchronously.
    """
    mode, phase = f"participation.mode = {rule.mode}", method.phase
    of_rounds = [name for name in IN_ROUNDS if getattr(phase, name)]
    early = (one for one in phase.pieces if one.reads_models or one.nets or isinstance(one, Correction))
    of_rounds += [type(one).__name__ for one in early]
    if phase.local.loss is not None and phase.local.loss.shared is not None:
        of_rounds.append(f"a loss of {phase.local.loss.shared}")
    if of_rounds:
        raise BadInput(
            f"{mode}, but {method.name} has {of_rounds[0]}, which is for rounds in which clients and server meet: set "
            "it to sync, or choose another method"
        )
    rows = setting.models * len(setting.seeds)
    if rule.mode == "async" and (phase.server.keeps or phase.server.init(torch.zeros(rows, setting.layout.d))):
        raise BadInput(
            f"{mode} mixes single uploads into the model, but the server of {method.name} keeps more than the model "
            "(server.optimizer, server.robust, or its own): set it to buffered"
        )
    worlds = len(setting.seeds)
    each = {"buffered": -(-rule.concurrency // rule.goal), "async": rule.concurrency, "semi": 4 * setting.models}[
        rule.mode
    ]
    least = worlds * (setting.models if rule.mode == "semi" else 1)
    groups = max(least, min(worlds * each, MOST_NUMBERS // max(1, setting.layout.d)))
    grouped = compose(replace(setting, models=1, seeds=tuple(range(groups)), own_method=""))
    server = phase.server._replace(reduce=grouped.phase.server.reduce)
    return replace(method, phase=replace(phase, server=server, groups=groups))
