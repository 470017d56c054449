"""Several architectures, in FedDF and in methods of one's own: who trains what, and who learns from whom."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from modules import ask_modules
from own_names import forgetting_names
from small import copy_run, scenario
from torch import Tensor

import fedray
from fedray.components.distillation import Fusion, ServerRows, Student, ask_model, combine_teachers, fuse_models
from fedray.components.schedule import only
from fedray.core import rng
from fedray.core.method import PartStep
from fedray.methods import Method, Setting, federated, federated_each
from fedray.models.net import compute_raw_outputs
from fedray.models.nets import build_net
from fedray.simulation.stacking import read_part
from fedray.simulation.study import cost_answer

TIERS = {"clients": {"tiers": {"a": {"share": 0.5, "uplink": 2e5}, "b": {"share": 0.5}}}}


def test_the_teachers_are_the_uploads_of_the_round_and_the_student_starts_at_their_mean() -> None:
    """What the server hands to the student, seen from the state before and after a round without steps."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def watched(setting: fedray.methods.Setting) -> fedray.methods.Method:
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


ONE: dict[str, Any] = {"name": "mlp", "hidden": [8]}
TWO: list[dict[str, Any]] = [ONE, {"name": "linear"}]
FEDDF: dict[str, Any] = {
    "rounds": 2,
    "method": {"name": "feddf", "server_data": 0.2, "validation": 0.0, "distil_steps": 10},
}
SEVERAL: dict[str, Any] = {
    **FEDDF,
    "method": {**FEDDF["method"], "networks": TWO},
    "model": {"name": None, "hidden": None},
}


def models_of(run: Any, part: int) -> torch.Tensor:
    """The models of one architecture, `[worlds * K, d]`."""
    return read_part(run.progress.state, run.study.parts[part]).models


@pytest.mark.parametrize("networks", [TWO, TWO[::-1]], ids=["perceptron", "linear"])
def test_without_steps_each_architecture_is_fedavg_among_its_own_clients(networks: list[dict[str, Any]]) -> None:
    """Seen at the first one: the others start at addresses of their own."""

    def among(setting: Setting) -> Method:
        even = only(setting.participation, lambda client: client % 2 == 0)
        return Method("among", federated(replace(setting, participation=even)))

    found = [
        fedray.run(scenario(SEVERAL, {"method": {"networks": networks, "distil_steps": steps}})) for steps in (0, 3)
    ]
    alone = fedray.run(scenario(FEDDF, {"model": {"hidden": None, **networks[0]}}), method=among)
    same = [torch.equal(models_of(run, 0), alone.progress.state.models) for run in found]
    assert same == [True, False]


def test_all_students_aim_at_what_the_uploads_of_all_architectures_say() -> None:
    wide, plain = build_net("mlp", (3,), 4, "cross_entropy", hidden=[8]), build_net("linear", (3,), 4, "cross_entropy")
    x = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    students = [Student(net, net.init(0), torch.stack([net.init(k) for k in (1, 2)])) for net in (wide, plain)]
    both = combine_teachers("mean_logits", x, students)
    torch.testing.assert_close(combine_teachers("mean_logits", x, students[::-1]), both)
    each = [combine_teachers("mean_logits", x, [one]) for one in students]
    torch.testing.assert_close((each[0].log() / 2 + each[1].log() / 2).softmax(-1), both)
    rows_of_server = ServerRows(x, x[:0], torch.empty(0, dtype=torch.int64))
    found = fuse_models(Fusion(steps=200, lr=0.03), students, rows=rows_of_server, key=rng.keys(0, "test"))
    nobody = [students[0], students[1]._replace(uploads=students[1].uploads[:0])]
    assert len(fuse_models(Fusion(steps=2), nobody, rows=rows_of_server, key=rng.keys(0, "test"))) == 2
    for net, start, row in zip((wide, plain), (s.start for s in students), found, strict=True):
        before, after = (
            float((both * (both.log() - ask_model(net, r, x).log_softmax(-1))).sum(-1).mean()) for r in (start, row)
        )
        assert after < 0.5 * before


def test_a_client_sends_the_numbers_of_its_own_network() -> None:
    networks = [{**ONE, "tier": "b"}, {"name": "linear", "tier": "a"}]
    run = fedray.run(scenario(SEVERAL, TIERS, {"method": {"networks": networks}}))
    table = run.clients.to_pandas()
    sent = {client: set(rows["up_bytes"]) for client, rows in table.groupby("client")}
    d = [part.study.net.layout.d for part in run.study.parts]
    assert sent == {client: {4 * (d[1] if client < 3 else d[0])} for client in range(6)}
    scores = run.summary["metrics"]
    assert {"accuracy", "accuracy_base_0", "accuracy_base_1"} <= scores.keys()


def test_a_network_that_does_not_answer_trains_as_the_others_and_has_no_part_in_the_mean() -> None:
    silent = [ONE, {"name": "linear", "answers": False}]
    all_answer, one_answers = (fedray.run(scenario(SEVERAL, {"method": {"networks": n}})) for n in (TWO, silent))
    assert one_answers.summary["model_hash"] == all_answer.summary["model_hash"]
    x = one_answers.study.split("test", 0)[0][:20]
    found = one_answers.predict(x.numpy())
    assert np.allclose(found.mean, found.members[0]) and not np.allclose(all_answer.predict(x.numpy()).mean, found.mean)
    scores, each = one_answers.summary["metrics"], one_answers.study.parts[0].study.net.layout.d
    assert cost_answer(one_answers.study)[:3] == (1, 4 * each + 8, 1)  # and the stack's counter
    assert scores["accuracy"] == scores["accuracy_base_0"] != scores["accuracy_base_1"]
    first = ask_modules(one_answers.study, x, models_of(one_answers, 0), one_answers.study.parts[0].study.net)
    assert np.allclose(first[0].softmax(-1), found.mean, atol=1e-6)


def test_a_tier_without_clients_has_a_network_that_the_server_alone_knows() -> None:
    """As the large model of Fed-ET: it learns what the small ones say, and no byte of it is sent."""
    clients = {"tiers": {"all": {"number": 6}, "server": {"number": 0}}}
    networks = [{"name": "linear", "tier": "all"}, {"name": "mlp", "hidden": [30], "tier": "server"}]
    change: dict[str, Any] = {"clients": {**clients, "number": None}, "method": {"networks": networks}}
    run, fresh = (fedray.run(scenario(SEVERAL, change, {"method": {"distil_steps": n}})) for n in (10, 0))
    small, large = (part.study.net.layout.d for part in run.study.parts)
    assert set(run.clients.to_pandas()["up_bytes"]) == {4 * small} and large > small
    assert not torch.equal(models_of(run, 1), models_of(fresh, 1))


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
