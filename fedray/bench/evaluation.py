"""The row for evaluation: CPU seconds to score five models and their ensemble, over those of a plain loop.

Example:
    >>> work = works.ensemble_of(works.plain_mlp, (64,), tested=20)
    >>> plain, fedray, scores = make_evaluations(work)
    >>> plain(1), fedray(1)
    (None, None)
    >>> abs(scores["plain"] - scores["fedray"]) < 1e-6  # the accuracy of the ensemble
    True
"""

from __future__ import annotations

import torch

from fedray.bench import bare, works
from fedray.bench.measure import Work, pin_to_one_core, take_turns
from fedray.bench.table import BenchResult
from fedray.bench.works import BenchWork
from fedray.evaluation.evaluate import make_evaluator
from fedray.runtime.inline import Inline
from fedray.simulation.rounds import begin_progress

PIECE = 500  # samples that the plain loop passes through a model at a time


def measure_evaluation(quick: bool) -> list[BenchResult]:
    """What an evaluation costs over a plain loop: each of five models, and the mean of their probabilities."""
    small = works.ensemble_of(works.plain_mlp, (64,), 2_000)
    large = works.ensemble_of(works.small_cnn, (1, 28, 28), 2_000)
    repeats = 3 if quick else 9
    return [
        _compare("evaluation of five MLPs 64-64-10 and their mean, 2,000 samples", small, (20, 20), repeats),
        _compare("the same of CNNs 10-20-fc50", large, (1, 1), repeats),
    ]


def _compare(what: str, work: BenchWork, rounds: tuple[int, int], repeats: int) -> BenchResult:
    """The ratio of one work."""
    pin_to_one_core()
    plain, fedray, _ = make_evaluations(work)
    slow, fast = take_turns([(plain, rounds[0]), (fedray, rounds[1])], repeats)
    note = f"plain {1e3 * slow.cpu:.2f}, fedray {1e3 * fast.cpu:.2f} ms CPU; fedray has more scores (nll, ECE, members)"
    return BenchResult(what, fast.cpu / slow.cpu, "", None, False, fast.wall / slow.wall, note)


def make_evaluations(work: BenchWork) -> tuple[Work, Work, dict[str, float]]:
    """Evaluations by a plain loop and by fedray, and the accuracy that each of them found last."""
    study = work.study()
    evaluate = make_evaluator(study, Inline(study))
    progress = begin_progress(study, study.method.phase)
    world, layout, scores = bare.make_federation(study, work.module), study.net.layout, dict[str, float]()
    test = study.shards.data.test
    worlds = torch.zeros(1, dtype=torch.long)
    x = study.shards.normalize(torch.as_tensor(test.x)[None], worlds)[0]
    y = torch.as_tensor(test.y)

    def plain(rounds: int) -> None:
        for _ in range(rounds):
            total = torch.zeros(len(x), study.classes)
            for row in progress.state.models:
                world.model.load_state_dict(dict(layout.views(row)))
                with torch.no_grad():
                    total += torch.cat([world.model(piece).softmax(-1) for piece in torch.split(x, PIECE)])
            scores["plain"] = float((total.argmax(-1) == y).float().mean())

    def fedray(rounds: int) -> None:
        for _ in range(rounds):
            scores["fedray"] = evaluate(progress)[0]["accuracy"]

    return plain, fedray, scores
