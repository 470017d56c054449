"""Which jobs of asynchronous training may share a block."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedray.core.method import Local, Phase
from fedray.core.piece import Piece
from fedray.features.windows import Windows
from fedray.runtime.flights import group_versions


def phase_of(local: Local, *pieces: Piece) -> Phase:
    nothing: Any = None
    return Phase(1, nothing, local, nothing, nothing, pieces=pieces)


def test_jobs_before_the_first_sampled_version_share_no_block_with_those_behind_it() -> None:
    """Nor do jobs of several learning rates; where neither changes, all may."""
    version, windows = np.array([0, 3, 1, 2, 5]), Windows(lambda start, means: means[-1] - start, burn_in=2)
    sampled, falling = phase_of(Local(), windows), phase_of(Local(lr_decay=0.5, lr_decay_every=3), windows)
    assert group_versions(sampled, version).tolist() == [0, 1, 0, 1, 1]
    assert len(set(group_versions(falling, version).tolist())) == 3
    assert group_versions(phase_of(Local()), version).tolist() == [0] * 5
