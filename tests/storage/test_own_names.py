"""A run directory names the modules whose names it uses; what is missing when it goes on is one line."""

from __future__ import annotations

import importlib
import json
import linecache
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from own_names import forgetting_names
from small import CommandResult, run_command, scenario

MODULE = '''"""A method, a network and a data set with names."""
from dataclasses import replace

import fedray
from fedray.data.catalogue import load_data
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
KEYS = scenario(
    {"rounds": 2, "report": False, "method": {"name": "mine", "mu": 0.2}, "checkpoint": {"every": 1}},
)
KEYS["model"], KEYS["data"]["name"] = {"name": "layers"}, "few"


def fedray(folder: Path, *arguments: str) -> CommandResult:
    """Runs a command in a process of its own, which knows no name."""
    command = [sys.executable, "-W", "ignore", "-m", "fedray", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=250)
    return CommandResult(done.returncode, done.stdout, done.stderr)


def once(*arguments: str) -> CommandResult:
    """Runs a command in this process, which forgets the names and the module after it."""
    linecache.clearcache()
    importlib.invalidate_caches()
    with forgetting_names("my_method"):
        return run_command(*arguments)


def write_files(folder: Path) -> None:
    (folder / "my_method.py").write_text(MODULE)
    (folder / "s.yaml").write_text(yaml.safe_dump(KEYS))


def test_a_run_that_used_an_own_name_says_which_module_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said: 'mine' is not a known method."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    write_files(tmp_path)
    done = once("run", "s.yaml", "--out", "run", "--import", "my_method.py")
    assert done.status == 0, done.err
    identity = json.loads((tmp_path / "run" / "identity.json").read_text())
    assert identity["names"] == dict.fromkeys(["method mine", "model layers", "data few"], "my_method.py")
    assert len(identity["files"]["my_method"]) == 64

    resume = ["resume", "run", "--rounds", "3"]
    missing = once(*resume)
    assert missing.status == 2
    line = "this run used method 'mine' of my_method.py: --import my_method.py, or import it first in Python"
    assert missing.err.strip() == f"fedray: run: {line}"

    (tmp_path / "my_method.py").write_text(MODULE.replace("pull=float", "pull=2 * float"))
    changed = once(*resume, "--import", "my_method")
    assert changed.status == 2
    assert "the source of mine of method mine of my_method.py is not what the run began with" in changed.err
    (tmp_path / "my_method.py").write_text(MODULE.replace('"""A method', '# a comment\n"""A method', 1))
    assert once(*resume, "--import", "my_method.py").status == 0


def test_a_name_that_nothing_registers_points_to_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    assert "or --import the module that registers it" in once("check", "s.yaml").err


LOAD = """
import fedray
run = fedray.load("run"{modules})
print(run.summary["rounds"])
try:
    print(len(run.predict(run.study.shards.data.test.x[:3]).probabilities))
except fedray.BadInput as error:
    print(error)
"""


@pytest.mark.slow
def test_a_loaded_run_says_which_module_is_missing(tmp_path: Path) -> None:
    write_files(tmp_path)
    assert fedray(tmp_path, "run", "s.yaml", "--out", "run", "--import", "my_method").status == 0
    for modules, says in (("", "this run used method 'mine' of my_method.py"), (', modules=["my_method.py"]', "3")):
        program = [sys.executable, "-W", "ignore", "-c", LOAD.format(modules=modules)]
        done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=True)
        first, second = done.stdout.splitlines()
        assert first == "2"
        assert says in second


@pytest.mark.slow
def test_a_sweep_says_which_module_is_missing(tmp_path: Path) -> None:
    write_files(tmp_path)
    sweep = {"scenario": KEYS, "space": {"local.lr": [0.01, 0.1]}, "objectives": ["accuracy"], "trials": 1}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    assert fedray(tmp_path, "tune", "sweep.yaml", "--out", "sweep", "--import", "my_method").status == 0
    resume = ["tune", "sweep.yaml", "--out", "sweep", "--resume", "--trials", "2"]
    missing = fedray(tmp_path, *resume)
    assert missing.status == 2
    assert "this run used method 'mine' of my_method.py: --import my_method.py" in missing.err
    assert fedray(tmp_path, *resume, "--import", "my_method.py").status == 0


@pytest.mark.slow
def test_own_names_reach_the_actors_of_ray(tmp_path: Path) -> None:
    """The module is imported by each of them, from a folder that is not the working directory either."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "my_method.py").write_text(MODULE)
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(KEYS | {"runtime": "ray", "clients": {"number": 6, "actors": 2}}))
    done = fedray(tmp_path, "run", "s.yaml", "--out", "ray", "--import", "code/my_method.py")
    assert done.status == 0, done.err
    inline = fedray(
        tmp_path,
        "run",
        "s.yaml",
        "runtime=inline",
        "clients.actors=auto",
        "--out",
        "inline",
        "--import",
        "code/my_method.py",
    )
    assert inline.status == 0, inline.err
    hashes = {json.loads((tmp_path / name / "summary.json").read_text())["model_hash"] for name in ("ray", "inline")}
    assert len(hashes) == 1


def test_list_shows_own_names_with_their_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    done = once("list", "--import", "my_method.py")
    assert done.status == 0, done.err
    for name, options in (("mine", "mu = 0.1"), ("layers", "width = 8"), ("few", "rows = 240")):
        assert f"  {name:18} your own, of my_method.py; options: {options}\n" in done.out


BROKEN = [
    ("raise ValueError('no\\nlicence')", "ValueError: no licence (broken.py:1): correct it"),
    ("import fedray\nfedray.register('layer', 'x', print)", "kind = 'layer' cannot be registered"),
    ("import fedray\nfedray.register('model', 'x', None)", "model.name = 'x': it is None: give a function"),
    ("import fedray\nfedray.register('method', 'fedavg', print)", "method.name = 'fedavg' is fedray's own"),
    ("import fedray\nfedray.register('method', 'x', print, options=['a'])", "options = ['a']: give a dict"),
    ("def f(:", "SyntaxError: invalid syntax"),
    ("import sys\nsys.exit(0)", "SystemExit: 0 (broken.py:2): correct it"),
    ("import not_there", "ModuleNotFoundError: No module named 'not_there' (broken.py:1): correct it"),
]


@pytest.mark.parametrize(("text", "says"), BROKEN)
def test_a_module_that_cannot_be_imported_is_one_line(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text(text)
    with forgetting_names("broken"):
        done = run_command("list", "--import", "broken.py")
    assert done.status == 2
    assert says in done.err
    assert len(done.err.strip().splitlines()) == 1
