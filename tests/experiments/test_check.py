"""`fedray check` refuses what `fedray run` cannot do, and says what a run would do."""

from pathlib import Path

import pytest
from small import run_command, scenario, write_keys

from fedray.experiments import check
from fedray.runtime.placement import Node


def test_check_refuses_with_the_line_of_run_a_network_that_cannot_read_the_data(tmp_path: Path) -> None:
    keys = {"data": {"name": "cubic"}, "model": {"name": "lstm"}, "clients": {"number": 4}, "runtime": "inline"}
    given = write_keys(tmp_path, keys)
    checked, ran = run_command("check", given), run_command("run", given, "--out", tmp_path / "run")
    assert (ran.status, ran.err) == (checked.status, checked.err)
    assert checked.status == 2 and len(checked.err.splitlines()) == 1
    assert "model.name = lstm cannot read the data" in checked.err


@pytest.mark.parametrize("runtime", ["ray", "inline"])
def test_check_passes_no_gpu_that_the_machine_lacks(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    tiers = {"gpu": {"number": 2, "num_gpus": 0.5}, "cpu": {}}
    given = write_keys(tmp_path, scenario({"runtime": runtime, "clients": {"tiers": tiers}}))
    result = run_command("check", given)
    assert result.status == 2 and "num_gpus = 0.5, but" in result.err
    there = run_command("check", given, "--address", "127.0.0.1:1")  # a cluster may have it, and is asked
    assert there.status == 2
    uses = "nobody answers" if runtime == "ray" else "runtime = inline, which uses no cluster"
    assert uses in there.err


def test_check_invents_no_gpus_of_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiers = {"gpu": {"number": 2, "num_gpus": 0.5}, "cpu": {}}
    given = write_keys(tmp_path, scenario({"runtime": "ray", "clients": {"tiers": tiers}}))
    for gpus, said in ((0.0, "actors need 0.5 GPU, but the cluster has 0"), (1.0, "client actors")):
        nodes = [Node("", {"CPU": 4.0, "GPU": gpus})]
        monkeypatch.setattr(check, "ask_cluster", lambda _address, nodes=nodes: nodes)
        result = run_command("check", given, "--address", "10.0.0.1:6379")
        assert said in result.out + result.err


@pytest.mark.parametrize("tf32", [True, False])
def test_check_says_where_tf32_is_and_asks_a_gpu_for_what_run_asks_of_it(
    tf32: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the tier with GPUs rounds, and only where it is asked to; a GPU without TF32 passed, which `run` refused."""
    asked: list[bool] = []
    monkeypatch.setattr(check, "count_gpus", lambda: 1)
    monkeypatch.setattr(check, "device_of", lambda _gpus, _device, *, tf32: asked.append(tf32))
    tiers = {"gpu": {"number": 4, "num_gpus": 0.25}, "cpu": {"number": 2}}
    for runtime in ("ray", "inline"):
        keys = {"runtime": runtime, "clients": {"number": 6, "tf32": tf32, "tiers": tiers}}
        shown = run_command("check", write_keys(tmp_path, scenario(keys))).out
        assert (" on cuda with TF32, " in shown) == tf32
    assert set(asked) == {tf32}


def test_check_says_who_takes_part_how_they_train_and_how_uploads_weigh(tmp_path: Path) -> None:
    local, server = {"lr_decay": 0.9, "momentum": 0.5}, {"weighting": "examples"}
    keys = scenario({"participation": {"per_round": 2}, "server": server, "method": {"name": "fedavg"}, "local": local})
    lines = run_command("check", write_keys(tmp_path, keys)).out.splitlines()
    told = {line[:12].strip(): line[13:] for line in lines}
    assert told["round"] == "2 of 6 clients take part"
    assert told["training"] == (
        "sgd, learning rate 0.05 (times 0.9 every 10 rounds), momentum 0.5, batches of 8, 1 epochs"
    )
    assert told["server"] == "uploads weigh by their clients' rows"
    assert told["inputs"] == "images of 1 x 8 x 8"
    least, _, most, *_, median = told["rows"].replace(",", "").split()
    assert int(least) <= float(median) <= int(most) <= 240
    choice, plan = "clients choose their models", "the method says who trains which model"
    for method, said in {"ifca": choice, "local_only": plan, "fedavg": "schedule permutation"}.items():
        assert said in run_command("check", write_keys(tmp_path, scenario()), f"method={method}").out
    pooled = run_command("check", write_keys(tmp_path, keys), "method=centralized", "clients.device=cpu").out
    assert ", 1 clients by iid\n" in pooled
    shown = run_command("check", write_keys(tmp_path, scenario()), "runtime=ray", "clients.per_actor=2").out
    assert "3 client actors" in shown, "two of six clients each"
    own = "import fedray\nfrom fedray.methods import Method, federated as f\n"
    (mine := tmp_path / "mine_7.py").write_text(f"{own}fedray.register('method', 'm', lambda s: Method('m', f(s)))")
    shown = run_command("check", write_keys(tmp_path, keys), "method=m", "--import", mine).out
    assert "\nanswer       5 models, " in shown
