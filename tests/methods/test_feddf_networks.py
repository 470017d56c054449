"""FedDF with several architectures: where it is FedDF of one, who trains what, and who learns from whom."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import copy_run, rows, scenario

import fedray
from fedray.components.distillation import Fusion, ServerRows, Student, ask_model, combine_teachers, fuse_models
from fedray.components.schedule import only
from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.methods import Method, Setting, federated
from fedray.models.nets import build_net
from fedray.simulation.stacking import read_part

ONE = {"name": "mlp", "hidden": [8]}
TWO = [ONE, {"name": "linear"}]
FEDDF: dict[str, Any] = {
    "rounds": 2,
    "method": {"name": "feddf", "server_data": 0.2, "validation": 0.0, "distil_steps": 10},
}
SEVERAL: dict[str, Any] = {
    **FEDDF,
    "method": {**FEDDF["method"], "networks": TWO},
    "model": {"name": None, "hidden": None},
}
TIERS = {"clients": {"tiers": {"a": {"share": 0.5, "uplink": 2e5}, "b": {"share": 0.5}}}}
CHANGES: dict[str, dict[str, Any]] = {
    "two replicates, K = 2": {"replicates": 2, "method": {"models": 2}},
    "some clients, sparse uploads": {
        "participation": {"per_round": 3}, "compress": {"kind": "topk", "ratio": 0.3, "error_feedback": True},
    },
    "tiers": {**TIERS, "server": {"coefficients": "equal_groups"}, "method": {"teacher": "confidence"}},
    "a server optimizer, dropouts": {"server": {"optimizer": "adam", "lr": 0.05}, "participation": {"dropout": 0.5}},
}  # fmt: skip


def models_of(run: Any, part: int) -> torch.Tensor:
    """The models of one architecture, `[worlds * K, d]`."""
    return read_part(run.progress.state, run.study.parts[part]).models


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_one_architecture_is_feddf_bit_for_bit(change: dict[str, Any]) -> None:
    plain = fedray.run(scenario(FEDDF, change))
    listed = fedray.run(scenario({**SEVERAL, "method": {**SEVERAL["method"], "networks": [ONE]}}, change))
    assert torch.equal(models_of(listed, 0), plain.progress.state.models)
    bytes_and_time = ("up_bytes", "down_bytes", "sim_seconds")
    assert [listed.summary["totals"][key] for key in bytes_and_time] == [
        plain.summary["totals"][key] for key in bytes_and_time
    ]


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


def test_an_architecture_learns_in_a_round_in_which_none_of_its_clients_takes_part() -> None:
    keys = {"rounds": 1, "participation": {"per_round": 1}, "method": {"distil_steps": 3}}
    run = fedray.run(scenario(SEVERAL, keys))
    idle = 1 - int(run.clients["client"][0].as_py()) % 2
    first = fedray.run(scenario(SEVERAL, keys, {"method": {"distil_steps": 0}}))
    assert not torch.equal(models_of(run, idle), models_of(first, idle))


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
    scores = one_answers.summary["metrics"]
    assert scores["accuracy"] == scores["accuracy_base_0"] != scores["accuracy_base_1"]
    inputs, module = one_answers.study.shards.normalize(x[None], torch.tensor([0]))[0], one_answers.study.net.module
    module.load_state_dict(one_answers.models[0])
    with torch.no_grad():
        assert np.allclose(module(inputs).softmax(-1).numpy(), found.mean, atol=1e-6)


def test_a_tier_without_clients_has_a_network_that_the_server_alone_knows() -> None:
    """As the large model of Fed-ET: it learns what the small ones say, and no byte of it is sent."""
    clients = {"tiers": {"all": {"number": 6}, "server": {"number": 0}}}
    networks = [{"name": "linear", "tier": "all"}, {"name": "mlp", "hidden": [30], "tier": "server"}]
    change: dict[str, Any] = {"clients": {**clients, "number": None}, "method": {"networks": networks}}
    run, fresh = (fedray.run(scenario(SEVERAL, change, {"method": {"distil_steps": n}})) for n in (10, 0))
    small, large = (part.study.net.layout.d for part in run.study.parts)
    assert set(run.clients.to_pandas()["up_bytes"]) == {4 * small} and large > small
    assert not torch.equal(models_of(run, 1), models_of(fresh, 1))


def test_a_run_that_goes_on_has_the_bits_of_one_that_was_not_interrupted(tmp_path: Path) -> None:
    keys = scenario(SEVERAL, {"rounds": 4, "compress": {"kind": "topk", "ratio": 0.3, "error_feedback": True}})
    whole = fedray.run(keys, out=tmp_path / "whole")
    again = fedray.resume(copy_run(whole, tmp_path / "part", 2))
    assert again.summary["state_hash"] == whole.summary["state_hash"]
    assert rows(again.clients) == rows(whole.clients)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_two_actors_have_the_bits_of_one_process() -> None:
    tree = scenario(SEVERAL, {"participation": {"per_round": 4}, "compress": {"kind": "topk", "error_feedback": True}})
    ray = fedray.run(tree, runtime="ray", clients__actors=2)
    assert ray.summary["state_hash"] == fedray.run(tree).summary["state_hash"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no list": ({"method": {"networks": "mlp"}}, "method.networks = 'mlp' is not a list of models"),
    "an unknown network": ({"method": {"networks": [{"name": "mlpp"}]}}, r"method.networks\[0\].name = 'mlpp'"),
    "an unknown key": ({"method": {"networks": [{"name": "linear", "hiden": 3}]}}, r"method.networks\[0\].hiden"),
    "a model beside them": ({"model": {"name": "mlp", "hidden": [4]}}, "because method.networks names the networks"),
    "none that answers": (
        {"method": {"networks": [{**ONE, "answers": False}]}}, "has no network that answers: leave answers out",
    ),
    "an answer that is no flag": ({"method": {"networks": [{**ONE, "answers": 3}]}}, r"networks\[0\].answers = 3"),
    "an unknown tier": ({"method": {"networks": [{**ONE, "tier": "c"}]}}, r"networks\[0\].tier = c is no tier of"),
    "tiers of some": (
        {**TIERS, "method": {"networks": [{**ONE, "tier": "a"}, ONE]}}, r"networks\[1\].tier is missing",
    ),
    "a tier twice": ({**TIERS, "method": {"networks": [{**ONE, "tier": "a"}] * 2}}, r"networks\[1\].tier = a, but"),
    "a tier without a network": ({**TIERS, "method": {"networks": [{**ONE, "tier": "a"}]}}, "for clients.tiers.b"),
    "too many": ({"clients": {"number": 1}}, "has 2 networks, but clients.number is 1"),
    "real targets": (
        {"data": {"name": "cubic", "limit": None, "partition": {"name": "iid"}}}, "but cubic has real targets",
    ),
    "no rounds": ({"participation": {"mode": "buffered", "goal": 2}}, "feddf with several networks trains in rounds"),
    "averaged logits": ({"method": {"models": 2}, "predict": {"average": "logits"}}, "predict.average = logits, but"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_act_is_refused_in_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message) as refused:
        fedray.run(scenario(SEVERAL, change))
    assert "\n" not in str(refused.value)
