"""Objects that go wrong and damages of run directories end in one line or in the right bits.

One of each kind; all of them: `python tools/long_checks.py hostile`.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from threading import Lock

import pytest
from damage import OF_FILES, OF_FOLDERS, Bench, Damage, make_bench
from own_case import SCENARIO, good_data, good_model
from own_objects import BY_NAME, find_fault, find_fault_of_command, run_objects
from torch import nn

import fedray
from fedray.core.errors import BadInput, DamageWarning, FedrayError

LAST = "rounds.parquet/part-000000004.parquet"
STATE = "checkpoints/round-000004/state.safetensors"


# ------------------------------------------------------------------------------------------ a user's own objects


@pytest.mark.parametrize(
    "name",
    [
        "data_raises_valueerror", "data_nan_in_inputs", "model_answers_a_tuple", "model_nan_in_evaluation",
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


def test_a_network_that_no_other_process_can_have_is_refused(tmp_path: Path) -> None:
    lock = Lock()

    def locked() -> nn.Module:
        with lock:
            return good_model()

    with pytest.raises(BadInput, match=r"model = .*locked: it cannot be sent to the actors of Ray \(TypeError"):
        fedray.run(SCENARIO | {"runtime": "ray"}, out=tmp_path / "run", data=good_data(), model=locked)


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


def test_a_file_that_may_not_be_read_is_not_called_damaged(bench: Bench) -> None:
    """And no command advises to delete it, or sets it aside."""
    if not bench.may_drop:
        pytest.skip("no second user to be")
    for command in ("predict", "resume"):
        outcome = bench.judge(Damage("mode 0000", STATE, command, 0))
        assert outcome.kind == "one line"
        assert "(Permission denied): it may be whole, make it readable first" in outcome.text
