"""Pictures of the final answers show the numbers that were measured."""

from __future__ import annotations

import numpy as np

from fedray.metrics.classification import calibration
from fedray.report import predictions
from fedray.report.read import ReadRun


def test_a_confidence_between_two_bins_was_drawn_in_the_next_one() -> None:
    """Three of five members are sure: a confidence of 0.6, the upper end of the ninth of fifteen bins."""
    probs = np.array([[0.6, 0.4], [0.4, 0.6], [0.8, 0.2]])
    found = calibration(probs, [0, 0, 0])
    table = np.stack([found.confidence, found.accuracy, found.samples], axis=1)
    figure = predictions.figure_calibration(ReadRun("a", {}, "", {}, {}, {}, None, None, {"calibration": table}))
    assert figure is not None
    (bars,) = figure.axes[1].patches
    left = np.asarray(bars.get_path().vertices)[::5, 0]
    assert np.floor(15 * left).tolist() == np.flatnonzero(found.samples).tolist() == [8, 11]
    assert np.allclose(15 * left % 1, 0.08)
