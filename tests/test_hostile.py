"""Objects, run directories and damages that are made to go wrong end in one line or in the right bits.

One of each kind; all of them: `python tools/long_checks.py hostile`.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from damage import OF_FILES, OF_FOLDERS, Bench, Damage, make_bench
from directories import make_run
from hostile_files import CASES as DIRECTORIES
from own_case import SCENARIO, good_data, good_model
from own_objects import BY_NAME, find_fault, find_fault_of_command, run_objects
from small import run_command
from torch import nn

import fedray
from fedray.core.errors import BadInput, DamageWarning, FedrayError

LAST = "rounds.parquet/part-000000004.parquet"
STATE = "checkpoints/round-000004/state.safetensors"


# ------------------------------------------------------------------------------------------ a user's own objects


@pytest.mark.parametrize(
    "name",
    [
        "data_returns_none", "data_raises_valueerror", "data_nan_in_inputs", "model_raises", "model_answers_a_tuple",
        "model_fails_in_evaluation_skipped", "model_nan_in_evaluation", "method_plan_is_none",
        "method_step_returns_nan", "method_reduce_raises", "method_good",
    ],
)  # fmt: skip
def test_an_own_object_that_goes_wrong_is_one_line(name: str, tmp_path: Path) -> None:
    assert find_fault(BY_NAME[name], tmp_path / "run") == ""


def test_an_own_object_that_is_imported_and_goes_wrong_is_one_line(tmp_path: Path) -> None:
    assert find_fault_of_command(BY_NAME["model_fails_in_evaluation"], tmp_path) == ""


def test_the_traceback_of_the_users_code_is_in_the_run_directory(tmp_path: Path) -> None:
    """One line is enough to know what failed, not always to correct it."""
    with pytest.raises(FedrayError, match=r"\(traceback: .*error\.txt\)"):
        run_objects(BY_NAME["model_fails_in_evaluation"], tmp_path / "run")
    text = (tmp_path / "run" / "error.txt").read_text()
    assert text.startswith("Traceback") and "own_models.py" in text


def test_what_a_watcher_raises_reaches_the_user_as_it_is() -> None:
    class Enough(Exception):
        """A user's own way to end a run."""

    def watch(_snapshot: Any) -> None:
        raise Enough

    with pytest.raises(Enough):
        fedray.run(SCENARIO, data=good_data(), model=good_model, watch=watch)


def test_a_network_that_no_other_process_can_have_is_refused(tmp_path: Path) -> None:
    lock = Lock()

    def locked() -> nn.Module:
        with lock:
            return good_model()

    with pytest.raises(BadInput, match=r"model = .*locked: it cannot be sent to the actors of Ray \(TypeError"):
        fedray.run(SCENARIO | {"runtime": "ray"}, out=tmp_path / "run", data=good_data(), model=locked)


# ------------------------------------------------------------------------------------------ somebody's run directory


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("hostile"))


@pytest.mark.short_report
@pytest.mark.parametrize(
    "name",
    [
        "yaml: aliases", "yaml: a link to a device", "yaml: a pipe", "identity: a newer format", "summary: NaN",
        "jobs: a model of 10^9", "jobs: 30 million equal rows", "rounds: no round", "pictures: a pickle",
        "pictures: a terabyte",
    ],
)  # fmt: skip
def test_a_hostile_directory_is_one_line_that_names_the_file(name: str, good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "run")
    DIRECTORIES[name].harm(tmp_path / "run")
    result = run_command("report", tmp_path / "run")
    lines = [line for line in result.err.splitlines() if line.startswith("fedray: ")]
    assert result.status in (1, 2) and len(lines) == 1 and "Traceback" not in result.err, result.err
    assert DIRECTORIES[name].file in lines[0]


@pytest.mark.parametrize("name", ["jobs: no model", "jobs: ids that are text"])
def test_a_run_whose_jobs_are_damaged_does_not_go_on_with_a_traceback(name: str, good: Path, tmp_path: Path) -> None:
    """The models that took no upload are counted from its jobs; Arrow's own error came out."""
    shutil.copytree(good, tmp_path / "run")
    DIRECTORIES[name].harm(tmp_path / "run")
    result = run_command("resume", tmp_path / "run")
    assert result.status in (0, 1, 2) and "Traceback" not in result.err
    assert result.status == 0 or DIRECTORIES[name].file in result.err


# ------------------------------------------------------------------------------------------ damages of a run directory


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    """A run, and what every command says of it."""
    with make_bench() as made:
        yield made


def test_a_damage_of_each_kind_ends_in_the_right_bits_or_in_one_line(bench: Bench) -> None:
    """Each with another file and command."""
    chance, tried = random.Random(3), bench.list_damages()
    for kind in [*OF_FILES, *OF_FOLDERS]:
        damage = chance.choice([one for one in tried if one.kind == kind])
        outcome = bench.judge(damage)
        assert outcome.is_good, (damage, outcome)


@pytest.mark.parametrize(
    ("kind", "file"), [("bit flip", LAST), ("deleted", LAST), ("truncation", STATE), ("swapped with another", STATE)]
)
def test_resume_sets_a_damaged_part_aside_and_makes_it_again(bench: Bench, kind: str, file: str) -> None:
    """Readers name it and `fedray resume`; after that the run is what it was, tables and all."""
    out = bench.copy("part")
    OF_FILES[kind](out / file, random.Random(1))
    left = (out / file).read_bytes() if (out / file).exists() else None
    with pytest.raises(FedrayError, match=f"{Path(file).name} is (damaged|missing).*`fedray resume"):
        _ = fedray.load(out).rounds if file == LAST else fedray.load(out).models
    with pytest.warns(DamageWarning, match="and the run goes on from the (checkpoint of round 2|first round)"):
        fedray.resume(out)
    assert repr(bench.answer("load", out)) == repr(bench.right["load"])
    assert left is None or (out / "set-aside" / "1" / file).read_bytes() == left


def test_a_missing_last_part_does_not_change_a_score_in_silence(bench: Bench) -> None:
    """`accuracy_last3` is the mean over three rounds, two of which the last part has."""
    out = bench.copy("last3")
    (out / LAST).unlink()
    for command in ("load", "report"):
        with pytest.raises(FedrayError, match=f"{LAST} is missing: `fedray resume"):
            bench.answer(command, out)
    done = run_command("resume", out)
    assert done.status == 0, done.err
    assert f"fedray: note: {out / LAST} is missing: what cannot be trusted is in {out}/set-aside/1" in done.err
    assert fedray.load(out).summary["metrics"]["accuracy_last3"] == bench.right["load"][0]["accuracy_last3"]


@pytest.mark.parametrize("kind", ["mode 0000", "a pipe instead"])
def test_a_file_that_may_not_be_read_is_not_called_damaged(bench: Bench, kind: str) -> None:
    """And no command advises to delete it, or sets it aside."""
    if not bench.may_drop and kind == "mode 0000":
        pytest.skip("no second user to be")
    outcome = bench.judge(Damage(kind, STATE, "predict", 0))
    assert outcome.kind == "one line"
    assert ("permission denied: this user may not read it" in outcome.text) == (kind == "mode 0000")
    assert "is damaged" not in outcome.text
    if kind == "mode 0000":
        outcome = bench.judge(Damage(kind, STATE, "resume", 0))
        assert outcome.kind == "one line"
        assert "it may be whole, make it readable first" in outcome.text
