"""What `--wait-for` takes, and when it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from small import run_command

from fedray.core.errors import BadInput
from fedray.runtime.awaited import read_awaited

QUICKSTART = Path(__file__).parents[2] / "scenarios" / "quickstart.yaml"


@pytest.mark.parametrize(
    "text", ["", "hpc", "hpc=", "hpc=many", "hpc=0", "hpc=nan", "hpc=inf", "=3", "a=1,", "a=1,a=2"]
)
def test_what_is_no_amount_is_one_line(text: str) -> None:
    with pytest.raises(BadInput, match="--wait-for .*give NAME=AMOUNT, several with commas, as in hpc=32,lpc=8"):
        read_awaited(text)


def test_nodes_are_waited_for_on_a_cluster_only(tmp_path: Path) -> None:
    result = run_command("run", QUICKSTART, "--out", tmp_path / "run", "--wait-for", "hpc=3")
    assert result.status == 2
    assert "--wait-for waits for the nodes of a cluster: give its --address" in result.err
    assert not (tmp_path / "run").exists()
