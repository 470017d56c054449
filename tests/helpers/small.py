"""A scenario small enough to run dozens of times, and what several tests do with its runs."""

import copy
import io
import json
import shutil
import warnings
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from method_cases import SCENARIO
from torch import Tensor

import fedray
from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study
from fedray.cli import commands
from fedray.core.errors import BadInput
from fedray.core.types import State
from fedray.runtime.session import Inline
from fedray.scenario.loader import read_scenario, to_plain
from fedray.scenario.nested import merge_keys
from fedray.simulation.asynchronous import choose_advance
from fedray.simulation.rounds import add_round, begin_progress, run_round
from fedray.simulation.study import Progress, Study

NEEDS: dict[str, dict[str, Any]] = {  # what a method needs beside the small scenario: its name is enough for most
    "fedbe": {"method": {"server_data": 0.2}},
    "feddf": {"method": {"server_data": 0.2, "distil_steps": 20}},
    "fens": {"method": {"meta_rounds": 3}, "rounds": 1},
    "beta_predbayes": {"method": {"samples": 2, "cycles": 1}, "rounds": 1, "local": {"epochs": 5}},
    "bayesian_linear": {"data": {"name": "cubic"}, "model": {"name": "linear"}},
    "deep_ensemble": {"data": {"name": "cubic"}},
    "fedbn": {"model": {"norm": "layer"}},
    "fedrep": {"local": {"epochs": 2}},
    "depthfl": {"model": {"hidden": [8, 6]}},
    "dsvgd": {"method": {"models": 3, "factor_steps": 5}, "local": {"lr": 0.01}},
    "pfedbayes": {"local": {"lr": 0.01, "epochs": 5}},
    "pvi": {"local": {"lr": 0.01}},
    "ivon_admm": {"local": {"lr": 1e-4}},
}
CLOCK = ("wall_seconds",)  # columns that differ between two runs of one scenario


def scenario(*changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the small scenario with changes, section by section."""
    out = copy.deepcopy(SCENARIO)
    for change in changes:
        out = merge_keys(out, change)
    return out


def of_method(method: str, *changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the resolved small scenario of a method, with the keys that the method needs."""
    return spell_out(scenario({"method": {"name": method}}, NEEDS.get(method, {}), *changes))


def write_keys(folder: Path, keys: Mapping[str, Any]) -> Path:
    """Writes a scenario file into a folder, and returns its path."""
    (path := folder / "small.yaml").write_text(yaml.safe_dump(dict(keys)))
    return path


def spell_out(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the resolved scenario, also with keys that its method does not read. Bad input is returned as it is."""
    try:
        return to_plain(read_scenario(keys, explicit=False))
    except BadInput:
        return dict(keys)


def rows(table: Any, *without: str) -> list[dict[str, Any]]:
    """Returns the rows of a table, in an order that does not depend on how it was written."""
    kept = table.drop_columns([name for name in (*CLOCK, *without) if name in table.column_names])
    return sorted(kept.to_pylist(), key=repr)


def copy_run(run: fedray.Run, to: Path, last_round: int | None) -> Path:
    """Copies a run directory as if the process had died after the checkpoint of `last_round` (None: before any)."""
    shutil.copytree(run.path, to)
    for path in (to / "checkpoints").iterdir():
        if last_round is None or int(path.name[6:]) > last_round:
            shutil.rmtree(path)
    for name in ("summary.json", "report.html", "pictures.npz"):
        (to / name).unlink(missing_ok=True)
    return to


def models(done: Any) -> Tensor:
    """Returns the final models of a run, or of a training, `[M, d]`."""
    found: Tensor = done.progress.state.models
    return found


def run_quietly(keys: Mapping[str, Any], data: Any, **more: Any) -> fedray.Run:
    """Runs a scenario on the given data, without warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fedray.run(keys, data=data, **more)


class CommandResult(NamedTuple):
    """What a command left: its exit status and what it wrote."""

    status: int
    out: str
    err: str


def run_command(*arguments: str | Path) -> CommandResult:
    """Runs `fedray ARGUMENTS` in this process."""
    out, err = io.StringIO(), io.StringIO()
    status = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            commands.main([str(argument) for argument in arguments])
        except SystemExit as end:
            status = int(end.code or 0)
    return CommandResult(status, out.getvalue(), err.getvalue())


def list_states(study: Study, rounds: int, runtime: Any = None) -> tuple[list[State], Inline]:
    """Returns the states before each round and after the last, and the runtime that holds the clients."""
    runtime, progress = runtime or Inline(study), begin_progress(study)
    states = [progress.state]
    for _ in range(rounds):
        progress.state = run_round(study, runtime, progress).state
        progress.round += 1
        states.append(progress.state)
    return states, runtime


def train_rounds(study: Study, rounds: int) -> tuple[State, Inline]:
    """Returns the state after some rounds, and the runtime."""
    states, runtime = list_states(study, rounds)
    return states[-1], runtime


def train(keys: Mapping[str, Any], **own: Any) -> tuple[Study, Progress, Inline]:
    """Trains a scenario to its end, in rounds or without, and neither evaluates nor writes: a quarter of a run's time.

    Keys that cannot act are left out. A scenario without own objects trains once: leave what comes back as it is.
    """
    return _train(keys, own) if own else _train_once(json.dumps(keys, sort_keys=True))


def _train(keys: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[Study, Progress, Inline]:
    study = build_study(read_scenario(keys, explicit=False), UserObjects(**own))
    runtime, progress = Inline(study), begin_progress(study)
    advance = choose_advance(study, runtime, progress)
    while progress.round < study.rounds:
        add_round(progress, advance(progress, lambda ends: min(len(ends), study.rounds - progress.round)))
    return study, progress, runtime


_train_once = lru_cache(128)(lambda keys: _train(json.loads(keys), {}))
