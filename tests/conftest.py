"""Set up the worker environment before torch computes anything."""

from __future__ import annotations

import os

os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("fedray", deadline=None, max_examples=40)
settings.load_profile("fedray")
