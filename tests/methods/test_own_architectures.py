"""Methods of one's own with several architectures: where they are FedAvg, what joins them, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from own_names import forgetting_names
from small import copy_run, scenario
from torch import Tensor

import fedray
from fedray.core.errors import BadInput
from fedray.core.parts import PartStep
from fedray.methods import Answer, LocalLoss, Method, PrivateLayers, Setting, federated, federated_each
from fedray.models.net import compute_raw_outputs
from fedray.simulation.stacking import read_part

ONE: dict[str, Any] = {"name": "mlp", "hidden": [8]}
TWO: list[dict[str, Any]] = [ONE, {"name": "linear"}]
NUMBERS: Any = (1, 2)
FEW: dict[str, Any] = {"rounds": 2, "data": {"limit": 90}, "replicates": 2, "report": False}


def mean_of_each(setting: Setting) -> Method:
    """FedAvg of each network among its own clients."""
    if setting.stack is None:
        return Method("each", federated(setting))
    parts = federated_each(setting)
    return Method("each", parts[0], parts=parts)


def joined(setting: Setting) -> Method:
    """Each network steps towards what all of them say on the server's rows."""
    plain = mean_of_each(setting)
    nets = [] if setting.stack is None else [base.net for base in setting.stack.bases]

    def join(_t: int, steps: Sequence[PartStep]) -> list[Tensor]:
        models = [one.after.models.clone() for one in steps]
        for row in range(len(models[0])):
            x, _ = setting.server_rows(row // setting.models)
            pairs = list(zip(nets, models, strict=True))
            target = torch.stack([compute_raw_outputs(net, part[row : row + 1], x)[0] for net, part in pairs]).mean(0)
            for net, part in pairs:
                with torch.enable_grad():
                    leaf = part[row].clone().requires_grad_()
                    far = (compute_raw_outputs(net, leaf[None], x)[0] - target).square().mean()
                part[row] -= 0.1 * torch.autograd.grad(far, leaf)[0]
        return models

    return replace(plain, name="joined", join=join)


def run(method: str, networks: list[dict[str, Any]], *changes: dict[str, Any], **more: Any) -> fedray.Run:
    named = {"method": {"name": method, "models": 1, **({"networks": networks} if networks else {})}}
    keys = scenario(FEW, named, {"model": {"name": None, "hidden": None}} if networks else {}, *changes)
    return fedray.run(keys, **more)


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    with forgetting_names():
        fedray.register("method", "each", mean_of_each, options={"networks": []})
        fedray.register("method", "joined", joined, options={"networks": [], "server_data": 0.2})
        yield


def models_of(run: fedray.Run, part: int) -> Tensor:
    return read_part(run.progress.state, run.study.parts[part]).models


CHANGES: dict[str, dict[str, Any]] = {
    "two models": {"method": {"models": 2}, "participation": {"per_round": 4}},
    "a server optimizer, error feedback": {
        "server": {"optimizer": "adam", "lr": 0.05},
        "compress": {"kind": "topk", "ratio": 0.3, "error_feedback": True},
    },
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_one_network_in_the_list_is_the_method_without_a_list(change: dict[str, Any]) -> None:
    listed, plain = (run("each", networks, change) for networks in ([ONE], []))
    assert torch.equal(models_of(listed, 0), plain.progress.state.models)
    costs = ("up_bytes", "down_bytes", "sim_seconds")
    assert [listed.summary["totals"][key] for key in costs] == [plain.summary["totals"][key] for key in costs]


def test_several_networks_train_among_their_own_clients_and_their_mean_answers() -> None:
    tiers = {"clients": {"tiers": {"a": {"share": 0.5}, "b": {"share": 0.5}}}}
    found = run("each", [{**ONE, "tier": "b"}, {"name": "linear", "tier": "a"}], tiers)
    wide, narrow = (4 * part.study.net.layout.d for part in found.study.parts)
    sent = {(row["client"] < 3, row["up_bytes"]) for row in found.clients.to_pylist()}
    assert sent == {(True, narrow), (False, wide)}
    assert {"accuracy", "accuracy_base_0", "accuracy_base_1"} <= found.summary["metrics"].keys()


def test_what_joins_the_networks_moves_each_of_them_also_in_a_resumed_run(tmp_path: Path) -> None:
    """With one network, whose target is what it says itself, nothing moves."""
    fedray.register("method", "each", mean_of_each, options={"networks": [], "server_data": 0.2})
    for networks, same in (([ONE], True), (TWO, False)):
        apart, together = (run(name, networks) for name in ("each", "joined"))
        parts = range(len(networks))
        assert [torch.equal(models_of(apart, i), models_of(together, i)) for i in parts] == [same for _ in parts]
    whole = run("joined", TWO, {"rounds": 3, "checkpoint": {"every": 1, "keep": 9}})
    resumed = fedray.resume(copy_run(whole, tmp_path / "part", 1))
    assert resumed.summary["state_hash"] == whole.summary["state_hash"]


def change_part(change: Any) -> Any:
    """The mean of each network, with its second part changed."""

    def compose(setting: Setting) -> Method:
        parts = federated_each(setting)
        return Method("mine", parts[0], parts=(parts[0], change(parts[1])))

    return compose


def with_loss(part: Any) -> Any:
    return replace(part, local=replace(part.local, loss=LocalLoss(lambda out, y, context: context.objective(out, y))))


WRONG: dict[str, tuple[Any, str]] = {
    "no parts": (lambda setting: Method("mine", federated(setting)), "it has 0 parts, but method.networks has 2"),
    "no phase": (
        lambda setting: replace(mean_of_each(setting), parts=NUMBERS), r"parts\[0\] is an int: give a Phase"
    ),
    "an answer": (
        lambda setting: replace(mean_of_each(setting), answer=lambda state: Answer(state, 1)), "answer is not called"
    ),
    "other models": (change_part(lambda part: replace(part, models=2)), r"parts\[1\]: models = 2: keep setting.models"),
    "private layers": (change_part(lambda part: part.add(PrivateLayers(("1",)))), r"parts\[1\]: pieces has a Private"),
    "a loss": (change_part(with_loss), r"parts\[1\]: local has a loss"),
    "another compression": (
        change_part(lambda part: replace(part, compress=part.compress._replace(own=("memory",)))), "compress all parts"
    ),
    "one network asked": (
        lambda setting: [setting.outputs(torch.zeros(1, 1), torch.zeros(1, 1)), mean_of_each(setting)][1],
        "setting.outputs asks one network, but method.networks has several",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("compose", "line"), WRONG.values(), ids=WRONG.keys())
def test_parts_that_cannot_be_trained_are_one_line(compose: Any, line: str) -> None:
    fedray.register("method", "mine", compose, options={"networks": []})
    with pytest.raises(BadInput, match=line):
        run("mine", TWO)


def test_parts_without_networks_were_dropped() -> None:
    def compose(setting: Setting) -> Method:
        phase = federated(setting)
        return Method("mine", phase, parts=(phase, phase))

    fedray.register("method", "mine", compose, options={"networks": []})
    with pytest.raises(BadInput, match="it has 2 parts, but setting.stack is None: return parts only where"):
        run("mine", [])
    fedray.register("method", "mine", lambda setting: Method("mine", federated_each(setting)[0]), options={})
    with pytest.raises(BadInput, match="setting.stack is None, because method.networks is empty"):
        run("mine", [])


def test_a_list_of_networks_is_read_as_feddfs() -> None:
    wrong: list[tuple[Any, str]] = [
        ("mlp", "method.networks = 'mlp' is not a list of models"),
        ([{"name": "mlpp"}], r"method.networks\[0\].name = 'mlpp'"),
        ([{**ONE, "tier": "c"}], r"networks\[0\].tier = c is no tier of"),
    ]
    for networks, line in wrong:
        with pytest.raises(BadInput, match=line):
            run("each", networks)
    with pytest.raises(BadInput, match="options: networks is not a list of models"):
        fedray.register("method", "mine", mean_of_each, options={"networks": "mlp"})
    with pytest.raises(BadInput, match="each with several networks trains in rounds"):
        run("each", TWO, {"participation": {"mode": "buffered", "goal": 2}})


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_two_actors_have_the_bits_of_one_process(tmp_path: Path) -> None:
    module = tmp_path / "mine.py"
    module.write_text(
        "import fedray\nfrom fedray.methods import Method, federated_each\n\n\ndef compose(setting):\n"
        "    parts = federated_each(setting)\n    return Method('parted', parts[0], parts=parts)\n\n\n"
        "fedray.register('method', 'parted', compose, options={'networks': []})\n"
    )
    change = {"participation": {"per_round": 3}, "compress": {"kind": "topk", "ratio": 0.3, "error_feedback": True}}
    with forgetting_names("mine"):
        inline, ray = (run("parted", TWO, change, runtime=one, modules=[str(module)]) for one in ("inline", "ray"))
    assert inline.summary["state_hash"] == ray.summary["state_hash"]
