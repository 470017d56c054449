"""Where the time of a command went: what the clock says since the process began, as parts that add up to it.

Example:
    >>> describe_clock({"training_seconds": 5.0, "evaluation_seconds": 2.5}, drawing=1.0, clock=12.0)
    'wall time 12.0 s: start-up 3.5 s, training 5.0 s, evaluation 2.5 s, report 1.0 s'
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_IMPORTED = time.monotonic()


def measure_process() -> float:
    """Seconds since this process began, interpreter and imports included; elsewhere than on Linux since this import."""
    try:
        ticks = float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return float(Path("/proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return time.monotonic() - _IMPORTED


def describe_clock(timings: Mapping[str, Any], drawing: float, clock: float) -> str:
    """One line: the parts of a command's wall time. What is no other part is start-up.

    Args:
        timings: `timings` of the run's manifest: seconds of training and of evaluation in this command.
        drawing: seconds of the report.
        clock: seconds since the process began.
    """
    training, evaluation = (float(timings.get(f"{part}_seconds") or 0.0) for part in ("training", "evaluation"))
    start = max(0.0, clock - training - evaluation - drawing)
    parts = {"start-up": start, "training": training, "evaluation": evaluation, "report": drawing}
    shown = ", ".join(f"{name} {seconds:,.1f} s" for name, seconds in parts.items() if name != "report" or seconds)
    return f"wall time {clock:,.1f} s: {shown}"
