"""`fedray check` refuses what `fedray run` cannot do, and says what a run would do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from own_names import forgetting_names
from small import run_command, scenario

from fedray.assembly.registry import register
from fedray.components.schedule import balanced
from fedray.data import catalogue
from fedray.data.types import Split, classification
from fedray.experiments import check
from fedray.methods import Method, federated
from fedray.runtime.placement import Node
from fedray.scenario import names


def words(_root: Path | None) -> Any:
    x = np.random.default_rng(0).integers(0, 9, (60, 5))
    return classification("few_words", Split(x[:40], x[:40, 0] % 2), Split(x[40:], x[40:, 0] % 2), ("a", "b"))


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "_OWN", dict(names._OWN))
    monkeypatch.setattr(catalogue, "_SOURCES", dict(catalogue._SOURCES))
    register("data", "few_words", words)


def file(folder: Path, keys: dict[str, Any]) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(keys))
    return path


def refusal(folder: Path, keys: dict[str, Any]) -> str:
    """The one line with which `check` and `run` refuse a scenario."""
    given = file(folder, keys)
    checked = run_command("check", given)
    assert checked.status == 2
    assert len(checked.err.splitlines()) == 1
    ran = run_command("run", given, "--out", folder / "run")
    assert (ran.status, ran.err) == (checked.status, checked.err)
    return checked.err


def test_check_passes_no_tokens_into_a_perceptron(tmp_path: Path) -> None:
    """It passed, and the run ended in 49 lines of traceback."""
    keys = {"data": {"name": "few_words"}, "model": {"name": "mlp"}, "clients": {"number": 4}, "runtime": "inline"}
    assert "model.name = mlp cannot read the data, tokens of shape [5]" in refusal(tmp_path, keys)


def test_check_passes_no_features_into_a_network_of_tokens(tmp_path: Path) -> None:
    keys = {"data": {"name": "cubic"}, "model": {"name": "lstm"}, "clients": {"number": 4}, "runtime": "inline"}
    assert "model.name = lstm cannot read the data, features of shape [1]" in refusal(tmp_path, keys)


@pytest.mark.parametrize("runtime", ["ray", "inline"])
def test_check_passes_no_gpu_that_the_machine_lacks(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    tiers = {"gpu": {"number": 2, "num_gpus": 0.5}, "cpu": {}}
    given = file(tmp_path, scenario({"runtime": runtime, "clients": {"tiers": tiers}}))
    result = run_command("check", given)
    assert result.status == 2
    assert "num_gpus = 0.5, but" in result.err
    there = run_command("check", given, "--address", "127.0.0.1:1")  # a cluster may have it, and is asked
    assert there.status == 2
    uses = "nobody answers there" if runtime == "ray" else "runtime = inline, which uses no cluster"
    assert uses in there.err


def test_check_invents_no_gpus_of_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It took for granted that a cluster has what the tiers ask for."""
    tiers = {"gpu": {"number": 2, "num_gpus": 0.5}, "cpu": {}}
    given = file(tmp_path, scenario({"runtime": "ray", "clients": {"tiers": tiers}}))
    for gpus, said in ((0.0, "actors need 0.5 GPU, but the cluster has 0"), (1.0, "client actors")):
        monkeypatch.setattr(check, "ask_cluster", lambda _address, gpus=gpus: [Node("", {"CPU": 4.0, "GPU": gpus})])
        result = run_command("check", given, "--address", "10.0.0.1:6379")
        assert said in result.out + result.err


def test_check_tries_gpus_without_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    tiers = {"gpu": {"number": 4, "num_gpus": 0.25}}
    keys = {"runtime": "ray", "clients": {"number": 4, "actors": 4, "device": "cpu", "tiers": tiers}}
    result = run_command("check", file(tmp_path, scenario(keys)))
    assert "4 client actors" in result.out, result.err
    assert " on cpu, " in result.out and " on cuda" not in result.out


TIER_OF_GPUS = {"gpu": {"number": 4, "num_gpus": 0.25}}


