"""Augmentations of scenarios and of Python objects: where they act, what they equal, and what a run keeps of them."""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from modules import Residual
from small import copy_run, models, of_method, scenario
from torch import Tensor
from torchvision.transforms import v2

import fedray
from fedray.core.errors import BadInput, FedrayWarning
from fedray.data import Split, classification
from fedray.methods import Augmentation, Method, federated
from fedray.runtime.session import Inline
from fedray.runtime.stacking import make_worker
from fedray.simulation.study import Study
from fedray.training import choice

FEW = scenario({"rounds": 2, "method": {"name": "fedavg"}, "data": {"limit": 90}, "clients": {"number": 3}})
CNN: dict[str, Any] = {"model": {"name": "cnn", "channels": [3], "hidden": [6]}}
NORM: dict[str, Any] = {"model": {"name": "mlp", "hidden": [6], "norm": "batch"}}
ENGINES: dict[str, dict[str, Any]] = {
    "mlp-c": {},
    "conv-c": CNN,
    "mlp": {"lanes": "torch"},
    "conv": {**CNN, "lanes": "torch"},
    "loop": NORM,
    "vmap": {},
}


def run(*changes: dict[str, Any], **given: Any) -> fedray.Run:
    out = FEW
    for change in changes:
        out = {**out, **change}
    return fedray.run(out, report=False, **given)


def same(x: Tensor) -> Tensor:
    return x


def mirror(x: Tensor) -> Tensor:
    return x.flip(-1)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_augmentation_that_changes_nothing_changes_no_bit(engine: str) -> None:
    given = {"model": Residual} if engine == "vmap" else {}
    plain, through = run(ENGINES[engine], **given), run(ENGINES[engine], augment=same, **given)
    found = json.loads((through.path / "manifest.json").read_text())["engine"]
    assert found["name"] == engine
    assert torch.equal(models(plain), models(through))
    changed = run(ENGINES[engine], augment=["crop", "flip"], **given)
    assert not torch.equal(models(plain), models(changed))


def mirror_and_move(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.flip(-1), (y + 1) % 3


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedpa", "pfedbayes", "random_walk"])
def test_clients_that_change_their_rows_are_clients_with_changed_rows(method: str) -> None:
    """Pictures are mirrored, and classes moved by one; models answer on test rows as they are."""
    draw, names = np.random.default_rng(0), ("a", "b", "c")
    x, y = draw.integers(0, 256, (120, 1, 8, 8), dtype=np.uint8), draw.integers(0, 3, 120)
    test = Split(x[90:], y[90:])
    as_it_is = classification("mine", Split(x[:90], y[:90]), test, names)
    changed = classification("mine", Split(x[:90, :, :, ::-1].copy(), (y[:90] + 1) % 3), test, names)
    keys = of_method(method, {"rounds": 2, "data": {"limit": None}, "clients": {"number": 3}, "report": False})
    keys["data"]["partition"] = {"name": "iid"}  # which does not read the classes
    one = fedray.run(keys, data=as_it_is, augment=mirror_and_move)
    other = fedray.run(keys, data=changed)
    torch.testing.assert_close(models(one), models(other), rtol=1e-5, atol=1e-6)
    assert one.metrics["nll"] == pytest.approx(other.metrics["nll"], rel=1e-5)


@pytest.mark.parametrize("engine", ["mlp-c", "mlp"])
def test_bits_do_not_depend_on_blocks_and_threads(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def noisy(x: Tensor) -> Tensor:
        first = torch.rand(x.shape)
        time.sleep(1e-5)  # another thread has its turn
        return x + first + torch.rand(()) + random.random() + np.random.rand()

    keys = {**ENGINES[engine], "clients": {"number": 8}}
    found, threads = [models(run(keys, augment=noisy))], [1]
    monkeypatch.setitem(choice.MOST_LANES, "cpu", 2)

    def begin(self: Inline, study: Study, device: str = "cpu", _threads: int = 1) -> None:
        self.worker = make_worker(study, device, threads[-1])

    monkeypatch.setattr(Inline, "__init__", begin)
    for number in (1, 4):
        threads.append(number)
        found.append(models(run(keys, augment=noisy)))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.slow
def test_bits_do_not_depend_on_actors() -> None:
    given: dict[str, Any] = {"augment": ["flip", v2.RandomCrop(8, padding=1)]}
    in_actors = run({"runtime": "ray", "clients": {"number": 3, "actors": 2}}, **given)
    assert torch.equal(models(in_actors), models(run(**given)))


def test_a_run_goes_on_with_the_transform_with_which_it_began(tmp_path: Path) -> None:
    def crops(padding: int) -> Any:
        return v2.Compose([v2.RandomCrop(8, padding=padding), v2.RandomHorizontalFlip()])

    whole = run({"checkpoint": {"every": 1, "keep": 9}}, augment=crops(1))
    half = copy_run(whole, tmp_path / "half", 1)
    with pytest.raises(BadInput, match=r"own\.augment = \['Compose'\]: this run was started with a Python object"):
        fedray.resume(half)
    assert fedray.resume(half, augment=crops(1)).summary["state_hash"] == whole.summary["state_hash"]
    other = copy_run(whole, tmp_path / "other", 1)
    with pytest.warns(FedrayWarning, match="value.* what it was made with of augmentation Compose .* the new"):
        fedray.resume(other, augment=crops(2))
    with pytest.raises(BadInput, match="^augment= was given, but the run was started without: leave it out$"):
        fedray.resume(run({}).path, augment=crops(1))


def test_the_meta_model_of_a_stack_reads_features_as_they_are() -> None:
    keys = of_method("stacking", {"rounds": 2, "data": {"limit": 90}, "clients": {"number": 3}, "report": False})
    seen: list[tuple[int, ...]] = []

    def look(x: Tensor) -> Tensor:
        seen.append(tuple(x.shape))
        return x

    found, plain = fedray.run(keys, augment=look), fedray.run(keys)
    assert set(seen) == {(1, 8, 8)}
    assert torch.equal(models(found), models(plain))


@pytest.mark.parametrize(
    ("method", "engine"), [("fedavg", "mlp-c"), ("fedavg", "loop"), ("fedavg", "vmap"), ("fedpa", "mlp-c")]
)
def test_each_row_of_a_step_is_changed_once(engine: str, method: str) -> None:
    rows = [0]

    def count(x: Tensor) -> Tensor:
        rows[0] += 1
        return x

    given = {"model": Residual} if engine == "vmap" else {}
    keys: dict[str, Any] = {"method": {"name": method}, "local": {**FEW["local"], "epochs": 4}, **ENGINES[engine]}
    run(keys, augment=count, **given)
    trial = 2 * 16
    assert rows[0] == trial + 2 * 4 * 90


def test_a_method_has_augmentations_of_its_own() -> None:
    def mirrored(rule: Any) -> Any:
        return lambda setting: Method("own", federated(setting, local=replace(setting.local, augment=rule)))

    rule = Augmentation(mirror, "row", "mirror")
    one = {"method": {"models": 1}}
    plain = run(one, method=lambda setting: Method("own", federated(setting)), augment=mirror)
    assert torch.equal(models(run(one, method=mirrored((rule,)))), models(plain))
