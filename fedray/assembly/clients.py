"""Makes the simulated devices of a scenario, and the function that chooses the clients of a round."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from fedray.assembly.registry import UserObjects, find_own
from fedray.components import schedule
from fedray.components import selection as rules
from fedray.core.errors import BadInput
from fedray.core.method import Local, Method
from fedray.core.types import Clients, FloatArray, IntArray
from fedray.data.shards import Shards
from fedray.features.slices import TierNet
from fedray.files.plain import expand_user_path
from fedray.own_code.contract import RecordedOptions, contract, refuse_unread
from fedray.own_code.user_code import name_callable
from fedray.scenario.names import declared_options
from fedray.scenario.schema import Scenario
from fedray.scenario.sections import IGNORES_LOSSES
from fedray.simulation import devices as clock
from fedray.simulation.devices import CountingRule, Devices, JobCosts, make_profile, read_trace, time_jobs
from fedray.training.block import count_client_steps, samples_seen

# ---------------------------------------------------------------------------------------------------------------------
# The simulated devices of a scenario, the number of participants of a round, and the uploads that count.


def participants_per_tier(scenario: Scenario, clients: Clients) -> list[int]:
    """Returns for each tier the number of clients for which a round waits.

    Example:
        >>> from fedray.core.types import Tier
        >>> from fedray.scenario.loader import read_scenario
        >>> scenario = read_scenario({"clients": {"number": 10}, "participation": {"per_round": 4}})
        >>> participants_per_tier(scenario, Clients((Tier("phones", 5), Tier("servers", 5))))
        [2, 2]
    """
    keys = scenario.participation
    number = keys.per_round or max(1, round((keys.fraction or 1.0) * clients.number))
    return schedule.share_out(clients, number)


def invited_per_tier(scenario: Scenario, clients: Clients) -> list[int]:
    """Returns for each tier the number of clients that are invited to a round.

    These are `participation.overcommit` times the clients for which the round waits, but at most all of the tier.
    """
    return schedule.overcommit(clients, participants_per_tier(scenario, clients), scenario.participation.overcommit)


def make_counting_rule(scenario: Scenario, clients: Clients) -> CountingRule:
    """Returns the rule that decides which uploads of a round the server uses."""
    keys = scenario.participation
    first = tuple(participants_per_tier(scenario, clients)) if keys.overcommit > 1 else None
    return CountingRule(first, keys.dropout, keys.deadline, keys.partial)


def make_devices(scenario: Scenario, clients: Clients) -> Devices:
    """Returns the simulated devices. Their speeds and links are from a profile, a trace or the tiers."""
    keys = scenario.clients
    if keys.profile is not None:
        devices = make_profile(keys.profile, clients, scenario.seed)
    else:
        devices = read_trace(clients, expand_user_path("clients.trace", keys.trace)) if keys.trace else Devices(clients)
    if keys.availability == "diurnal":
        if devices.available is not None:
            raise BadInput("clients.availability = diurnal, but clients.trace has such times: leave one of the two out")
        return replace(devices, available=clock.diurnal_availability)
    return devices


# ---------------------------------------------------------------------------------------------------------------------
# The choice of a round's participants. They are drawn uniformly, drawn from strata, or chosen by a rule.

Sizes = Callable[[int], IntArray]


def make_participation(
    scenario: Scenario,
    own: UserObjects,
    clients: Clients,
    sizes: Sizes | None = None,
    seconds: Callable[[int], FloatArray] | None = None,
) -> schedule.Participation:
    """Returns the function that chooses the clients of a round.

    Args:
        scenario: The scenario.
        own: The user's objects. If they include a selection rule, it replaces the scenario's rule.
        clients: All clients, with their tiers.
        sizes: A function that takes a world (a seed and a fold) and returns each client's number of training samples,
            `[N]`. It may be missing for the selections `uniform`, `fair` and `round_robin`.
        seconds: A function that takes a world and returns the virtual seconds of a round on each client, `[N]`. Rules
            that use these times require it.

    Example:
        >>> from fedray.core.types import Tier
        >>> from fedray.scenario.loader import read_scenario
        >>> keys = {"clients": 10, "participation": {"per_round": 4, "selection": "fair"}, "method": {"models": 2}}
        >>> draw = make_participation(read_scenario(keys), UserObjects(), Clients((Tier("phones", 10),)))
        >>> chosen = [draw(schedule.WorldRound(0, t, 0), None).client for t in range(6)]
        >>> [len({*chosen[t], *chosen[t + 1]}) for t in (0, 2, 4)]
        [4, 4, 4]
    """
    counts, keys = invited_per_tier(scenario, clients), scenario.participation.selection
    if scenario.schedule.rows == "stratum":
        return schedule.sample_strata(clients, counts, count_age(scenario))
    if sum(counts) == clients.number:
        return schedule.invite_all(clients)
    function = find_own("selection", scenario, own)
    if function is not None:
        rule = _guard_rule(function, keys.options, declared_options("selection", keys.name) is not None)
    elif keys.name == "uniform":
        return schedule.sample_clients(clients, counts)
    elif keys.name == "fair":
        return rules.fair_ages(clients, counts, count_age(scenario))
    elif keys.name == "round_robin":
        return rules.draw_in_turn(clients, sum(counts))
    elif keys.name == "power_of_choice":
        rule = _share_candidates(keys.options.get("candidates"), clients, counts)
    else:
        rule = rules.by_examples if keys.name == "examples" else rules.oort(**keys.options)
    assert sizes is not None
    return rules.choose_clients(clients, counts, rule, sizes, seconds)


def _share_candidates(candidates: int | None, clients: Clients, counts: list[int]) -> rules.Rule:
    """Returns the power-of-choice rule. It draws candidates and chooses those with the largest losses.

    `candidates` is the number of candidates in a round, over all tiers. They are split among the tiers in proportion to
    `counts`, the number of participants of each tier. None means two candidates for each participant.

    Raises:
        BadInput: There are fewer candidates than participants, or more candidates than clients.
    """
    if candidates is None:
        return rules.power_of_choice()
    if not sum(counts) <= candidates <= clients.number:
        raise BadInput(
            f"participation.selection.candidates = {candidates}, but {sum(counts)} of {clients.number} clients take "
            f"part in a round: give {sum(counts)} to {clients.number}"
        )

    def choose(known: rules.KnownClients, number: int, generator: np.random.Generator) -> IntArray:
        each = max(number, round(candidates * number / sum(counts)))
        return rules.power_of_choice(each)(known, number, generator)

    return choose


def count_age(scenario: Scenario) -> int:
    """Returns the length of an age: the number of rounds after which the schedule shuffles the models again.

    The length is K, the number of models. For a stack it is the least common multiple of the bases' numbers of models.
    """
    models = scenario.method.models
    return math.lcm(*(base.get("models", models) for base in scenario.method.options.get("bases", ())), models)


def measure_sizes(shards: Shards) -> Sizes:
    """Returns a function that takes a world and returns each client's number of training samples, `[N]`."""
    return cache(lambda world: shards.sizes(np.full(shards.number, world), np.arange(shards.number)))


