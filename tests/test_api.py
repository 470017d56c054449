"""The Python API: a user's own objects and names in their place, predictions, public names."""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import copy_run, scenario

import fedray
from fedray.api import OBJECTS
from fedray.core.errors import BadInput
from fedray.files import plain
from fedray.runtime import stacking
from fedray.storage import checkpoint


def test_each_kind_of_object_is_checked_where_a_run_is_opened_again(tmp_path: Path) -> None:
    done = fedray.run(scenario({"rounds": 0}), out=tmp_path / "run")
    calls: list[Callable[..., Any]] = [fedray.load, fedray.resume]
    for call in calls:
        for name in OBJECTS:
            with pytest.raises(BadInput) as caught:
                call(done.path, **{name: 0.5})
            assert name.removesuffix("s") in str(caught.value)


def test_what_is_refused_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever refuses it, before the run or in its first round; a run that is done keeps its folder."""
    monkeypatch.setattr(plain, "mkdtemp", partial(tempfile.mkdtemp, dir=tmp_path))
    for keys in ({"rounds": -1}, {"runtime": "inline", "wait_for": {"nodes": 2}}, {"checkpoint__best": "unknown"}):
        with pytest.raises(BadInput):
            fedray.run(scenario(), **keys)
    with pytest.raises(BadInput):
        fedray.tune({"scenario": scenario(), "space": {"local.lr": []}})
    assert list(tmp_path.iterdir()) == []
    done = fedray.run(scenario({"rounds": 0}))
    assert [path / "run" for path in tmp_path.iterdir()] == [done.path]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedray.Run:
    """A run whose clients keep models of their own, with a checkpoint of each round."""
    keys = {"rounds": 3, "method": {"name": "ditto"}, "checkpoint": {"every": 1, "keep": 9}}
    return fedray.run(scenario(keys), report=False, out=tmp_path_factory.mktemp("predict") / "run")


def test_predict_reads_its_checkpoint_and_builds_its_worker_once(
    run: fedray.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def count(name: str, function: Callable[..., Any]) -> None:
        def counted(*args: Any) -> Any:
            calls.append(name)
            return function(*args)

        monkeypatch.setattr(name, counted)

    count("fedray.storage.checkpoint.load_checkpoint", checkpoint.load_checkpoint)
    count("fedray.runtime.session.make_worker", stacking.make_worker)
    opened = fedray.load(run.path)
    x = opened.study.split("test", 0)[0][:5]
    first = [opened.predict(x, client=client).mean for client in (None, 2)]
    assert len(calls) == len(set(calls)) == 2
    again = [opened.predict(x, client=client).mean for client in (None, 2)]
    assert len(calls) == 2
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))


def test_predict_follows_a_run_that_goes_on(run: fedray.Run, tmp_path: Path) -> None:
    """A further checkpoint answers the next call, and so does one of the same round that was written again."""
    going = fedray.load(copy_run(run, tmp_path / "run", 1))
    x = going.study.split("test", 0)[0][:5]
    before = going.predict(x, client=2).mean
    fedray.resume(going.path)
    assert not np.array_equal(before, going.predict(x, client=2).mean)
    assert np.array_equal(going.predict(x, client=2).mean, run.predict(x, client=2).mean)
    after = going.predict(x).mean
    progress, private = checkpoint.load_checkpoint(going.path / "checkpoints")
    progress.state.models.zero_()
    checkpoint.save_checkpoint(going.path / "checkpoints", progress, private)
    assert not np.array_equal(after, going.predict(x).mean)


def test_dir_lists_the_public_names_and_each_of_them_is_there() -> None:
    assert dir(fedray) == sorted(fedray.__all__)
    assert all(getattr(fedray, name) is not None for name in dir(fedray))
    with pytest.raises(AttributeError, match="module 'fedray' has no attribute 'nothing'"):
        _ = fedray.nothing