def test_check_says_where_tf32_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the tier with GPUs rounds, and only where it is asked to."""
    monkeypatch.setattr(check, "count_gpus", lambda: 1)
    tiers = {**TIER_OF_GPUS, "cpu": {"number": 2}}
    for tf32 in (True, False):
        keys = {"runtime": "ray", "clients": {"number": 6, "tf32": tf32, "tiers": tiers}}
        result = run_command("check", file(tmp_path, scenario(keys)))
        assert " on cpu, up to" in result.out, result.err
        assert (" on cuda with TF32, up to" in result.out) == tf32 == (" on cuda, up to" not in result.out)


def test_check_passes_no_custom_resource_that_the_machine_lacks(tmp_path: Path) -> None:
    keys = scenario({"runtime": "ray", "clients": {"tiers": {"lab": {"resources": {"lab": 1}}}}})
    assert "resources names lab, which this machine lacks" in run_command("check", file(tmp_path, keys)).err


def test_check_counts_the_gpus_of_all_tiers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "count_gpus", lambda: 1)
    tiers = {"one": {"number": 2, "num_gpus": 1}, "two": {"num_gpus": 1}}
    result = run_command("check", file(tmp_path, scenario({"runtime": "ray", "clients": {"tiers": tiers}})))
    assert "2 actors need 2 GPU, but the cluster has 1" in result.err


def test_check_says_who_takes_part_how_they_train_and_how_uploads_weigh(tmp_path: Path) -> None:
    keys = scenario(
        {"participation": {"per_round": 2}, "server": {"weighting": "examples"}, "method": {"name": "fedavg"}},
        {"local": {"lr_decay": 0.9, "momentum": 0.5}},
    )
    lines = run_command("check", file(tmp_path, keys)).out.splitlines()
    told = {line[:12].strip(): line[13:] for line in lines}
    assert told["round"] == "2 of 6 clients take part"
    assert told["training"] == (
        "sgd, learning rate 0.05 (times 0.9 every 10 rounds), momentum 0.5, batches of 8, 1 epochs"
    )
    assert told["server"] == "uploads weigh by their clients' rows"
    assert told["inputs"] == "images of 1 x 8 x 8"
    least, _, most, *_, median = told["rows"].replace(",", "").split()
    assert int(least) <= float(median) <= int(most) <= 240


def test_check_says_which_columns_of_a_table_are_used(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 3)), columns=["age", "height", "weight"])
    frame.assign(place=rng.integers(0, 3, 60), ill=rng.integers(0, 2, 60)).to_csv(tmp_path / "rows.csv", index=False)
    table = {"name": "table", "path": str(tmp_path / "rows.csv"), "target": "ill", "features": ["age", "height"]}
    keys = {"data": {**table, "group": "place", "partition": {"name": "natural"}}, "runtime": "inline"}
    out = run_command("check", file(tmp_path, keys)).out
    assert "inputs       features of 2: age, height" in out
    assert "left out     weight" in out


@pytest.mark.parametrize(("method", "said"), [("fedbe", "100 steps a round"), ("feddf", "up to 10,000 steps a round")])
def test_what_a_server_distils_is_said_before_one_waits_for_it(tmp_path: Path, method: str, said: str) -> None:
    """FedBE took forty times as long as FedAvg, and nothing said why; 1,438 training digits, a tenth at the server."""
    given = file(tmp_path, scenario({"data": {"name": "digits", "limit": None}}))
    shown = run_command("check", given, f"method={method}").out
    assert f"{'distilling':12} {said} at the server" in shown
    assert "server rows" in shown and "server rows" not in run_command("check", given, "method=fedavg").out


def test_clients_that_choose_are_not_said_to_follow_a_schedule(tmp_path: Path) -> None:
    given = file(tmp_path, scenario())
    assert "schedule permutation" in run_command("check", given).out
    shown = run_command("check", given, "method=ifca").out
    assert "clients choose their models" in shown and "schedule" not in shown


@pytest.mark.parametrize("method", ["local_only", "fedavg", "mine"])
def test_a_schedule_is_named_only_where_it_says_who_trains_what(tmp_path: Path, method: str) -> None:
    """`schedule permutation` stood there for local_only, and for methods that bring an assignment of their own."""
    with forgetting_names():
        register("method", "mine", lambda setting: Method("mine", federated(setting, assign=balanced)))
        shown = run_command("check", file(tmp_path, scenario()), f"method={method}").out
    wanted = {
        "local_only": "rounds, the method says who trains which model\n",
        "fedavg": "rounds, schedule permutation\n",
        "mine": "rounds, schedule permutation, or the method's own\n",
    }
    assert wanted[method] in shown


def test_check_asks_a_gpu_for_what_run_asks_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asked for full float32 always, so that a GPU without TF32 passed and `fedray run` refused it."""
    asked: list[bool] = []
    monkeypatch.setattr(check, "device_of", lambda _gpus, _device, *, tf32: asked.append(tf32))
    for wanted in (False, True):
        tiers = {"gpu": {"number": 4, "num_gpus": 1}}
        keys = scenario({"runtime": "inline", "clients": {"number": 4, "tf32": wanted, "tiers": tiers}})
        assert (" on cuda with TF32, " in run_command("check", file(tmp_path, keys)).out) == wanted
    assert asked == [False, True]
