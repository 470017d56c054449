"""The table of scores: units, directions and names come from it alone."""

from __future__ import annotations

import pytest

from fedray.core.scores import NATS, SCORES, SHARE, SQUARED, TARGET
from fedray.core.text import format_number, is_share, name_score
from fedray.metrics.scores import lower_is_better


@pytest.mark.parametrize("name", ["ece_of_mine", "rmsex", "widths", "accuracy_of_mine", "coverage_of_mine", "nll_mine"])
def test_a_users_own_metric_is_not_judged_by_the_beginning_of_its_name(name: str) -> None:
    assert not lower_is_better(name) and lower_is_better(f"{name}_error")
    assert not is_share(name)
    assert name_score(name, unit=True) == name.replace("_", " ")


@pytest.mark.parametrize("before", ["", "hold_out_"])
def test_a_score_is_written_in_the_unit_of_the_table(before: str) -> None:
    for name, score in SCORES.items():
        assert is_share(before + name) == (score.unit == SHARE)
        assert name_score(before + name, unit=True).endswith(f"({score.unit})") == (
            score.unit in (NATS, TARGET, SQUARED)
        )
    assert name_score(f"{before}width_95", unit=True).endswith("width 95 (target units)")
    assert format_number(0.912, f"{before}f1_weighted") == "91.2 %"


def test_what_is_derived_of_a_score_has_its_unit_and_its_direction() -> None:
    for behind in ("min", "mean", "max", "last3"):
        assert is_share(f"accuracy_{behind}") and not lower_is_better(f"accuracy_{behind}")
        assert lower_is_better(f"hold_out_rmse_{behind}") and not is_share(f"rmse_{behind}")
    assert name_score("accuracy_min") == "worst member's accuracy" and name_score("rmse_min") == "best member's RMSE"
    assert is_share("accuracy_base_0_fold_1") and lower_is_better("bias2") and not lower_is_better("entropy")
