"""FedDF: where it is FedAvg, what its server holds, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small import of_method, scenario

import fedray
from fedray.assembly.study import build_study
from fedray.core.errors import BadInput
from fedray.scenario.loader import read_scenario

NOTHING: dict[str, Any] = {"method": {"name": "feddf", "inputs": "noise", "validation": 0.0, "distil_steps": 0}}
TIERS = {"clients": {"tiers": {"a": {"share": 0.5, "uplink": 2e5}, "b": {"share": 0.5}}}}
CHANGES: dict[str, dict[str, Any]] = {
    "two replicates": {"replicates": 2, "rounds": 2},
    "some clients, sparse uploads": {
        "participation": {"per_round": 4}, "compress": {"kind": "topk", "ratio": 0.3, "error_feedback": True},
    },
    "tiers": {**TIERS, "server": {"coefficients": "equal_groups"}},
    "a server optimizer": {"server": {"optimizer": "adam", "lr": 0.05}},
    "without rounds": {"participation": {"mode": "buffered", "goal": 3}},
    "batch statistics": {
        "model": {"norm": "batch"}, "local": {"batch_size": "full"}, "data": {"partition": {"name": "iid"}},
    },
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_feddf_without_steps_is_fedavg_bit_for_bit(change: dict[str, Any]) -> None:
    one, other = (fedray.run(scenario(keys, change)) for keys in (NOTHING, {"method": {"name": "fedavg"}}))
    a, b = one.progress.state, other.progress.state
    assert torch.equal(a.models, b.models)
    assert torch.equal(a.counters, b.counters)
    assert (one.summary["totals"]["up_bytes"], one.summary["totals"]["down_bytes"]) == (
        other.summary["totals"]["up_bytes"],
        other.summary["totals"]["down_bytes"],
    )
    taught = fedray.run(scenario(NOTHING, {"method": {"distil_steps": 5}}, change))
    assert not torch.equal(taught.progress.state.models, b.models)


def test_the_rows_of_the_server_are_those_that_no_client_has() -> None:
    tree = of_method("feddf", {"method": {"server_data": 0.2, "validation": 0.1}})
    study = build_study(read_scenario(tree))
    assert int(study.shards.sizes(np.zeros(6, int), np.arange(6)).sum()) == 168  # of 240
    assert len(study.shards.server(0)[1]) == 72


def test_the_teachers_are_the_uploads_of_the_round_and_the_student_starts_at_their_mean() -> None:
    """What the server hands to the student, seen from the state before and after a round without steps."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def watched(setting: fedray.methods.Setting) -> fedray.methods.Method:
        from dataclasses import replace

        from fedray.methods.feddf import feddf

        def learn(_world: int, start: torch.Tensor, teachers: torch.Tensor, _key: Any) -> torch.Tensor:
            seen.append((start, teachers))
            return start

        return feddf(replace(setting, distil=learn))

    fedray.run(scenario({"rounds": 2, "participation": {"per_round": 4}, "method": {"name": "fedavg"}}), method=watched)
    assert [len(teachers) for _, teachers in seen] == [4, 4, 4]  # the first call is asked twice
    for start, teachers in seen:
        low, high = teachers.amin(0), teachers.amax(0)
        assert bool(((start >= low - 1e-5) & (start <= high + 1e-5)).all())
        assert float((high - low).max()) > 1e-3


def test_another_data_set_teaches_a_regression_too() -> None:
    keys = {"data": {"name": "cubic", "partition": {"name": "iid"}}, "model": {"hidden": [8]}, "rounds": 2}
    tree = {**keys, "clients": {"number": 4}, "method": {"name": "feddf", "inputs": "sine", "distil_steps": 20}}
    run = fedray.run(tree, runtime="inline")
    assert np.isfinite(run.summary["metrics"]["rmse"]["mean"])


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a robust server": ({"server": {"robust": "median"}}, "server.robust = median, but feddf has a server step"),
    "no such data": ({"method": {"inputs": "nowhere"}}, "method.inputs = nowhere is no data set: choose withheld"),
    "another shape": (
        {"method": {"inputs": "sine", "server_data": None}},
        r"method.inputs = sine has inputs of shape \[1\] .* but digits has",
    ),
    "every row": ({"method": {"server_data": 0.6, "validation": 0.5}}, "take every row from the clients: lower one"),
    "a share of noise": ({"method": {"inputs": "noise", "server_data": 0.2}}, "method.server_data = 0.2 cannot act"),
    "a number of withheld rows": ({"method": {"input_rows": 5}}, "method.input_rows = 5 cannot act"),
    "patience without rows": ({"method": {"validation": 0.0, "patience": 5}}, "method.patience = 5 cannot act"),
    "private layers": ({"local": {"private": ["head"]}}, "local.private"),
    "single uploads": ({"participation": {"mode": "async"}}, "the server of feddf keeps more than the model"),
    "confidence of targets": (
        {"data": {"name": "cubic", "limit": None, "partition": {"name": "iid"}}, "method": {"teacher": "confidence"}},
        "method.teacher = confidence, but cubic has real targets",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_act_is_refused_in_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message) as refused:
        fedray.run(scenario({"method": {"name": "feddf", "distil_steps": 2}}, change))
    assert "\n" not in str(refused.value)
