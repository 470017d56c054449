"""Defines rules that choose the clients of a round by their numbers of samples, their losses, or their speed.

A rule chooses among the clients of one tier (class of devices), so every tier keeps its share of the participants. The
rule uses only facts that a server knows. The server knows the number of samples of every client. If the server uses a
client's upload in a round, it also knows the client's mean training loss in this round. If a client has taken part, the
server knows how long a round of the client takes. A *world* is one combination of a seed and a fold.

Example:
    >>> known = KnownClients(np.arange(4), np.array([1, 1, 1, 1]), np.array([0.1, 2.0, 0.3, 3.0]), np.ones(4, int))
    >>> power_of_choice(candidates=4)(known, 2, rng.stream(0, "selection")).tolist()
    [1, 3]
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fedray.components.schedule import FIRST_PACE, Participants, Participation, WorldRound, join_tiers, read_memory
from fedray.core import rng
from fedray.core.errors import quote_value
from fedray.core.types import Clients, FloatArray, IntArray, State

CLIP, CUT_OFF, LEAST_EXPLORATION, DECAY = 95.0, 0.95, 0.2, 0.98  # Oort, section 7.1 and Algorithm 1
Generator = np.random.Generator


class KnownClients(NamedTuple):
    """The facts that a server knows about the n clients of a tier (class of devices) when a round begins.

    Attributes:
        client: Ids of the clients, `[n]`, in ascending order.
        size: Number of training samples of each client, `[n]`.
        loss: Mean training loss of the client when it last took part, `[n]`. If the server did not use its upload, this
            is the mean loss of the round. NaN means that the client has not taken part.
        last: The last round in which the client took part, `[n]`. The first round is 1. 0 means that the client has not
            taken part.
        seconds: Virtual seconds in which the client trains one model and sends it without compression, with its link at
            the start of the run, `[n]`. NaN means that the client has not taken part. The field is None if the rule
            does not use seconds.
        round: The round that begins, from 1.
        pace: A percentile, 0 to 100 (Oort). A round should not take longer than this percentile of the known seconds.
    """

    client: IntArray
    size: IntArray
    loss: FloatArray
    last: IntArray
    seconds: FloatArray | None = None
    round: int = 1
    pace: float = FIRST_PACE


# (known facts, number of participants, generator) -> ids of the participants, `[number]`
Rule = Callable[[KnownClients, int, Generator], IntArray]


def draw_weighted(weight: FloatArray, number: int, generator: Generator) -> IntArray:
    """Draws `number` different indices of `weight`, with probabilities in proportion to the weights.

    Indices with weight 0 are drawn only after all other indices. Source: Efraimidis and Spirakis 2006.
    """
    with np.errstate(divide="ignore"):
        key = np.log(-np.log(generator.random(len(weight)))) - np.log(weight)
    last = np.partition(key, number)[number] if number < len(key) else np.inf
    some = np.flatnonzero(~(key > last))  # sorts only keys that may be among the first
    return some[np.argsort(key[some], kind="stable")[:number]]


def by_examples(known: KnownClients, number: int, generator: Generator) -> IntArray:
    """Draws clients in proportion to their numbers of samples.

    Source: Li et al. 2020 (FedProx, Algorithm 2). The paper draws with replacement. This rule draws without
    replacement.
    """
    return np.sort(known.client[draw_weighted(known.size.astype(np.float64), number, generator)])


def power_of_choice(candidates: int | None = None) -> Rule:
    """Returns a rule that draws some candidates, and takes the candidates with the largest known losses.

    Candidates are drawn in proportion to their numbers of samples. Among them, clients that have never taken part
    are taken first. A client's loss is known from its last upload, so candidates compute nothing (the paper's variant
    rpow-d). `candidates` is the number of candidates, at least the number of participants. None means twice the number
    of participants.

    Source: Cho, Wang and Joshi 2020 (power-of-choice, section 3 and appendix).
    """

    def choose(known: KnownClients, number: int, generator: Generator) -> IntArray:
        d = 2 * number if candidates is None else max(candidates, number)
        drawn = draw_weighted(known.size.astype(np.float64), d, generator)
        loss = np.where(known.last[drawn] > 0, known.loss[drawn], np.inf)
        return np.sort(known.client[drawn[np.argsort(-loss, kind="stable")[:number]]])

    return choose


def oort(exploration: float = 0.9, penalty: float = 2.0) -> Rule:
    """Returns the rule Oort.

    The rule prefers fast clients with large losses, and also explores clients that have never taken part.

    A known client i with n_i samples has the utility `u_i = n_i loss_i`. If a loss is negative, which a Gaussian
    likelihood can be, the smallest loss is first subtracted from all losses. Utilities are clipped at their 95th
    percentile and divided by the largest utility. Then `sqrt(0.1 log(t) / t_i)` is added, where t is the current round,
    and t_i is the last round in which the client took part. A round of the client takes `s_i` seconds.
    If `s_i` is more than the preferred duration T, the sum is multiplied by `(T / s_i)^penalty`. The result is the
    client's score.

    A fraction `max(0.2, exploration 0.98^t)` of the participants are clients that have never taken part. They are drawn
    with equal probabilities. The other m participants are drawn in proportion to their scores. Only clients with at
    least 0.95 times the m-th largest score can be drawn.

    T is a percentile of the known s_i, at first the 30th. Every 20 rounds, the utility of the last 20 rounds is
    compared with the utility of the 20 rounds before. If the utility has not grown, T becomes a percentile that is
    higher by 10.

    Source: Lai et al. 2021 (Oort, Algorithm 1, equations 2 and 3), and the authors' code (SymbioticLab/Oort).

    Deviations:
        1. Here the server does not know the speed of new clients, so all of them have the same odds. The paper draws
           new clients by the speed of their type of device. In the code, all clients register with their duration and
           their number of samples. The code draws new clients by these values. The code's T is a percentile of all
           registered durations. Here T is a percentile of the durations of clients that have taken part.
        2. The mean loss of the last local training replaces the root mean square of the losses of samples.
        3. s_i is computed for models without compression, and for the links at the start of the run.
        4. Utilities are divided by the largest utility. The code subtracts the smallest utility, and divides by the
           range.
        5. As in the paper, the limit is 0.95 times the m-th largest score. In the code, the limit is a fraction of the
           next smaller score.
        6. The percentile of T only rises. In the code, it rises if the utility of 20 rounds differs by at most 10 %
           from the utility of the 20 rounds before. It falls if the difference is at least five times the utility of
           the 20 rounds before.
        7. The code can exclude clients that have taken part often (off by default). Here no client is excluded.
        8. The clients of each tier are chosen separately.
        9. A participant whose upload was not used gets the mean loss of the round. In the code, it gets the mean
           utility of the round.

    Args:
        exploration: Fraction of new clients among the participants at first. In round t, the fraction is `exploration
            0.98^t`, and at least 0.2. With 0, new clients are chosen only if there are too few other clients.
        penalty: The exponent of T / s_i, by which slow clients lose utility (alpha of the paper).
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
        plain = known.size[old] * (known.loss[old] - min(float(known.loss[old].min()), 0.0))
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
    """Returns a participation rule that takes the next `number` clients in each round, by ascending id.

    After the last client, the first client follows. Over many rounds, each tier (class of devices) takes part in
    proportion to its size.

    Example:
        >>> from fedray.core.types import Tier
        >>> draw = draw_in_turn(Clients((Tier("phones", 1), Tier("laptops", 2))), 2)
        >>> [draw(WorldRound(0, t, 0), None).client.tolist() for t in range(3)]
        [[0, 1], [0, 2], [1, 2]]
    """

    def draw(now: WorldRound, _state: State | None) -> Participants:
        return Participants(np.sort((now.t * number + np.arange(number)) % clients.number), np.arange(number))

    return draw


