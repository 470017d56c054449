"""Sets up the process before torch computes anything, for the tests and for the examples in docstrings."""

from __future__ import annotations

import os

os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")  # MKL reads it at its first product
os.environ.setdefault("OMP_NUM_THREADS", "1")
