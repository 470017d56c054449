"""Client selection: rules that choose the participants of a round by their data, their losses, or their speed.

A rule chooses among the clients of one tier, so that tiers keep their shares. It knows what a server knows: numbers of
samples, and of clients that have counted in a round the mean training loss of the last one, when that was, and how long
a round takes them. Losses are kept in the state, so they are in checkpoints, and the draws have addresses: a resumed
run chooses the same clients.

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

from fedray.components.schedule import FIRST_PACE, Drawn, Informed, Participation, WorldRound, read_memory
from fedray.core import rng
from fedray.core.errors import quote_value
from fedray.core.types import Clients, FloatArray, IntArray, State

CLIP, CUT_OFF, LEAST_EXPLORATION, DECAY = 95.0, 0.95, 0.2, 0.98  # Oort, section 7.1 and Algorithm 1
Generator = np.random.Generator


class KnownClients(NamedTuple):
    """What a server knows of the n clients of a tier when a round begins.

    Attributes:
        client: Ids, `[n]`, rising.
        size: Training samples, `[n]`.
        loss: Mean training loss in the last round that the client counted in, `[n]`; NaN: it never did.
        last: That round, from 1, `[n]`; 0: none.
        seconds: Virtual seconds that a round of the client takes, `[n]`; NaN: it has never counted in one, so that the
            server does not know it. None: nobody asked.
        round: The round to come, from 1.
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
    """Places of a draw without replacement with odds in proportion to weights, `[number]`.

    Source: Efraimidis and Spirakis 2006. A weight of 0 comes last.
    """
    with np.errstate(divide="ignore"):
        key = np.log(-np.log(generator.random(len(weight)))) - np.log(weight)
    last = np.partition(key, number)[number] if number < len(key) else np.inf
    some = np.flatnonzero(~(key > last))  # only those that may be among the first are sorted
    place: IntArray = some[np.argsort(key[some], kind="stable")[:number]]
    return place


def by_examples() -> Rule:
    """Draws without replacement with odds in proportion to the samples of a client.

    Source: Li et al. 2020 (FedProx, Algorithm 2: devices are chosen with probability p_k), there with replacement.
    """

    def choose(known: KnownClients, number: int, generator: Generator) -> IntArray:
        return np.sort(known.client[draw_weighted(known.size.astype(np.float64), number, generator)])

    return choose


def power_of_choice(candidates: int | None = None) -> Rule:
    """Of d candidates, drawn in proportion to their samples, the clients with the largest known losses.

    Clients that were never trained come first. Losses are those that clients sent with their last upload, so nothing is
    asked of the candidates: the variant rpow-d.

    Source: Cho, Wang and Joshi 2020 (power-of-choice, section 3 and appendix; rpow-d).

    Args:
        candidates: d, for all tiers in proportion to their participants; None: twice as many as participants.
    """

    def choose(known: KnownClients, number: int, generator: Generator) -> IntArray:
        d = 2 * number if candidates is None else max(candidates, number)
        drawn = draw_weighted(known.size.astype(np.float64), d, generator)
        loss = np.where(known.last[drawn] > 0, known.loss[drawn], np.inf)
        return np.sort(known.client[drawn[np.argsort(-loss, kind="stable")[:number]]])

    return choose


def oort(exploration: float = 0.9, penalty: float = 2.0) -> Rule:
    """Guided selection by statistical utility and speed, with exploration.

    A known client i has the utility `u_i = n_i loss_i`, at most the 95th percentile and divided by its largest value,
    plus `sqrt(0.1 log(t) / t_i)` for the round t_i in which it last counted; if its round takes `s_i` seconds, longer
    than the preferred T, times `(T / s_i)^penalty`. Participants are drawn in proportion to it from those above 0.95 of
    the smallest utility that would be chosen by rank. A share of the participants, `max(0.2, exploration 0.98^t)`, are
    clients that were never trained, drawn with equal odds. T is a percentile of the known s_i, 30 % first; it rises by
    10 % when the utility of 20 rounds is not above that of the 20 rounds before.

    Source: Lai et al. 2021 (Oort, Algorithm 1, equations 2 and 3), and the authors' code (SymbioticLab/Oort).

    Deviations:
        1. Of a client that it has never met the server knows no speed, and draws it like the others. The paper draws
           new clients by a speed that their models of devices suggest. In the code all clients register with their
           duration and their rows; of the new ones it draws by rows, those slower than T put off, among the first five
           times as many as it wants. T is a percentile of all registered durations there, and of those met here.
        2. The mean loss of the last local training stands for the root of the mean square over samples.
        3. s_i is computed for dense models, before compression, and links as they are at the start.
        4. Utilities are divided by the largest; the code subtracts the smallest, and divides by the range.
        5. The cut-off is 0.95 of the last utility that would be chosen by rank, as in the paper; in the code it is a
           share of the next one.
        6. T only rises. In the code it rises where the utility of 20 rounds is within 10 % of that before, and falls
           where it is more than five times as large.
        7. Nobody is left out for having taken part often (the code's blacklist, which is off by default), and each tier
           is chosen from by itself.

    Args:
        exploration: Share of clients that were never trained, in the first round.
        penalty: alpha of the paper, by which slow clients are put off.
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
    """Returns the clients in turn, by their ids: the next ones in every round, whatever their tiers are.

    So a tier takes part in proportion to its size over the rounds, also where fewer clients than tiers do in one.

    Args:
        clients: The population.
        number: Participants of a round.

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
    """Keeps the same participants for an age (K rounds); every client takes part in equally many ages.

    The clients of a tier stand in a circle, in an order drawn once; each age takes the next ones. So a participant
    meets every model exactly once in its age under the permutation schedule, whether its rows are clients or slots, and
    the ages of two clients of a tier differ by at most 1 at any time.

    Args:
        clients: The population.
        per_tier: Participants of each tier.
        models: K, the rounds of an age.
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
        client = np.concatenate(picked).astype(np.int64)
        return Drawn(client, np.arange(len(client)))

    return draw


def choose_clients(
    clients: Clients,
    per_tier: Sequence[int],
    rule: Rule,
    sizes: Callable[[int], IntArray],
    seconds: Callable[[int], FloatArray] | None = None,
) -> Informed:
    """Participants that a rule chooses, tier by tier.

    Slots go by client id inside a tier, as in a uniform draw, so that a slot belongs to one tier for ever.

    Args:
        clients: The population.
        per_tier: Participants of each tier.
        rule: Chooses them.
        sizes: Training samples of all clients of a world, `[N]`.
        seconds: How long a round of each client of a world takes, `[N]`, of which the rule is told those of clients
            that have counted in one; None where it does not read it.
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
        client = np.concatenate(picked).astype(np.int64)
        return Drawn(client, np.arange(len(client)))

    return Informed(choose)


# (what is known, how many to choose, generator, options) -> ids of the chosen, `[number]`
OwnRule = Callable[[KnownClients, int, Generator, Mapping[str, Any]], Any]


def check_chosen(found: object, known: KnownClients, number: int) -> str | None:
    """Says what is wrong with the clients that a user's rule chose; None if nothing is.

    Args:
        found: What it returned.
        known: Whom it chose from.
        number: How many it was to choose.
    """
    chosen = np.asarray(found)
    fine = chosen.shape == (number,) and (chosen.dtype.kind in "iu" or not number)
    if fine and len(np.unique(chosen)) == number and np.isin(chosen, known.client).all():
        return None
    return f"{quote_value(found)}: return the ids of {number} different clients of known.client, such as its first ones"