def fair_ages(clients: Clients, per_tier: Sequence[int], models: int) -> Participation:
    """Returns a participation rule that keeps the same participants for K rounds (an age).

    The clients of a tier (class of devices) form a circle in a random order, which is drawn once. Each age takes the
    next clients of the circle. So, under the permutation schedule, a participant trains every model exactly once in an
    age. At any time, the numbers of ages in which two clients of a tier have taken part differ by at most 1.

    `per_tier` is the number of participants of each tier, and `models` is the number of models, K.
    """
    starts = np.cumsum([0] + [tier.number for tier in clients.tiers])

    @cache
    def order_tier(seed: int, c: int) -> IntArray:
        return rng.stream(seed, "fair ages", c).permutation(clients.tiers[c].number)

    def draw(now: WorldRound, _state: State | None) -> Participants:
        picked = []
        for c, (tier, n) in enumerate(zip(clients.tiers, per_tier, strict=True)):
            order = order_tier(now.seed, c)
            place = (now.t // models * n + np.arange(n)) % max(tier.number, 1)
            picked.append(np.sort(order[place]) + starts[c])
        return join_tiers(picked)

    return draw


def choose_clients(
    clients: Clients,
    per_tier: Sequence[int],
    rule: Rule,
    sizes: Callable[[int], IntArray],
    seconds: Callable[[int], FloatArray] | None = None,
) -> Participation:
    """Returns a participation rule that chooses the clients of each tier (class of devices) by a rule such as Oort.

    Participants are ordered by tier, so a position (slot) always belongs to the same tier.

    Args:
        clients: All clients.
        per_tier: Number of participants of each tier.
        rule: A function that takes the `KnownClients` of a tier, the number of participants, and a random generator. It
            returns the ids of the participants.
        sizes: A function that takes a world and returns the number of training samples of each client, `[N]`.
        seconds: A function that takes a world and returns how many seconds a round of each client takes, `[N]`. The
            rule receives only the seconds of clients that have taken part. None means that the rule does not use
            seconds.
    """
    starts = np.cumsum([0] + [tier.number for tier in clients.tiers])

    def choose(now: WorldRound, state: State | None) -> Participants:
        size, times = sizes(now.world), None if seconds is None else seconds(now.world)
        loss, last, pace = read_memory(state, now.world, clients.number)
        picked = []
        for c, n in enumerate(per_tier):
            ids = np.arange(starts[c], starts[c + 1])
            its = None if times is None else np.where(last[ids] > 0, times[ids], np.nan)
            known = KnownClients(ids, size[ids], loss[ids], last[ids], its, now.t + 1, pace)
            picked.append(rule(known, n, rng.stream(now.seed, "selection", now.t, c)) if n else ids[:0])
        return join_tiers(picked)

    return choose


# (known facts, number of participants, generator, options) -> ids of the participants, `[number]`
OwnRule = Callable[[KnownClients, int, Generator, Mapping[str, Any]], Any]


def check_chosen(found: object, known: KnownClients, number: int) -> str | None:
    """Returns what is wrong with the clients that a user's rule has chosen, or None.

    The rule must choose `number` different clients of `known`.
    """
    chosen = np.asarray(found)
    fine = chosen.shape == (number,) and (chosen.dtype.kind in "iu" or not number)
    if fine and len(np.unique(chosen)) == number and np.isin(chosen, known.client).all():
        return None
    return f"{quote_value(found)}: return the ids of {number} different clients of known.client, such as its first ones"
