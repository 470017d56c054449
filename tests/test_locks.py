"""Two processes never write into one run directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedray import record
from fedray.core import BadInput


def test_a_run_directory_is_held_by_one_process_and_released_with_it(tmp_path: Path) -> None:
    with record.alone(tmp_path), pytest.raises(BadInput, match="in use by another"), record.alone(tmp_path):
        pass
    with record.alone(tmp_path):
        pass
