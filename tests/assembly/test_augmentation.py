"""Augmentations of scenarios and of Python objects: where they act, what they equal, and what a run keeps of them."""

import json
import random
import time
from collections.abc import Callable
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
from fedray.core import rng
from fedray.data import Split, classification
from fedray.data.shifts import AUGMENTATIONS, crop, flip
from fedray.methods import Augmentation, Method, federated
from fedray.runtime.session import Inline
from fedray.runtime.stacking import make_worker
from fedray.simulation.study import Study
from fedray.training import choice
from fedray.training.block import Steps, change_batches

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
    one = fedray.run(keys, data=as_it_is, augment=lambda x, y: (x.flip(-1), (y + 1) % 3))
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
    def crops() -> Any:
        return v2.Compose([v2.RandomCrop(8, padding=1), v2.RandomHorizontalFlip()])

    whole = run({"checkpoint": {"every": 1, "keep": 9}}, augment=crops())
    half = copy_run(whole, tmp_path / "half", 1)
    assert fedray.resume(half, augment=crops()).summary["state_hash"] == whole.summary["state_hash"]


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


# What one augmentation makes of a row: it depends on the row's own address alone


PICTURES = torch.arange(2 * 3 * 4 * 16 * 8).view(2, 3, 4, 1, 16, 8).to(torch.uint8)  # 2 steps, 3 lanes, batches of 4
LABELS = torch.arange(24).view(2, 3, 4)
KEYS = rng.keys(0, "test", np.arange(3))
FULL = np.full((2, 3), 4)


def noisy(x: Tensor) -> Tensor:
    return x.float() + torch.rand(x.shape)


def of_three_generators(x: Tensor) -> Tensor:
    return x.float() + torch.rand(()) + np.random.rand() + random.random()


