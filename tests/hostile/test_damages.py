"""Whatever is damaged in a run directory: every command gives the right bits or one line, and ends.

    python -m pytest -q -m slow -s tests/hostile/test_damages.py

makes all damages of all files; a few of each kind are made always.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from damage import OF_FILES, OF_FOLDERS, Bench, Damage, make_bench
from small import run_command

import fedray
from fedray.core.errors import DamageWarning, FedrayError

LAST = "rounds.parquet/part-000000004.parquet"
STATE = "checkpoints/round-000004/state.safetensors"


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    """A run, and what every command says of it."""
    with make_bench() as made:
        yield made


def test_a_sample_of_damages_ends_in_the_right_bits_or_in_one_line(bench: Bench) -> None:
    """One of each kind, each with another file and command."""
    chance, tried = random.Random(3), bench.list_damages()
    for kind in [*OF_FILES, *OF_FOLDERS]:
        damage = chance.choice([one for one in tried if one.kind == kind])
        outcome = bench.judge(damage)
        assert outcome.is_good, (damage, outcome)


def test_the_page_on_what_may_fail_counts_the_damages(bench: Bench) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()
    assert f"\nthe {len(bench.files)} files and {len(bench.folders)} folders of a finished run" in page
    assert f"\n| {len(bench.list_damages()):,} in all |" in page


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
    shutil.rmtree(out.parent)


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
    shutil.rmtree(out.parent)


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


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_every_damage_of_every_file_ends_in_the_right_bits_or_in_one_line(bench: Bench) -> None:
    damages = bench.list_damages()
    assert len(damages) >= 600
    found: Counter[str] = Counter()
    for damage in damages:
        outcome = bench.judge(damage)
        found[outcome.kind] += 1
        if not outcome.is_good:
            print(outcome, damage)
    print(found)
    assert set(found) <= {"right bits", "one line"}, found
