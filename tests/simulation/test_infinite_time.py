"""A round whose virtual time is no number ends the run with one line that names the keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from small import run_command, scenario

import fedray
from fedray.core.errors import BadInput, FedrayError


@pytest.mark.parametrize("tier", [{"uplink": 5e-324}, {"seconds_per_step": 1e308}, {"latency": 1.7e308}])
def test_infinite_virtual_time_is_one_line(tier: dict[str, float], tmp_path: Path) -> None:
    keys = scenario({"clients": {"tiers": {"slow": tier}}, "report": False})
    with pytest.raises(FedrayError, match="round 1 takes infinite virtual time: raise uplink"):
        fedray.run(keys, out=tmp_path / "run")


def test_a_path_that_is_not_utf_8_is_one_line(tmp_path: Path) -> None:
    """JSON, YAML and the page could not hold it, and a checkpoint under it was called damaged."""
    with pytest.raises(BadInput, match="its name is not UTF-8 text: rename it"):
        fedray.run(scenario(), out=f"{tmp_path}/r\udcff")
    result = run_command("report", f"{tmp_path}/r\udcff")
    assert result.status == 2 and len(result.err.splitlines()) == 1 and "\\udcff" in result.err
