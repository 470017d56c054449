"""Every score of the answers that known clients get: over all of them, and tier by tier (`evaluate.by_tier`).

A client is scored on its own rows by the answer that it gets: everybody's, one with its own weights, that of its
tier, or that of models of its own. A score of several clients is that of the mean over them, each with the same weight.

Example:
    >>> import fedray
    >>> tiers = {"strong": {"number": 2, "models_per_round": 3}, "weak": {"number": 4}}
    >>> keys = {"method": "shefl", "rounds": 3, "clients": {"tiers": tiers}, "evaluate": {"by_tier": True}}
    >>> found = fedray.run(keys, runtime="inline", report=False).metrics
    >>> sorted(name for name in found if name.startswith("tier_weak"))
    ['tier_weak_accuracy', 'tier_weak_brier', 'tier_weak_ece', 'tier_weak_nll']
    >>> mean = (2 * found["tier_strong_nll"] + 4 * found["tier_weak_nll"]) / 6
    >>> abs(found["personal_nll"] - mean) < 1e-9
    True
"""

from __future__ import annotations

import numpy as np

from fedray.core.types import FloatArray, IntArray, State
from fedray.evaluation.answers import Measured, count_known
from fedray.evaluation.conformal import ClientSets, name_size
from fedray.evaluation.inquiry import Inquiry, Own, RowAnswers, ask_own, join_answers, read_world, tell_known
from fedray.metrics import classification, regression
from fedray.simulation.study import Runtime, Study


def measure_answers(
    study: Study, _world: int, of: RowAnswers, rows: IntArray | None, weights: FloatArray | None
) -> FloatArray:
    """Returns a `Measure`: the numbers of each row from which scores follow, `[m, n]`."""
    said = join_answers(study, of, rows, weights)
    if said.probs is None:
        return regression.row_scores(said.mean, said.sd**2, said.y)
    return classification.row_scores(said.probs, said.y)


def inquire(study: Study, split: str) -> Inquiry:
    """Returns what is asked for the scores of the rows of a split."""
    return Inquiry(split, measure_answers, means=3 + classification.BINS if study.classes else 4)


def ask_own_answers(study: Study, runtime: Runtime, state: State, test: bool) -> dict[str, Own]:
    """Returns what clients with models of their own say about the rows of each split; empty where there are none.

    Args:
        study: what was trained.
        runtime: where the clients live.
        state: the broadcast models.
        test: whether the test rows are answered.
    """
    if not study.evaluation.by_tier or not study.method.phase.is_personal:
        return {}
    splits = [split for split, asked in (("test", test), ("hold_out", study.hold_out)) if asked]
    return {split: ask_own(runtime, state, inquire(study, split)) for split in splits}


def score_tiers(
    study: Study, world: int, measured: Measured, own: dict[str, Own], sets: ClientSets | None
) -> dict[str, float]:
    """Returns the scores of a world's known clients, and of those of each tier where there are several.

    Args:
        study: what was trained.
        world: number of the world.
        measured: what the runtime computed.
        own: what clients with models of their own say by split (`ask_own_answers`).
        sets: how the conformal sets of the clients' test rows do; None: there are none.
    """
    client, tiers = np.arange(count_known(study)), study.clients.tiers
    tier = study.clients.tier_of(client)
    groups = {"personal_": client >= 0}
    groups |= {f"tier_{one.name}_": tier == t for t, one in enumerate(tiers)} if len(tiers) > 1 else {}
    found: dict[str, float] = {}
    for split, prefix, pieces in (("test", "", measured.test), ("hold_out", "hold_out_", measured.held_out)):
        if not pieces:
            continue
        of = read_world(study, world, measured, split)
        told = np.stack(tell_known(study, world, measured, of, inquire(study, split), own=own.get(split)))  # [N, m]
        for group, members in groups.items():
            asked = members & ~np.isnan(told[:, 0])
            if not asked.any():
                continue
            if study.classes:
                scores = classification.scores_of_means(told[asked].mean(axis=0))
            else:  # the RMSE is the mean of theirs
                means = np.concatenate([np.sqrt(told[asked, :1]), told[asked, 1:]], axis=1).mean(axis=0)
                scores = dict(zip(("rmse", "nll", "coverage_95", "width_95"), means.tolist(), strict=True))
            if sets is not None and split == "test" and group != "personal_":
                covered, size = (each[asked].mean() for each in sets)
                scores |= {"conformal_coverage": float(covered), f"conformal_{name_size(study)}": float(size)}
            found |= {prefix + group + name: value for name, value in scores.items()}
    return found
