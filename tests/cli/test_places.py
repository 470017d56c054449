"""Where a command writes: a second run of one file gets a directory of its own, and what is taken is said at once."""

import subprocess
import sys
from pathlib import Path

import pytest
from small import run_command, scenario, write_keys

import fedray
from fedray.core.errors import BadInput
from fedray.process import end_on_signals
from fedray.storage.directory import claim_numbered, refuse_taken, set_run_aside

HEAVY = {"torch", "ray", "pandas", "matplotlib", "optuna", "sklearn"}


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scenario in the working directory."""
    monkeypatch.chdir(tmp_path)
    return write_keys(tmp_path, scenario({"rounds": 1, "report": False}))


@pytest.mark.usefixtures("small")
def test_a_second_run_of_one_file_was_refused() -> None:
    """It gets the next number, also beside a directory that is empty; bad input leaves no directory."""
    first = run_command("run", "small.yaml")
    second = run_command("run", "small.yaml")
    assert (first.status, second.status) == (0, 0), second.err
    assert "runs/small is taken: this run is written to runs/small-2" in second.err.splitlines()
    assert [first.out.splitlines()[-1], second.out.splitlines()[-1]] == ["runs/small", "runs/small-2"]
    wrong = run_command("run", "small.yaml", "clients=5000")
    assert (wrong.status, len(wrong.err.splitlines())) == (2, 1)
    assert sorted(path.name for path in Path("runs").iterdir()) == ["small", "small-2"]


@pytest.mark.usefixtures("small")
def test_force_replaces_a_run_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_command("run", "small.yaml", "--out", "a").status == 0
    (tmp_path / "a" / "mark").write_text("of the first run")
    refused = run_command("run", "small.yaml", "--out", "a")
    assert (refused.status, "or add --force" in refused.err) == (2, True)
    monkeypatch.setitem(sys.modules, "mlflow", None)  # that it is not installed is said late
    for change in ("clients=5000", "loggers=[mlflow]"):
        wrong = run_command("run", "small.yaml", "--out", "a", "--force", change)  # the old run is still there
        assert (wrong.status, (tmp_path / "a" / "mark").is_file()) == (2, True)
    hidden = list[int]()  # copies of the old run at the end of the training: a kill leaves none
    end = "fedray.runtime.session.write_report_data"
    monkeypatch.setattr(end, lambda *_, **__: hidden.append(len(list(tmp_path.glob(".a.*")))))
    assert run_command("run", "small.yaml", "rounds=2", "--out", "a", "--force").status == 0 and hidden == [0]
    assert (fedray.load("a").summary["rounds"], (tmp_path / "a" / "mark").exists()) == (2, False)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("mine")
    assert run_command("run", "small.yaml", "--out", "other", "--force").status == 2
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert run_command("run", "small.yaml", "--out", "link", "--force").status == 2
    assert (tmp_path / "other" / "thesis.tex").read_text() == "mine"
    assert fedray.load("a").summary["rounds"] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "link", "other", "small.yaml"]


def test_two_processes_that_ask_at_once_get_two_directories(tmp_path: Path) -> None:
    with claim_numbered(tmp_path / "runs" / "x") as one, claim_numbered(tmp_path / "runs" / "x") as two:
        assert (one.name, two.name) == ("x", "x-2")
    assert list(tmp_path.iterdir()) == []


def test_a_signal_leaves_the_old_run_and_no_empty_directory(tmp_path: Path) -> None:
    """Whose hooks are called wherever the command is."""
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "scenario.yaml").write_text("rounds: 1")
    with end_on_signals() as ending, set_run_aside(tmp_path / "old"), claim_numbered(tmp_path / "new"):
        for hook in ending.hooks:
            hook()
        assert [path.name for path in tmp_path.iterdir()] == ["old"] and (tmp_path / "old" / "scenario.yaml").is_file()


def test_a_run_that_is_written_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused at once: whoever waited for it would remove it when it is finished."""
    from fedray.storage import directory

    (tmp_path / "run" / "checkpoints").mkdir(parents=True)  # left by a run that could not write its first file
    directory.make_run_directory(tmp_path / "run", "rounds: 1")
    refuse_taken(tmp_path / "run", force=True)
    monkeypatch.setattr("fedray.files.plain.time.sleep", lambda _seconds: pytest.fail("it waits"))
    with directory.lock_run_directory(tmp_path / "run"):
        with pytest.raises(BadInput, match="being written by another"):
            refuse_taken(tmp_path / "run", force=True)
        with pytest.raises(BadInput, match="being written by another"), set_run_aside(tmp_path / "run"):
            pass
        directory.discard_run_directory(tmp_path / "run", fresh=True)  # of a command that another one has overtaken
    assert (tmp_path / "run" / "scenario.yaml").is_file()
    (other := tmp_path / "other").mkdir()
    monkeypatch.setattr(Path, "mkdir", lambda path, **_: (path.parent / "scenario.yaml").write_text("theirs"))
    with pytest.raises(BadInput):  # it was empty a moment ago
        directory.make_run_directory(other, "rounds: 1")
    assert (other / "scenario.yaml").read_text() == "theirs"


TYPED = (
    "run missing.yaml", "run small.yaml method=fedavgg", "run small.yaml --out taken", "resume taken",
    "table small.yaml --out out", "tune small.yaml", "report taken",
    "run small.yaml --out file/run", "table small.yaml --out file/run", "tune sweep.yaml --out file/run",
    "export held --out file/run", "report held --out file/page.html",
)  # fmt: skip


def test_what_needs_no_torch_is_said_before_it_is_imported(small: Path) -> None:
    for name in ("taken", "held/checkpoints"):
        (small.parent / name).mkdir(parents=True)
    for name, text in (("taken/mine.txt", "mine"), ("file", ""), ("held/scenario.yaml", "rounds: 1")):
        (small.parent / name).write_text(text)
    (small.parent / "sweep.yaml").write_text("{scenario: small.yaml, space: {seed: [1]}, objectives: [accuracy]}")
    code = (
        "import sys\nfrom fedray.cli.commands import main\nmain(['list'])\n"
        f"for typed in {TYPED!r}:\n"
        "    try:\n        main(typed.split())\n"
        f"    except SystemExit as end:\n        print(end.code, sorted({HEAVY!r} & set(sys.modules)))\n"
        "import fedray.report.page\nprint('a report', {'torch', 'networkx'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *listed, report = done.stdout.splitlines()
    assert listed[-len(TYPED) :] == ["2 []"] * len(TYPED) and "fed_ensemble" in done.stdout, done
    assert report == "a report set()"
    lines = done.stderr.splitlines()
    assert len(lines) == len(TYPED) and all("cannot be written" in line for line in lines[-5:]), done.stderr
