"""Training without rounds: when the server steps, and a method whose uploads are added up by server step.

Example:
    >>> from fedray.core.types import Tier
    >>> from fedray.scenario.loader import read_scenario
    >>> scenario = read_scenario({"method": {"name": "fedavg"}, "participation": {"mode": "buffered", "goal": 3}})
    >>> make_async_rule(scenario, Clients((Tier("phones", 20),)))
    AsyncRule(mode='buffered', concurrency=20, goal=3, tick=10.0, alpha=0.6, staleness='polynomial', a=0.5, b=4.0, \
dropout=0.0, deadline=None)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from fedray.core.errors import BadInput
from fedray.core.method import Method
from fedray.core.types import Clients
from fedray.features.correction import Correction
from fedray.methods.setting import Setting
from fedray.scenario.schema import Scenario
from fedray.simulation.async_rule import AsyncRule

MOST_NUMBERS = 4_000_000  # of the sums of one call, about 32 MB
IN_ROUNDS = ("choose", "remember", "ask", "walk")  # of a phase: called in rounds only


def make_async_rule(scenario: Scenario, clients: Clients) -> AsyncRule | None:
    """When the server steps; None in rounds.

    Args:
        scenario: says it.
        clients: the population.
    """
    keys = scenario.participation
    if keys.mode == "sync":
        return None
    return AsyncRule(
        mode=keys.mode,
        concurrency=min(clients.number, keys.concurrency or clients.number),
        goal=keys.goal,
        tick=keys.tick,
        alpha=keys.alpha,
        staleness=keys.staleness,
        a=keys.staleness_a,
        b=keys.staleness_b,
        dropout=keys.dropout,
        deadline=keys.deadline,
    )


def count_buffered(scenario: Scenario, clients: Clients) -> int:
    """Returns the most uploads of a model that one server step uses."""
    rule = make_async_rule(scenario, clients)
    assert rule is not None
    return {"buffered": rule.goal, "async": 1, "semi": rule.concurrency}[rule.mode]


def add_groups(scenario: Scenario, pieces: Setting, method: Method, compose: Callable[[Setting], Method]) -> Method:
    """Returns the method whose server adds up the uploads of several server steps at once.

    Its sums are those of the same method with one model in as many worlds as there are groups.

    Args:
        scenario: has a mode without rounds.
        pieces: of the method.
        method: for rounds.
        compose: makes it from other pieces.

    Raises:
        BadInput: the method cannot train without rounds.
    """
    rule = make_async_rule(scenario, pieces.clients)
    assert rule is not None
    mode, phase = f"participation.mode = {rule.mode}", method.phase
    of_rounds = [name for name in IN_ROUNDS if getattr(phase, name)]
    of_rounds += [type(one).__name__ for one in phase.pieces if one.reads_models or isinstance(one, Correction)]
    if phase.local.loss is not None and phase.local.loss.shared is not None:
        of_rounds.append(f"a loss of {phase.local.loss.shared}")
    if of_rounds:
        raise BadInput(
            f"{mode}, but {method.name} has {of_rounds[0]}, which is for rounds in which clients and server meet: set "
            "it to sync, or choose another method"
        )
    rows = pieces.models * len(pieces.seeds)
    if rule.mode == "async" and (phase.server.keeps or phase.server.init(torch.zeros(rows, pieces.layout.d))):
        raise BadInput(
            f"{mode} mixes single uploads into the model, but the server of {method.name} keeps more than the model "
            "(server.optimizer, server.robust, or its own): set it to buffered"
        )
    worlds = len(pieces.seeds)
    each = {"buffered": -(-rule.concurrency // rule.goal), "async": rule.concurrency, "semi": 4 * pieces.models}[
        rule.mode
    ]
    least = worlds * (pieces.models if rule.mode == "semi" else 1)
    groups = max(least, min(worlds * each, MOST_NUMBERS // max(1, pieces.layout.d)))
    grouped = compose(replace(pieces, models=1, seeds=tuple(range(groups)), own_method=""))
    server = phase.server._replace(reduce=grouped.phase.server.reduce)
    return replace(method, phase=replace(phase, server=server, groups=groups))
