"""A run directory names the modules whose names it uses; what is missing when it goes on is one line."""

import importlib
import json
import linecache
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from own_names import forgetting_names
from small import CommandResult, run_command, scenario

import fedray

MODULE = '''"""A method, a network and a data set with names."""
from dataclasses import replace

import fedray
from fedray.data.store import load_data
from fedray.methods import Method, federated
from torch import nn

WIDTH = 5


def mine(setting):
    local = replace(setting.local, pull=float(setting.options["mu"]))
    return Method("mine", federated(setting, local=local))


def layers(input_shape, outputs, width=8):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Tanh(), nn.Linear(width, outputs))


def few(root, rows=240):
    return load_data("digits")


fedray.register("method", "mine", mine, options={"mu": 0.1})
fedray.register("model", "layers", layers)
fedray.register("data", "few", few)
'''
KEYS = scenario({"rounds": 2, "report": False, "method": {"name": "mine", "mu": 0.2}, "checkpoint": {"every": 1}})
KEYS["model"], KEYS["data"]["name"] = {"name": "layers"}, "few"


def once(*arguments: str) -> CommandResult:
    """Runs a command in this process, which forgets the names and the module after it."""
    linecache.clearcache()
    importlib.invalidate_caches()
    with forgetting_names("my_method"):
        return run_command(*arguments)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the module and a scenario that uses its names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "my_method.py").write_text(MODULE)
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(KEYS))
    return tmp_path


def test_a_run_that_used_an_own_name_says_which_module_is_missing(folder: Path) -> None:
    done = once("run", "s.yaml", "--out", "run", "--import", "my_method.py")
    assert done.status == 0, done.err
    identity = json.loads((folder / "run" / "identity.json").read_text())
    assert identity["names"] == dict.fromkeys(["method mine", "model layers", "data few"], "my_method.py")
    assert len(identity["files"]["my_method"]) == 64

    resume = ["resume", "run", "--rounds", "3"]
    (folder / "my_method.py").rename(folder / "elsewhere.py")
    missing = once(*resume)
    assert missing.status == 2 and "my_method" in missing.err, missing.err
    (folder / "elsewhere.py").rename(folder / "my_method.py")
    with forgetting_names("my_method"):
        loaded, x = fedray.load("run"), np.zeros((3, 1, 8, 8), np.uint8)
        assert loaded.summary["rounds"] == 2
        with pytest.raises(fedray.BadInput, match="this run used method 'mine' of my_method.py"):
            loaded.predict(x)
        assert len(fedray.load("run", modules=["my_method.py"]).predict(x).mean) == 3

    (folder / "my_method.py").write_text(MODULE.replace("pull=float", "pull=2 * float"))
    changed = once(*resume, "--import", "my_method")
    assert changed.status == 2
    assert "the source of mine of method mine of my_method.py is not what the run began with" in changed.err
    (folder / "my_method.py").write_text(MODULE.replace('"""A method', '# a comment\n"""A method', 1))
    assert once(*resume, "--import", "my_method.py").status == 0


@pytest.mark.slow
def test_own_names_reach_the_actors_of_ray(folder: Path) -> None:
    """The module is imported by each of them, from a folder that is not the working directory either."""
    (folder / "code").mkdir()
    (folder / "my_method.py").rename(folder / "code" / "my_method.py")
    changes = {"ray": ["runtime=ray", "clients.actors=2"], "inline": []}
    for name, words in changes.items():
        command = [sys.executable, "-W", "ignore", "-m", "fedray", "run", "s.yaml", *words, "--out", name]
        done = subprocess.run([*command, "--import", "code/my_method.py"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert len({json.loads((folder / name / "summary.json").read_text())["model_hash"] for name in changes}) == 1
