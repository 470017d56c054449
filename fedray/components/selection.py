"""Client selection: rules that choose the participants of a round by their data, their losses, or their speed.

A rule chooses among the clients of one tier, so that tiers keep their shares. It uses what a server knows: the numbers
of samples, and facts about clients that have counted in a round. These facts are the mean training loss in the last
such round, the number of that round, and how long a round takes the client. The losses are part of the state and of
checkpoints, and each draw has a random key of its own. So a resumed run chooses the same clients.

Example:
    >>> known = KnownClients(np.arange(4), np.array([1, 1, 1, 1]), np.array([0.1, 2.0, 0.3, 3.0]), np.ones(4, int))
    >>> power_of_choice(candidates=4)(known, 2, rng.stream(0, "selection")).tolist()
    [1, 3]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fedray.components.schedule import FIRST_PACE, Drawn, Informed, Participation, WorldRound, join_tiers, read_memory
from fedray.core import rng
from fedray.core.errors import quote_value
from fedray.core.types import Clients, FloatArray, IntArray, State

CLIP, CUT_OFF, LEAST_EXPLORATION, DECAY = 95.0, 0.95, 0.2, 0.98  # Oort, section 7.1 and Algorithm 1
Generator = np.random.Generator


class KnownClients(NamedTuple):
    """The facts that a server knows about the n clients of a tier when a round begins.

    Attributes:
        client: Ids of the clients, `[n]`, rising.
        size: Number of training samples of each client, `[n]`.
        loss: Mean training loss in the last round in which the client counted, `[n]`; NaN if there was none.
        last: Number of that round, from 1, `[n]`; 0 if there was none.
        seconds: Virtual seconds that a round of the client takes, `[n]`; NaN for a client that has never counted in a
            round, whose speed the server does not know. None if the rule does not need them.
        round: Number of the next round, from 1.
        pace: Percentile of the seconds that a round should take (Oort).
    """

    client: IntArray
    size: IntArray
    loss: FloatArray
    last: IntArray
    seconds: FloatArray | None = None
    round: int = 1
    pace: float = FIRST_PACE


# (what is known, how many to choose, generator) -> ids of the chosen, `[number]`
Rule = Callable[[KnownClients, int, Generator], IntArray]


def draw_weighted(weight: FloatArray, number: int, generator: Generator) -> IntArray:
    """Draws indices without replacement, with odds in proportion to weights, `[number]`.

    An index of weight 0 comes last. Source: Efraimidis and Spirakis 2006.
    """
    with np.errstate(divide="ignore"):
        key = np.log(-np.log(generator.random(len(weight)))) - np.log(weight)
    last = np.partition(key, number)[number] if number < len(key) else np.inf
    some = np.flatnonzero(~(key > last))  # only those that may be among the first are sorted
    place: IntArray = some[np.argsort(key[some], kind="stable")[:number]]
    return place


def by_examples() -> Rule:
    """Returns a rule that draws without replacement, with odds in proportion to the client's samples.

    Source: Li et al. 2020 (FedProx, Algorithm 2: devices are chosen with probability p_k). The paper draws with
    replacement.
    """

    def choose(known: KnownClients, number: int, generator: Generator) -> IntArray:
        return np.sort(known.client[draw_weighted(known.size.astype(np.float64), number, generator)])

    return choose


def power_of_choice(candidates: int | None = None) -> Rule:
    """Returns a rule that takes the clients with the largest known losses among d drawn candidates.

    The candidates are drawn with odds in proportion to their samples. Clients that have never trained come first. The
    losses are those that clients sent with their last upload, so candidates compute nothing: the variant rpow-d.

    Source: Cho, Wang and Joshi 2020 (power-of-choice, section 3 and appendix; rpow-d).

    Args:
        candidates: d, over all tiers, in proportion to their participants; None means twice as many as participants.
    """

    def choose(known: KnownClients, number: int, generator: Generator) -> IntArray:
        d = 2 * number if candidates is None else max(candidates, number)
        drawn = draw_weighted(known.size.astype(np.float64), d, generator)
        loss = np.where(known.last[drawn] > 0, known.loss[drawn], np.inf)
        return np.sort(known.client[drawn[np.argsort(-loss, kind="stable")[:number]]])

    return choose


def oort(exploration: float = 0.9, penalty: float = 2.0) -> Rule:
    """Returns the rule Oort: selection by statistical utility and speed, with exploration.

    A known client i has the utility `u_i = n_i loss_i`, cut at the 95th percentile and divided by the largest. To this,
    `sqrt(0.1 log(t) / t_i)` is added for the round t_i in which the client last counted. If a round of the client takes
    `s_i` seconds, longer than the preferred T, the sum is multiplied by `(T / s_i)^penalty`. Participants are drawn in
    proportion to the result, among those above 0.95 of the smallest utility that would be chosen by rank. A share of
    the participants, `max(0.2, exploration 0.98^t)`, are clients that have never trained, drawn with equal odds. T is a
    percentile of the known s_i, first 30 %. It rises by 10 % when the utility of 20 rounds is not above that of the 20
    rounds before.

    Source: Lai et al. 2021 (Oort, Algorithm 1, equations 2 and 3), and the authors' code (SymbioticLab/Oort).

    Deviations:
        1. The server knows no speed of a client that has never taken part, and draws it like the others. The paper
           draws new clients by a speed that depends on their models of devices. In the code all clients register with
           their duration and their samples. There new clients are drawn by samples, among five times as many as are
           required, and those slower than T lose weight. T is there a percentile of all registered durations, and
           here one of the durations of clients that have taken part.
        2. The mean loss of the last local training replaces the root mean square of the losses of samples.
        3. s_i is computed for dense models, before compression, and links as they are at the start.
        4. Utilities are divided by the largest; the code subtracts the smallest, and divides by the range.
        5. The cut-off is 0.95 of the last utility that would be chosen by rank, as in the paper; in the code it is a
           share of the next one.
        6. T only rises. In the code it rises where the utility of 20 rounds is within 10 % of that before, and falls
           where it is more than five times as large.
        7. No client is excluded for having taken part often (the code's blacklist, which is off by default), and the
           clients of each tier are chosen separately.

    Args:
        exploration: Share of clients that have never trained, in the first round.
        penalty: alpha of the paper, the exponent by which slow clients lose utility.
    """

    def choose(known: KnownClients, number: int, generator: Generator) -> IntArray:
        seconds = np.ones(len(known.client)) if known.seconds is None else np.maximum(known.seconds, 1e-9)
        share = max(LEAST_EXPLORATION, exploration * DECAY**known.round) if exploration else 0.0
        new, old = np.flatnonzero(known.last == 0), np.flatnonzero(known.last > 0)
        explored = min(len(new), max(round(share * number), number - len(old)))
        first = new[draw_weighted(np.ones(len(new)), explored, generator)]
        exploited = number - explored
        if not exploited:
            return np.sort(known.client[first])
        plain = known.size[old] * np.maximum(known.loss[old], 0.0)
        plain = np.minimum(plain, np.percentile(plain, CLIP))
        utility = plain / max(float(plain.max()), 1e-12) + np.sqrt(0.1 * np.log(known.round) / known.last[old])
        wanted = float(np.percentile(seconds[old], known.pace))
        utility = np.where(seconds[old] > wanted, utility * (wanted / seconds[old]) ** penalty, utility)
        least = np.sort(utility)[-exploited] * CUT_OFF
        rest = np.flatnonzero(utility >= least)
        chosen = old[rest[draw_weighted(np.maximum(utility[rest], 1e-12), exploited, generator)]]
        return np.sort(known.client[np.concatenate([first, chosen])])

    return choose


def draw_in_turn(clients: Clients, number: int) -> Participation:
    """Returns a participation rule that takes the clients in turn, by id, whatever their tiers are.

    So over the rounds a tier takes part in proportion to its size, even where a round has fewer participants than there
    are tiers.

    Args:
        clients: The population of clients.
        number: Number of participants of a round.

    Example:
        >>> from fedray.core.types import Tier
        >>> draw = draw_in_turn(Clients((Tier("phones", 1), Tier("laptops", 2))), 2)
        >>> [draw(0, t).client.tolist() for t in range(3)]
        [[0, 1], [0, 2], [1, 2]]
    """

    def draw(_seed: int, t: int) -> Drawn:
        return Drawn(np.sort((t * number + np.arange(number)) % clients.number), np.arange(number))

    return draw


def fair_ages(clients: Clients, per_tier: Sequence[int], models: int) -> Participation:
    """Returns a participation rule with the same participants for an age (K rounds).

    Every client takes part in equally many ages.

    The clients of a tier form a circle, in an order drawn once; each age takes the next ones. Under the permutation
    schedule, a participant so trains every model exactly once in its age, whether permutations belong to clients or to
    slots. At any time, the ages of two clients of a tier differ by at most 1.

    Args:
        clients: The population of clients.
        per_tier: Number of participants of each tier.
        models: K, the number of rounds of an age.
    """
    starts = np.cumsum([0] + [tier.number for tier in clients.tiers])

    @cache
    def order_tier(seed: int, c: int) -> IntArray:
        return rng.stream(seed, "fair ages", c).permutation(clients.tiers[c].number)

    def draw(seed: int, t: int) -> Drawn:
        picked = []
        for c, (tier, n) in enumerate(zip(clients.tiers, per_tier, strict=True)):
            order = order_tier(seed, c)
            place = (t // models * n + np.arange(n)) % max(tier.number, 1)
            picked.append(np.sort(order[place]) + starts[c])
        return join_tiers(picked)

    return draw


def choose_clients(
    clients: Clients,
    per_tier: Sequence[int],
    rule: Rule,
    sizes: Callable[[int], IntArray],
    seconds: Callable[[int], FloatArray] | None = None,
) -> Informed:
    """Returns the participation by a rule, which chooses the clients of each tier.

    Inside a tier, slots are ordered by client id, as in a uniform draw. So a slot always belongs to the same tier.

    Args:
        clients: The population of clients.
        per_tier: Number of participants of each tier.
        rule: The rule that chooses them.
        sizes: Function from a world to the number of training samples of its clients, `[N]`.
        seconds: Function that gives the seconds that a round of each client of a world takes, `[N]`. The rule sees only
            those of clients that have counted in a round. None if the rule does not use them.
    """
    starts = np.cumsum([0] + [tier.number for tier in clients.tiers])

    def choose(now: WorldRound, state: State | None) -> Drawn:
        size, times = sizes(now.world), None if seconds is None else seconds(now.world)
        loss, last, pace = read_memory(state, now.world, clients.number)
        picked = []
        for c, n in enumerate(per_tier):
            ids = np.arange(starts[c], starts[c + 1])
            its = None if times is None else np.where(last[ids] > 0, times[ids], np.nan)
            known = KnownClients(ids, size[ids], loss[ids], last[ids], its, now.t + 1, pace)
            picked.append(rule(known, n, rng.stream(now.seed, "selection", now.t, c)) if n else ids[:0])
        return join_tiers(picked)

    return Informed(choose)


# (what is known, how many to choose, generator, options) -> ids of the chosen, `[number]`
OwnRule = Callable[[KnownClients, int, Generator, Mapping[str, Any]], Any]


def check_chosen(found: object, known: KnownClients, number: int) -> str | None:
    """Returns a description of what is wrong with the clients that a user's rule chose; None if nothing is wrong.

    Args:
        found: The value that the rule returned.
        known: The clients that the rule chose from.
        number: Number of clients that the rule had to choose.
    """
    chosen = np.asarray(found)
    fine = chosen.shape == (number,) and (chosen.dtype.kind in "iu" or not number)
    if fine and len(np.unique(chosen)) == number and np.isin(chosen, known.client).all():
        return None
    return f"{quote_value(found)}: return the ids of {number} different clients of known.client, such as its first ones"
