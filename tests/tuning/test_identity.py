"""A sweep answers trials from its cache only with what was trained on the same data."""

from pathlib import Path
from typing import Any

import pytest
import sweeps
from small_data import write_table
from torch import nn

import fedray
from fedray.core.errors import BadInput
from fedray.scenario.identity import CHANGEABLE_KEYS, find_changed_key, list_result_keys
from fedray.scenario.loader import read_scenario, to_plain
from fedray.tuning.trial import hash_training


def test_a_sweep_was_answered_with_trainings_on_other_data(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    write_table(table, invert=False)
    data = {"name": "table", "path": str(table), "target": "label"}
    given: dict[str, Any] = {
        "scenario": {**sweeps.BASE, "data": data, "rounds": 2},
        "space": {"predict.gamma": [0.1, 1.0, 10.0]},
        "objectives": ["personal_accuracy"],
        "sampler": "grid",
    }
    sweeps.run(given, tmp_path / "sweep", trials=1)
    write_table(table, invert=True)
    with pytest.raises(BadInput, match=r"the data are not those the run began with \(training labels") as caught:
        sweeps.run(given, tmp_path / "sweep", trials=2, resume=True)
    assert len(str(caught.value).splitlines()) == 1
    write_table(table, invert=False)
    summary, _ = sweeps.run(given, tmp_path / "sweep", trials=3, resume=True)
    assert (summary["trainings"], summary["looked_up"]) == (1, 2)


def test_a_network_of_the_space_was_changed_between_two_trials(tmp_path: Path) -> None:
    """The base of the sweep has another network: only the trainings know which code they were trained with."""

    def bent(_shape: Any, _outputs: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10))

    def straight(_shape: Any, _outputs: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))

    fedray.register("model", "net_of_a_space", straight)
    networks = {"type": "categorical", "choices": ["net_of_a_space"]}
    space = {"model.name": networks, "local.lr": [0.1, 0.3]}
    given = sweeps.sweep(space, sampler="grid")
    given["scenario"] = {**sweeps.BASE, "rounds": 2, "model": {"name": "linear"}}
    sweeps.run(given, tmp_path / "sweep", trials=1)
    fedray.register("model", "net_of_a_space", bent)
    with pytest.raises(BadInput, match=r"trials/00000: the source of .*straight of model net_of_a_space of") as no:
        sweeps.run(given, tmp_path / "sweep", trials=2, resume=True)
    assert len(str(no.value).splitlines()) == 1
    fedray.register("model", "net_of_a_space", straight)
    assert sweeps.run(given, tmp_path / "sweep", trials=2, resume=True)[0]["trainings"] == 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.root", "elsewhere"),
        ("clients.per_actor", 3),
        ("clients.tiers.weak.num_cpus", 2.0),
        ("clients.tiers.weak.resources", {"disk": 1.0}),
        ("checkpoint.every", 2),
        ("loggers", ["tensorboard"]),
        ("seed", 1),
        ("rounds", 7),
        ("local.lr", 0.2),
        ("clients.tiers.weak.models_per_round", 2),
        ("on_client_error", "skip"),
        ("client_timeout", 60.0),
    ],
)
def test_a_sweep_and_a_run_differed_about_the_keys_that_decide_a_result(key: str, value: Any) -> None:
    base = {**sweeps.BASE, "clients": {"number": 8, "tiers": {"weak": {"share": 1.0}}}}
    one, other = read_scenario(base), read_scenario(base, {key: value})
    same_run = find_changed_key(list_result_keys(to_plain(one)), to_plain(other)) is None
    same_training = hash_training(one, ()) == hash_training(other, ())
    assert same_training == (same_run and key not in CHANGEABLE_KEYS)
    assert same_run == (key not in ("seed", "local.lr", "clients.tiers.weak.models_per_round"))
