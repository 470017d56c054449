"""Names, units and roundings of numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedray.components.schedule import share_out
from fedray.core.errors import is_share, name_score
from fedray.core.scores import NATS, SCORES, SHARE, SQUARED, TARGET
from fedray.core.types import Clients, Tier, round_to_sum
from fedray.metrics.scores import lower_is_better
from fedray.scenario.loader import tier_counts
from fedray.scenario.sections import TierKeys


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


def test_what_is_derived_of_a_score_has_its_unit_and_its_direction() -> None:
    for behind in ("min", "mean", "max", "last3"):
        assert is_share(f"accuracy_{behind}") and not lower_is_better(f"accuracy_{behind}")
        assert lower_is_better(f"hold_out_rmse_{behind}") and not is_share(f"rmse_{behind}")
    assert lower_is_better("hold_out_personal_rmse_p90") and not is_share("personal_rmse_worst")
    assert is_share("personal_worst") and not lower_is_better("hold_out_personal_p10")
    assert name_score("accuracy_min") == "worst member's accuracy" and name_score("rmse_min") == "best member's RMSE"
    assert is_share("accuracy_base_0_fold_1") and lower_is_better("bias2") and not lower_is_better("entropy")


@given(weights=st.lists(st.integers(1, 1000), min_size=1, max_size=8), total=st.integers(0, 10**6))
def test_the_largest_remainders_are_rounded_up_and_the_sum_stays(weights: list[int], total: int) -> None:
    share = np.array(weights) / sum(weights) * total
    whole = round_to_sum(share, total)
    assert whole.sum() == total
    up, remainder = whole > np.floor(share), share - np.floor(share)
    assert ((whole - np.floor(share) == 0) | (whole - np.floor(share) == 1)).all()
    assert remainder[up].min(initial=1.0) >= remainder[~up].max(initial=0.0)


def test_of_equal_remainders_the_first_participants_and_the_larger_tier_come_first() -> None:
    assert share_out(Clients((Tier("weak", 1), Tier("strong", 3))), 2) == [1, 1]
    assert tier_counts({"weak": TierKeys(share=0.25), "strong": TierKeys(share=0.75)}, 2) == {"weak": 0, "strong": 2}
