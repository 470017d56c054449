"""Fixtures of all tests; the top-level conftest.py has set up the process before torch computes anything."""

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import settings
from own_names import forgetting_names

torch.set_num_threads(1)
settings.register_profile("fedray", deadline=None, max_examples=40)
settings.load_profile("fedray")


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """No test sees the names that another one registered, and what it draws without a seed is the same each time."""
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    with forgetting_names():
        yield


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A local Ray of 12 CPUs, more than the machine has, so that every packing fits; one start serves a test file."""
    from fedray.runtime import environment

    environment.prepare_process()
    from fedray.runtime.ray.connection import open_local_ray

    with open_local_ray(12, {"lab": 1}):
        yield
