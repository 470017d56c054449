"""Which jobs of asynchronous training may share a block."""

from __future__ import annotations

import numpy as np

from fedray.core.local import Windows
from fedray.core.method import Local
from fedray.runtime.flights import group_versions


def test_jobs_before_the_first_sampled_version_share_no_block_with_those_behind_it() -> None:
    """Nor do jobs of several learning rates; where neither changes, all may."""
    version, windows = np.array([0, 3, 1, 2, 5]), Windows(lambda start, means: means[-1] - start, burn_in=2)
    assert group_versions(Local(windows=windows), version).tolist() == [0, 1, 0, 1, 1]
    assert len(set(group_versions(Local(windows=windows, lr_decay=0.5, lr_decay_every=3), version).tolist())) == 3
    assert group_versions(Local(), version).tolist() == [0] * 5
