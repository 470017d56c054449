"""The clients' rows on a GPU (here on `meta`): copied once, kept while used, left in memory where they are too many."""

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from method_cases import make_case

from fedray.assembly.study import build_study
from fedray.core import rng
from fedray.core.method import Augmentation, Local
from fedray.core.types import Plan
from fedray.data.shifts import AUGMENTATIONS
from fedray.runtime import worker as module
from fedray.runtime.stacking import make_worker
from fedray.scenario.loader import read_scenario
from fedray.training.update import Jobs


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> module.RowsOnDevice:
    monkeypatch.setattr(module, "count_free_bytes", lambda _device: 4_000)
    return module.RowsOnDevice(torch.device("meta"))


def test_rows_are_copied_once_and_the_copy_goes_with_them(elsewhere: module.RowsOnDevice) -> None:
    x, y = torch.zeros(10, 4), torch.zeros(10, dtype=torch.int64)
    first, again = elsewhere.place(x, y), elsewhere.place(x, y)
    assert first[0].device.type == first[1].device.type == "meta" and first[0].shape == x.shape
    assert all(a is b for a, b in zip(first, again, strict=True))
    copy, kept = weakref.ref(first[0]), weakref.ref(first[1])
    del x, first, again
    gc.collect()
    assert copy() is None and kept() is not None


def test_what_fills_more_than_a_quarter_of_the_memory_stays(elsewhere: module.RowsOnDevice) -> None:
    x, y = torch.zeros(250), torch.zeros(1)  # 1,004 bytes of 4,000
    assert elsewhere.place(x, y)[0] is x and elsewhere.place(x, y)[1] is y
    assert elsewhere.place(x[:249], y)[0].device.type == "meta"


def test_a_users_augmentation_reads_main_memory_and_fedrays_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "count_free_bytes", lambda _device: 1 << 30)
    worker: Any = make_worker(build_study(read_scenario(make_case("fedavg"), explicit=False)))
    worker.rows_on_device, worker.to_device = module.RowsOnDevice(torch.device("meta")), lambda x: x
    jobs = Jobs(Plan(one := np.ones(1, np.int64), 0 * one, 0 * one), 4 * one, one, rng.keys(0, "test", one), 0 * one)
    for own, device in (((), "meta"), ((Augmentation(lambda x, _y: x, "batch", "own"),), "cpu")):
        dealt = worker.deal(SimpleNamespace(jobs=jobs, local=Local(augment=(AUGMENTATIONS["flip"], *own)), weigh=None))
        assert dealt.read(0, 1)[0].device.type == device


def test_the_parts_of_a_stack_share_the_copies_of_their_rows() -> None:
    study = build_study(read_scenario(make_case("stacking")))
    parts = make_worker(study).parts
    assert parts is not None
    rows = [part.study.shards.fetch(np.array([0]), np.array([0])).x for part in study.parts[:-1]]
    assert len(rows) == 2 and rows[0] is rows[1]
    assert len({worker.rows_on_device for worker in parts.workers}) == 1 and len(parts.workers) == 3


@pytest.mark.parametrize(("share", "taken", "left"), [(1.0, 100, 600), (0.25, 100, 150), (0.25, 300, -50)])
def test_a_process_that_holds_a_share_of_a_gpu_counts_no_more_than_its_share(
    share: float, taken: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (600, 1_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _device: taken)
    shares = {None: share}  # by number: torch refuses the device "cuda" here, which has none
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", shares.__getitem__, raising=False)
    assert module.count_free_bytes(torch.device("cuda")) == left
    monkeypatch.delattr(torch.cuda, "get_per_process_memory_fraction")
    assert module.count_free_bytes(torch.device("cuda")) == 600