def shuffled(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    order = torch.randperm(len(x))
    return x[order], y[order]


def change(function: Callable[..., Any], form: Any = "row", x: Tensor = PICTURES, real: Any = FULL, **more: Any) -> Any:
    """Inputs and targets behind one function."""
    return change_batches((Augmentation(function, form, "mine"),), x, LABELS, Steps(KEYS, 0, real, **more))


RULES = {
    "fedray's": tuple(AUGMENTATIONS.values()),
    "of a row": (AUGMENTATIONS["crop"], Augmentation(noisy, "row", "noisy")),
    "of three generators": (Augmentation(of_three_generators, "row", "mine"),),
    "of a batch": (Augmentation(shuffled, "batch", "shuffled"), AUGMENTATIONS["flip"]),
}


def test_every_window_of_the_padded_picture_is_drawn_and_nothing_else() -> None:
    picture = torch.arange(1.0, 129.0).view(1, 1, 16, 8)
    padded = torch.nn.functional.pad(picture, (1, 1, 2, 2))
    windows = {
        tuple(padded[0, 0, i : i + 16, j : j + 8].flatten().tolist()): (i, j) for i in range(5) for j in range(3)
    }
    numbers = np.random.default_rng(0).random((500, 2))
    found = [windows[tuple(one.flatten().tolist())] for one in crop(picture.expand(500, 1, 16, 8), numbers)]
    assert set(found) == set(windows.values())
    assert found == [(int(a * 5), int(b * 3)) for a, b in numbers]


def test_a_picture_that_is_mirrored_twice_is_itself() -> None:
    numbers = np.array([[0.2], [0.8], [0.49999], [0.5]])
    pictures = torch.rand(4, 3, 5, 6)
    once = flip(pictures, numbers)
    assert torch.equal(flip(once, numbers), pictures)
    assert [torch.equal(a, b) for a, b in zip(once, pictures, strict=True)] == [False, True, False, True]


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_neither_other_lanes_nor_the_cut_of_the_steps_show(rules: tuple[Augmentation, ...]) -> None:
    x, y = change_batches(rules, PICTURES, LABELS, Steps(KEYS, 0, FULL))
    for w in range(3):
        own = Steps(KEYS[w : w + 1], 1, FULL[1:, :1])
        alone = change_batches(rules, PICTURES[1:, w : w + 1], LABELS[1:, w : w + 1], own)
        assert torch.equal(x[1:, w : w + 1], alone[0])
        assert torch.equal(y[1:, w : w + 1], alone[1])
    assert not torch.equal(x.float(), PICTURES.float())
    again = change_batches(rules, PICTURES[:1].expand(2, 3, 4, 1, 16, 8), LABELS, Steps(KEYS, 0, FULL))
    assert not torch.equal(again[0][0], again[0][1])  # each step draws anew


def test_functions_see_no_padding_and_their_draws_do_not_depend_on_the_other_rows() -> None:
    real = np.array([[4, 2, 0], [3, 4, 1]])
    sizes: list[int] = []

    def count(x: Tensor, y: Tensor) -> Tensor:
        sizes.append(len(x))
        assert len(y) == len(x)
        return x + 1

    x, y = change(count, "batch", real=real)
    assert sizes == [4, 2, 3, 4, 1]
    assert torch.equal(x[0, 1], torch.cat([PICTURES[0, 1, :2] + 1, PICTURES[0, 1, 2:]]))
    assert torch.equal(y, LABELS)
    whole, part = (change(noisy, real=one)[0] for one in (FULL, real))
    for s, w in np.ndindex(2, 3):
        assert torch.equal(whole[s, w, : real[s, w]], part[s, w, : real[s, w]])


def test_a_function_leaves_the_data_and_the_generators_as_they_were() -> None:
    kept, labels = PICTURES.clone(), LABELS.clone()
    before: Any = torch.get_rng_state(), random.getstate(), np.random.get_state()

    def write(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        y += 1
        return x.mul_(0), y

    x, y = change(write, "batch")
    assert not x.any() and torch.equal(y, LABELS + 1)
    change(lambda x: x.mul_(0), classes=24)
    assert torch.equal(PICTURES, kept) and torch.equal(LABELS, labels)
    change(of_three_generators)
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]
    after: Any = np.random.get_state()
    assert np.array_equal(after[1], before[2][1]) and after[2] == before[2][2]


def test_the_numbers_of_two_generators_are_not_the_same() -> None:
    """Both compute the same numbers from the same 32 bits."""
    with rng.generators_scope() as start:
        for key in rng.keys(0, "test", np.arange(20)).tolist():
            start(key)
            first = torch.rand(())
            assert np.random.randint(2**32, dtype=np.uint32) % 2**24 != int(first * 2**24)
    first = torch.rand((), generator=torch.Generator().manual_seed(7))
    again = np.random.RandomState(7).randint(2**32, dtype=np.uint32)
    assert again % 2**24 == int(first * 2**24)  # as the loop would see


def test_rows_do_not_become_what_a_function_writes_into_one_tensor_later() -> None:
    kept = torch.zeros(1, 16, 8, dtype=torch.uint8)
    assert torch.equal(change(lambda x: torch.add(x, 1, out=kept))[0], PICTURES + 1)


def test_bytes_stay_bytes_unless_some_become_numbers() -> None:
    def sometimes(x: Tensor) -> Tensor:
        return x.float() if x.flatten()[0] % 2 else x

    odd = PICTURES.clone()
    odd[0, 0, 0, 0, 0, 0] = 1
    for function, wanted in ((lambda x: 255 - x, torch.uint8), (sometimes, torch.float32)):
        assert change(function, x=odd)[0].dtype == wanted


def test_a_picture_may_become_dark_and_tokens_any_whole_numbers() -> None:
    assert float(change(lambda x: x / 1000, classes=24)[0].max()) < 1.0
    words = torch.arange(48).view(2, 3, 4, 2)
    for kind in (torch.int16, torch.uint8):
        assert torch.equal(change(lambda x: x.long() + 1, x=words.to(kind))[0], (words + 1).to(kind))
