"""What the parts of a method of one's own return, where it was used although something was missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from small import scenario
from torch import Tensor

import fedray
from fedray.components.compression import dense
from fedray.core.errors import BadInput
from fedray.core.method import Compressed
from fedray.core.types import State, Stats
from fedray.methods import Method, Setting, federated

KEYS = scenario({"rounds": 2, "report": False, "data": {"limit": 90}, "clients": {"number": 3}})


def remembering(change: Any) -> Any:
    """A method whose clients add to every upload what they kept of the last one."""

    def compress(layout: Any) -> Any:
        def apply(uploads: Any) -> Compressed:
            whole = uploads.delta + uploads.own["memory"]
            return Compressed(0.5 * whole, change(0.5 * whole))

        return dense(layout)._replace(apply=apply, own=("memory",), lossless=False)

    def compose(setting: Setting) -> Method:
        return Method("remembering", federated(setting, compress=compress))

    return compose


def test_a_memory_under_another_name_was_zero_for_ever() -> None:
    fedray.run(KEYS, method=remembering(lambda kept: {"memory": kept}))
    wrong = {
        r"returned memroy as own, but Compress\.own names memory": lambda kept: {"memroy": kept},
        r"returned nothing as own, but Compress\.own names memory": lambda _: {},
        r"an own vector 'memory' of shape \[\d, 1\]: return \[\d, \d+\]": lambda kept: {"memory": kept[:, :1]},
        r"'memory' in own as a list: return a tensor": lambda kept: {"memory": kept.tolist()},
        r"an own vector 'memory' that is NaN: the uploads are finite": lambda kept: {"memory": kept * torch.nan},
    }
    for line, change in wrong.items():
        with pytest.raises(fedray.FedrayError, match=f"compress.apply .*{line}"):
            fedray.run(KEYS, method=remembering(change))


def with_memory(change: Any) -> Any:
    """A method whose server keeps a mask beside the models, and does something to it in each step."""

    def compose(setting: Setting) -> Method:
        phase = federated(setting)
        server = phase.server

        def init(models: Tensor) -> dict[str, Tensor]:
            return {**server.init(models), "mask": torch.ones_like(models)}

        def step(state: State, stats: Stats, t: int) -> State:
            after = server.step(state, stats, t)
            return after._replace(extra=change(dict(after.extra), t))

        return Method("masked", replace(phase, server=server._replace(init=init, step=step)))

    return compose


def test_what_a_server_keeps_went_unnoticed() -> None:
    """At the first step that loses it; what it adds, and what fedray keeps beside it, may stay or go."""
    adaptive = {**KEYS, "schedule": {"kind": "adaptive"}}
    fedray.run(KEYS, method=with_memory(lambda extra, t: {**extra, "more": torch.ones(t)}), rounds=1)
    for keys in (KEYS, adaptive):
        run = fedray.run(keys, method=with_memory(lambda extra, _: {"mask": extra["mask"] * torch.inf}))
        assert bool(torch.isinf(run.progress.state.extra["mask"]).all())
    wrong = {
        r"has no 'mask', which was \[5, 610\]: begin with \{\*\*state\.extra, \.\.\.\}": lambda *_: {},
        r"has 'mask' of shape \[5\], which was \[5, 610\]: keep its shape": lambda extra, _: {
            "mask": extra["mask"].mean(1)
        },
        r"has NaN in 'mask', \[5, 610\]: look for a division": lambda extra, t: {
            "mask": extra["mask"] * (torch.nan if t else 1.0)
        },
    }
    for line, change in wrong.items():
        for keys in (KEYS, adaptive):
            with pytest.raises(BadInput, match=f"server.step returned a State whose extra {line}"):
                fedray.run(keys, method=with_memory(change))


def test_an_init_in_the_place_of_a_server_optimizers_was_a_bare_key_error() -> None:
    def compose(setting: Setting) -> Method:
        phase = federated(setting)
        server = phase.server._replace(init=lambda models: {"mask": torch.ones_like(models)})
        return Method("forgetful", replace(phase, server=server))

    with pytest.raises(BadInput, match=r"^server\.optimizer = adam finds no 'optimizer_first' in the state's extra: a"):
        fedray.run(KEYS, method=compose, server__optimizer="adam")
    fedray.run(KEYS, method=with_memory(lambda extra, _: extra), server__optimizer="adam")
