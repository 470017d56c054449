"""What it costs to answer: the models that are handed over once, and the forward passes of a sample."""

from __future__ import annotations

from typing import Any

import pytest
from small import of_method, run_command

import fedray
from fedray.assembly.study import build_study
from fedray.scenario.loader import read_scenario
from fedray.simulation.study import cost_answer

N = 6  # clients of `small.scenario`


@pytest.mark.parametrize(
    ("method", "models"),
    [("fedavg", 1), ("fed_ensemble", 5), ("fedag", N), ("pvi", 10), ("local_only", N), ("fedbe", 1 + 10 + N)],
)
def test_a_method_answers_with_the_models_that_its_summary_and_check_count(method: str, models: int) -> None:
    """FedAG's sample is its clients' uploads, FedBE's teachers are its mean, ten draws and the uploads."""
    keys = of_method(method)
    done = fedray.run(keys, rounds=1, report=False)
    study = build_study(read_scenario(keys, explicit=False))
    before, found = cost_answer(study), done.summary["answer"]
    assert found["models"] == found["passes"] == models == before.models
    assert found["bytes"] == before.bytes == models * study.net.layout.d * 4


def test_learners_and_parts_of_a_stack_count_too() -> None:
    stack, trees = (cost_answer(build_study(read_scenario(of_method(name)))) for name in ("stacking", "adaboost_f"))
    assert stack.passes == stack.models == N + 1  # of the folds of one base, and the meta model
    assert (trees.models, trees.passes) == (1, 0)


def test_a_comparison_at_equal_seconds_says_what_they_leave_out() -> None:
    runs = [fedray.run(of_method(name), rounds=2, report=False) for name in ("fed_ensemble", "fedbe")]
    notes: Any = fedray.compare(runs, names=["a", "b"], at_equal="seconds").notes
    assert any("leave out what it costs to answer (a: 12.2 kB of models, 5 passes; b: " in note for note in notes)
    assert any(note.endswith("and steps of the server (b).") for note in notes)
    assert not any("leave out" in note for note in fedray.compare(runs, names=["a", "b"], at_equal="bytes").notes)
    assert "5 models, 12.2 kB to hand over once" in run_command("check", runs[0].path / "scenario.yaml").out
