"""The methods whose clients send once, as scenarios know them."""

from __future__ import annotations

from fedray.scenario.curvature import CURVATURE_SPECS
from fedray.scenario.fens import FENS_SPECS
from fedray.scenario.posterior_samples import SAMPLE_SPECS

ONE_SHOT_SPECS = {**FENS_SPECS, **CURVATURE_SPECS, **SAMPLE_SPECS}
