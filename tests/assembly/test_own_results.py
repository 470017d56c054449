"""What the parts of a method of one's own return, where it was used although something was missing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small import scenario

import fedray
from fedray.components.compression import dense
from fedray.core.method import Compressed
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
