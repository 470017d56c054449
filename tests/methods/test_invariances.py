"""What changes no bit of a training, and what a run answers."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from modules import dropping, normed
from small import of_method, rows, scenario, spell_out, train_rounds
from small_data import pictures
from torch import Tensor, nn

import fedray
from fedray.assembly.study import build_study
from fedray.components import schedule
from fedray.core.method import Method
from fedray.core.types import State
from fedray.methods import METHOD_SPECS, Setting, federated
from fedray.methods.fedcross import choose_partners
from fedray.scenario.loader import read_scenario

FED_AVG: dict[str, Any] = {"method": {"name": "fedavg"}}
CNN: dict[str, Any] = {"model": {"name": "cnn", "channels": [3, 4], "hidden": [8]}, "rounds": 2}


def run(*changes: dict[str, Any], **options: Any) -> fedray.Run:
    return fedray.run(spell_out(scenario(*changes)), **options)


def train_whole(keys: dict[str, Any]) -> State:
    study = build_study(read_scenario(keys, explicit=False))
    return train_rounds(study, study.rounds)[0]


FEW: dict[str, Any] = {"rounds": 1, "participation": {"per_round": 2}}
FISHER: dict[str, Any] = {"models": 2, "fisher_rows": 7}
REPLICATED: dict[str, tuple[dict[str, Any], Any]] = {
    "mlp": ({}, None),
    "conv": (CNN, None),
    "vmap": ({"rounds": 1}, normed),
    "loop": ({"rounds": 1}, dropping),
    "ivon_admm": ({"method": {"name": "ivon_admm"}, "rounds": 2, "local": {"lr": 1e-4, "epochs": 1}}, None),
    "dsvgd": ({"method": {"name": "dsvgd", "factor_steps": 7}, "rounds": 2, "local": {"lr": 0.01}}, None),
    "fedfisher": ({"rounds": 2, "method": {"name": "fedfisher", **FISHER}}, None),
    "fedbens": ({"rounds": 2, "method": {"name": "fedbens", **FISHER}}, None),
    "fedbens, some": ({**FEW, "method": {"name": "fedbens", "models": 2}, "server": {"weighting": "examples"}}, None),
}


@pytest.mark.parametrize(("keys", "network"), REPLICATED.values(), ids=REPLICATED)
def test_replicate_r_is_the_run_with_seed_plus_r(keys: dict[str, Any], network: Any) -> None:
    """Models, metrics, jobs: to the bit, though all replicates train side by side."""
    options = {} if network is None else {"model": network}
    together = run({"method": {"models": 2}}, keys, {"replicates": 2}, **options)
    models = together.progress.state.models.chunk(2)
    for r in range(2):
        alone = run({"method": {"models": 2}}, keys, {"seed": r}, **options)
        assert torch.equal(alone.progress.state.models, models[r])
        for name, value in alone.progress.state.extra.items():
            assert torch.equal(together.progress.state.extra[name].chunk(2)[r], value), name
        for name in ("rounds", "clients"):
            table = getattr(together, name)
            mine = table.filter(np.array(table["replicate"]) == r)
            assert rows(mine, "replicate") == rows(getattr(alone, name), "replicate")
    assert not torch.equal(models[0], models[1])


def test_evaluation_does_not_change_training() -> None:
    """How often and what is measured leaves every bit of the models alone."""
    plain = run()
    for change in (
        {"evaluate": {"every": 3}},
        {"evaluate": {"personal": True}, "predict": {"gamma": 0.1}},
        {"predict": {"average": "logits"}},
        {"checkpoint": {"every": 1}},
    ):
        assert run(change).summary["state_hash"] == plain.summary["state_hash"], change
    assert run({"evaluate": {"every": 3}}).rounds["round"].to_pylist() == [0, 3, 4]  # the last round is always there


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> fedray.Run:
    return run({"predict": {"gamma": 0.05}, "report": False}, out=tmp_path_factory.mktemp("predict") / "run")


@pytest.fixture(scope="module")
def inputs(ensemble: fedray.Run) -> np.ndarray:
    return ensemble.study.split("test", 0)[0][:50].numpy()


def test_every_member_has_its_own_scores_and_the_answer_is_their_mean(ensemble: fedray.Run) -> None:
    x, y = ensemble.study.split("test", 0)
    row = ensemble.rounds.to_pylist()[-1]
    members = np.stack([softmax(plain(ensemble, state)(x)) for state in ensemble.models])
    answer = ensemble.predict(x.numpy())
    np.testing.assert_allclose(answer.mean, members.mean(0), atol=1e-6)
    np.testing.assert_allclose(answer.variance, members.var(0), atol=1e-6)
    np.testing.assert_array_equal(answer.probabilities, answer.mean)
    many = ensemble.predict(np.resize(x, (1203, *x.shape[1:])))  # more rows than are asked at once
    np.testing.assert_allclose(many.mean, np.resize(answer.mean, (1203, 10)), atol=1e-6)
    for k, probs in enumerate(members):
        right = probs[np.arange(len(y)), y.numpy()]
        assert row["member_accuracy"][k] == pytest.approx((probs.argmax(-1) == y.numpy()).mean())
        assert row["member_nll"][k] == pytest.approx(-np.log(right).mean(), rel=1e-4)
        assert row["member_brier"][k] == pytest.approx(((probs - np.eye(10)[y]) ** 2).sum(-1).mean(), rel=1e-4)
        assert row["member_entropy"][k] == pytest.approx(-(probs * np.log(probs)).sum(-1).mean(), rel=1e-4)
        assert 0 < row["member_ece"][k] < 1
    assert {len(row[name]) for name in row if name.startswith("member_")} == {5}


@pytest.mark.parametrize("name", ["digits", "cubic"])
def test_the_scores_of_an_only_member_are_those_of_the_ensemble(name: str) -> None:
    """Of a regression too, where its variance is that of its residuals."""
    data = {"name": name, **({} if name == "digits" else {"limit": None, "partition": {"name": "iid"}})}
    row = run(FED_AVG, {"data": data, "predict": {"noise": "residual"}}).rounds.to_pylist()[-1]
    own = {key.removeprefix("member_"): value for key, value in row.items() if key.startswith("member_")}
    assert own.keys() >= ({"accuracy", "nll", "ece"} if name == "digits" else {"rmse", "nll", "crps", "coverage_95"})
    for key, value in own.items():
        assert value == [pytest.approx(row[key], rel=1e-12)], key


def test_a_client_at_infinite_temperature_answers_like_a_new_one(ensemble: fedray.Run, inputs: np.ndarray) -> None:
    """Gamma = inf: the plain mean; a small gamma: other weights for other clients, still summing to 1."""
    flat = run({"predict": {"gamma": float("inf")}})
    for client in range(6):
        np.testing.assert_allclose(flat.predict(inputs, client=client).mean, flat.predict(inputs).mean, rtol=1e-12)
    sharp = [ensemble.predict(inputs, client=client).mean for client in range(6)]
    assert all(np.allclose(mean.sum(-1), 1.0) for mean in sharp)
    assert np.abs(sharp[0] - sharp[1]).max() > 1e-3


def softmax(logits: Tensor) -> np.ndarray:
    probabilities: np.ndarray = logits.detach().double().softmax(-1).numpy()
    return probabilities


def plain(ensemble: fedray.Run, state: dict[str, Tensor]) -> Any:
    """A model of the run as plain torch: the data's normalisation, then the small network by hand."""
    data = ensemble.study.shards.data
    shift, scale = torch.from_numpy(data.shift[0]), torch.from_numpy(data.scale[0])
    (w1, b1), (w2, b2) = zip(*[iter(state.values())] * 2)

    def forward(x: Tensor) -> Tensor:
        z = ((x.float() - shift) / scale).flatten(1)
        outputs: Tensor = torch.relu(z @ w1.T + b1) @ w2.T + b2
        return outputs

    return forward