def expect_seconds(
    devices: Devices, sizes: Sizes, local: Local, seeds: tuple[int, ...], numbers: int, *, nets: Sequence[TierNet] = ()
) -> Callable[[int], FloatArray]:
    """Returns a function that takes a world and returns the virtual seconds of a round on each client, `[N]`.

    It is assumed that a client trains one model in a round and sends it without compression, and that links keep their
    speed of virtual second 0.

    Args:
        devices: The simulated devices of the clients.
        sizes: A function that takes a world and returns each client's number of training samples, `[N]`.
        local: The description of local training.
        seeds: One seed for each world.
        numbers: The number of parameters of a model, d.
        nets: The network of each tier. The sequence is empty if all tiers train the whole network.
    """
    each = np.array([one.net.layout.d for one in nets] or [numbers] * len(devices.clients.tiers))
    share = np.array([one.work for one in nets] or [1.0] * len(devices.clients.tiers))

    @cache
    def seconds(world: int) -> FloatArray:
        client, size = np.arange(devices.clients.number), sizes(world)
        tier, steps = devices.clients.tier_of(client), count_client_steps(devices.clients, client, size, local)
        sent, samples = 4 * each[tier], samples_seen(size, steps, local)
        costs = JobCosts(steps, up=sent, down=sent, samples=samples, work=share[tier])
        compute, transfer = time_jobs(devices, np.full(len(client), seeds[world]), client, costs, np.zeros(len(client)))
        return compute + transfer

    return seconds


def keep_losses(scenario: Scenario, own: UserObjects, method: Method, worlds: int, shards: Shards) -> Method:
    """Adds the losses of all clients to the method's state, if client selection uses losses or is a user's function."""
    name = scenario.participation.selection.name
    if find_own("selection", scenario, own) is None and name in IGNORES_LOSSES:
        return method
    return schedule.remember_clients(method, worlds, shards.number, measure_sizes(shards))


def _guard_rule(function: rules.OwnRule, options: dict[str, Any], declares: bool) -> rules.Rule:
    """Returns a user's selection rule with a check of the clients that the rule chooses.

    `declares` says whether the user has declared the rule's options. If not, an option that the rule does not use
    raises an error.
    """
    name, recorded, tried = name_callable(function), RecordedOptions(options), list[bool]()
    given = options if declares else recorded

    def returns(found: Any, known: rules.KnownClients, number: int, *_: Any) -> str | None:
        if not (declares or tried):
            refuse_unread("participation.selection", name, recorded)
        tried.append(True)
        return rules.check_chosen(found, known, number)

    ask = contract(f"participation.selection.name = {name}", function, returns, again=True)
    return lambda *about: np.sort(np.asarray(ask(*about, given), dtype=np.int64))
