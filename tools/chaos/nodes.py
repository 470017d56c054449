"""Runs the tests of this folder, on real nodes started here: `python tools/chaos/nodes.py [OPTIONS OF PYTEST]`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main(["-q", "-s", *sys.argv[1:], str(Path(__file__).parent)]))