MODULES: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 7), nn.Tanh(), nn.Linear(7, 3)),
    "cnn": lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)),
    "layer": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 3)),
    "batch": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 3)),
}


@pytest.mark.parametrize("kind", ["mlp", "cnn", "layer"])
@pytest.mark.parametrize("clients", [1, 5])
def test_one_full_batch_step_weighted_by_examples_is_one_central_step(kind: str, clients: int) -> None:
    """sum_i n_i / n (w - lr grad_i) = w - lr grad of the pooled loss; 64 rows over 5 clients are uneven."""
    data, lr, module = pictures(96), 0.3, MODULES[kind]
    given = scenario(
        FED_AVG,
        {
            "rounds": 3,
            "data": {"limit": None, "partition": {"name": "iid"}},
            "clients": {"number": clients},
            "local": {"batch_size": "full", "epochs": 1, "lr": lr, "lr_decay": 1.0},
            "server": {"weighting": "examples"},
        },
    )
    done = fedray.run(given, data=data, model=module)
    central, names = module(), list(done.models[0])
    start = fedray.run(given, data=data, model=module, rounds=0).models[0]
    central.load_state_dict(start)
    x = (torch.from_numpy(data.train.x).float() - torch.from_numpy(data.shift[0])) / torch.from_numpy(data.scale[0])
    for _ in range(3):
        loss = nn.functional.cross_entropy(central(x), torch.from_numpy(data.train.y))
        grads = torch.autograd.grad(loss, list(central.parameters()))
        with torch.no_grad():
            for p, g in zip(central.parameters(), grads, strict=True):
                p.sub_(lr * g)
    for name in names:
        torch.testing.assert_close(done.models[0][name], central.state_dict()[name], rtol=2e-4, atol=2e-5)
    assert (done.models[0][names[0]] - start[names[0]]).abs().max() > 1e-3


