"""A run directory says what it trained, and nothing else goes on, answers or is reported in its place."""

import importlib
import linecache
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from small import copy_run, run_command, scenario
from small_data import pictures
from torch import nn

import fedray
from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study, describe_study
from fedray.core.errors import FedrayError
from fedray.data.synthetic import GeneratedShards
from fedray.report.read import read_run
from fedray.scenario.identity import VALUES_OF_BEFORE, find_changed_key, list_result_keys
from fedray.scenario.loader import read_scenario, to_plain


def test_a_run_that_began_before_a_key_existed_goes_on() -> None:
    """A younger key is no part of an identity at the value by which runs behaved before; keys of tiers, too."""
    keys = {"clients": {"tiers": {"slow": {"share": 0.5}, "fast": {}}}}
    began = list_result_keys(to_plain(read_scenario(keys)))
    assert not {key.replace("*", "slow") for key in VALUES_OF_BEFORE} & began.keys()
    assert list_result_keys({"clients": {"number": 4, "tf32": False}}) == list_result_keys({"clients": {"number": 4}})
    changes = ("clients.tiers.slow.epochs=2", "participation.partial=0.5", "local.last_batch=drop", "clients.tf32=true")
    for change in changes:
        key, _, value = change.partition("=")
        changed = find_changed_key(began, to_plain(read_scenario(keys, [change])))
        assert changed is not None and changed[::2] == (key, value)


OWN = {"data": {"name": "digits", "partition": {"name": "dirichlet", "alpha": 1.0}, "limit": None}}


def line_of(call: Callable[..., object], *arguments: object, **keywords: object) -> str:
    with pytest.raises(FedrayError) as caught:
        call(*arguments, **keywords)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def study_of(path: Path, **objects: Any) -> object:
    return fedray.load(path, **objects).study


def test_resume_trained_on_digits_after_a_run_on_own_data(tmp_path: Path) -> None:
    run = fedray.run(scenario(OWN), out=tmp_path / "run", data=pictures())
    recorded = yaml.safe_load((run.path / "scenario.yaml").read_text())["data"]
    assert recorded["object"] == "pictures" and "name" not in recorded
    half = copy_run(run, tmp_path / "half", 2)
    assert "started with a Python object as its data: pass the same data=" in line_of(fedray.resume, half)
    assert "pass the same data=" in line_of(partial(study_of, half))
    assert run_command("resume", half).status == 2
    inverted = [part._replace(y=2 - part.y) for part in (pictures().train, pictures().test)]
    wrong = line_of(fedray.resume, half, data=pictures()._replace(train=inverted[0], test=inverted[1]))
    assert "(training labels, test labels, the clients' rows)" in wrong
    assert fedray.resume(half, data=pictures()).summary["state_hash"] == run.summary["state_hash"]
    assert run.summary["data"] == "pictures"


NETWORK = """
from torch import nn

from {helper} import activate

SCALES = {{"twice": lambda x: 2 * x}}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        return SCALES["twice"](activate(self.linear(x.flatten(1))))
"""
HELPER = """
def activate(x):
    return bend(x)

def bend(x):
    return x.tanh()
"""


def test_a_function_that_a_network_calls_was_changed_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another file of the user's, named through others; or in the network's own file, where nothing names it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load_network(text: str, helper: str) -> type[nn.Module]:
        (tmp_path / "nets_of_mine.py").write_text(text.format(helper="helper_of_mine"))
        (tmp_path / "helper_of_mine.py").write_text(helper)
        importlib.invalidate_caches()
        for name in ("nets_of_mine", "helper_of_mine"):
            sys.modules.pop(name, None)
        linecache.clearcache()
        found: type[nn.Module] = importlib.import_module("nets_of_mine").Net
        return found

    run = fedray.run(scenario({"rounds": 1}), out=tmp_path / "run", model=load_network(NETWORK, HELPER))
    same = load_network(f"# as before\n{NETWORK}", HELPER.replace("return bend", "# a comment\n    return bend"))
    assert fedray.load(run.path, model=same).study.net.layout.d == 650
    for network, helper, line in (
        (NETWORK, HELPER.replace("tanh", "relu"), "the source of bend of model Net"),
        (NETWORK.replace("2 * x", "3 * x"), HELPER, "the file of module nets_of_mine"),
    ):
        other = load_network(network, helper)
        assert f"{line} is not what the run began with" in line_of(partial(study_of, run.path, model=other))


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("lr: 0.05", "lr: 0.5", "local.lr = 0.5, but the run began with 0.05"),
        ("rounds: 4", "rounds: 6", "rounds = 6, but the run began with 4: restore it, or make the run longer"),
    ],
)
def test_an_edited_scenario_was_used_in_silence(
    plain: fedray.Run, tmp_path: Path, old: str, new: str, line: str
) -> None:
    half = copy_run(plain, tmp_path / "half", 2)
    text = (half / "scenario.yaml").read_text()
    assert text.count(old) == 1
    (half / "scenario.yaml").write_text(text.replace(old, new))
    assert line in line_of(fedray.resume, half)
    assert line in line_of(partial(study_of, half))
    assert line in line_of(read_run, half)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> fedray.Run:
    return fedray.run(scenario(), out=tmp_path_factory.mktemp("plain") / "run", report=False)


def test_a_lost_or_damaged_identity_let_another_scenario_go_on(plain: fedray.Run, tmp_path: Path) -> None:
    """The manifest says that there was one; in a directory of before there was such a file it does not."""
    half = copy_run(plain, tmp_path / "half", 2)
    linear = line_of(fedray.resume, half, model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    assert "model= was given" in linear
    kept = (half / "scenario.yaml").read_text()
    (half / "scenario.yaml").write_text("[1]")
    assert f"{half / 'scenario.yaml'} is damaged" in line_of(fedray.resume, half)
    (half / "scenario.yaml").write_text(kept)
    (half / "identity.json").write_text('{"scenario": {')
    assert "identity.json is damaged" in line_of(fedray.resume, half)
    (half / "identity.json").unlink()
    for read in (fedray.resume, study_of, read_run):
        assert f"{half / 'identity.json'} is missing" in line_of(read, half)
    (half / "manifest.json").unlink()
    assert fedray.resume(half).summary["rounds"] == 4
    assert fedray.resume(half, rounds=5).summary["rounds"] == 5  # the manifest is made again


def test_a_million_generated_clients_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    given = read_scenario(
        {"data": {"name": "synthetic"}, "clients": {"number": 10**6}, "participation": {"per_round": 10}}
    )
    study = build_study(given)
    monkeypatch.setattr(GeneratedShards, "fetch", None)
    monkeypatch.setattr(GeneratedShards, "sizes", None)
    digests = describe_study(given, UserObjects(), study)["data"]
    assert "generated clients" in digests
    assert "the clients' rows" not in digests