def test_batch_norm_statistics_are_averaged_and_counted(tmp_path: Path) -> None:
    """Buffers travel: the running mean is the mean over clients, the counter their largest number of steps."""
    data = pictures(96)
    given = scenario(
        FED_AVG,
        {
            "rounds": 1,
            "data": {"limit": None, "partition": {"name": "iid"}},
            "clients": {"number": 4},
            "local": {"batch_size": 8, "epochs": 2},
        },
    )
    done = fedray.run(given, data=data, model=MODULES["batch"], out=tmp_path / "run").models[0]
    assert int(done["2.num_batches_tracked"]) == 4  # 16 rows, batches of 8, 2 epochs
    assert done["2.running_mean"].abs().max() > 0
    assert (done["2.running_var"] - 1).abs().max() > 1e-3
    alone = scenario(given, {"clients": {"number": 1}, "local": {"batch_size": 8, "epochs": 2}})
    assert int(fedray.run(alone, data=data, model=MODULES["batch"]).models[0]["2.num_batches_tracked"]) == 16


def test_the_ingredients_of_an_own_method_stand_unless_the_scenario_names_others() -> None:
    """A composition that names a random schedule is Fed-ensemble under `schedule.kind: random`."""

    def compose(setting: Setting) -> Method:
        return Method("own", federated(setting, assign=schedule.random_models))

    own = fedray.run(scenario(), method=compose)
    named = fedray.run(scenario({"schedule": {"kind": "random"}}))
    assert own.summary["model_hash"] == named.summary["model_hash"]
    balanced = {"schedule": {"kind": "balanced"}}
    changed = fedray.run(scenario(balanced), method=compose)
    assert changed.summary["model_hash"] == fedray.run(scenario(balanced)).summary["model_hash"]


@pytest.mark.parametrize("method", sorted(METHOD_SPECS.keys() - {"dsvgd", "fednova"}))  # no key names its mean
def test_the_ingredients_in_a_methods_file_are_the_defaults_of_its_keys(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the file names stands where a scenario says nothing; the specification names the same by keys.

    One round: schedule, compression and coefficients act in the first, and the state holds what it kept back.
    """
    change: dict[str, Any] = {"method": {"models": 2}} if METHOD_SPECS[method].models == "any" else {}
    change["rounds"] = min(1, METHOD_SPECS[method].defaults.get("rounds", 1))
    by_file = train_whole(of_method(method, change))
    named = (
        {"coefficients": None} if "coefficients" in METHOD_SPECS[method].fixed else {}
    )  # no key names the mean of these
    monkeypatch.setattr(
        "fedray.assembly.methods.unset_defaults", lambda _scenario, setting, _defaults: replace(setting, **named)
    )
    by_keys = train_whole(of_method(method, change))
    assert torch.equal(by_file.models, by_keys.models) and torch.equal(by_file.counters, by_keys.counters)
    assert by_file.extra.keys() == by_keys.extra.keys()
    assert all(torch.equal(by_file.extra[name], by_keys.extra[name]) for name in by_file.extra)


# FedCross: who meets whom, and one round by hand


def run_cross(rounds: int = 3, **method: Any) -> fedray.Run:
    named = {"name": "fedcross", "models": 4, **method}
    keys = {"method": named, "clients": {"number": 8}}
    return fedray.run(scenario({"rounds": rounds, **keys}))


@pytest.mark.parametrize("partner", ["in_order", "most_similar", "least_similar"])
def test_a_round_is_that_of_fed_ensemble_and_a_bit_of_the_partner(partner: str) -> None:
    trained = run_cross(rounds=1, alpha=1).progress.state.models.double().numpy()
    found = run_cross(rounds=1, alpha=0.7, partner=partner).progress.state.models.numpy()
    unit = trained / np.linalg.norm(trained, axis=1, keepdims=True)
    for i in range(4):
        others = [j for j in range(4) if j != i]
        cosines = [unit[i] @ unit[j] for j in others]
        place = {"in_order": 0, "most_similar": int(np.argmax(cosines)), "least_similar": int(np.argmin(cosines))}
        other = (i + 1) % 4 if partner == "in_order" else others[place[partner]]
        np.testing.assert_allclose(found[i], 0.7 * trained[i] + 0.3 * trained[other], rtol=1e-5, atol=1e-7)


def test_in_order_every_model_meets_every_other_once_and_the_mean_stays() -> None:
    models = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    met = torch.stack([choose_partners(models, "in_order", t) for t in range(4)])
    assert [sorted(column.tolist()) for column in met.T] == [[j for j in range(5) if j != i] for i in range(5)]
    assert all(sorted(row.tolist()) == list(range(5)) for row in met)  # nobody twice: the mean of all stays as it is


def test_the_mean_of_the_weights_answers() -> None:
    done = run_cross()
    state = done.progress.state
    answer = done.study.answer(state)
    assert answer.models == 1
    torch.testing.assert_close(answer.state.models[0], state.models.mean(dim=0))
