"""The command line does what its help says, from a scenario to files that others can read."""

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import yaml
from small import copy_run, run_command, scenario, write_keys

import fedray
from fedray.cli import commands
from fedray.scenario import names
from fedray.scenario.loader import read_scenario, to_plain
from fedray.scenario.nested import flatten
from fedray.scenario.options import CLASSIFIERS
from fedray.scenario.shipped import find_scenario_file


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedray.Run:
    """A run made by the command line."""
    folder = tmp_path_factory.mktemp("cli")
    result = run_command("run", write_keys(folder, scenario({"report": False})), "rounds=4", "--out", folder / "run")
    assert result.status == 0, result.err
    return fedray.load(folder / "run")


@pytest.mark.short_report
def test_run_shows_its_progress_and_its_result(tmp_path: Path) -> None:
    """Progress on stderr, the result on stdout; overrides win over the file."""
    result = run_command("run", write_keys(tmp_path, scenario()), "rounds=2", "local.lr=0.1", "--out", tmp_path / "run")
    assert result.status == 0, result.err
    lines = result.err.splitlines()
    assert lines[0].startswith("round 0/2  accuracy 0.") and lines[-1].startswith("round 2/2  accuracy 0.")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert f"{'accuracy':38} {summary['metrics']['accuracy']['mean']:.4f}" in result.out
    assert "wall time of the rounds" in result.out and "(without start-up and report)" in result.out
    assert f"model_hash {summary['model_hash'][:16]}" in result.out
    assert result.out.splitlines()[-1] == str(tmp_path / "run" / "report.html")
    assert yaml.safe_load((tmp_path / "run" / "scenario.yaml").read_text())["local"]["lr"] == 0.1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_result_that_cannot_be_printed_failed_a_run(run: fedray.Run) -> None:
    with Path("/dev/full").open("w") as full, redirect_stdout(full), redirect_stderr(said := io.StringIO()):
        commands.main(["resume", str(run.path), "--no-report"])  # does not raise, so its status is 0
    assert said.getvalue().splitlines()[-1] == (
        f"fedray: the run is complete in {run.path}; only its result could not be printed (No space left on device)"
    )


def test_check_says_what_a_scenario_comes_to_and_runs_nothing(tmp_path: Path) -> None:
    tiers = {"strong": {"number": 2, "models_per_round": "all", "uplink": 5e6}, "weak": {}}
    cells = [{"name": "one", "overrides": {"rounds": 2}}]
    given = write_keys(tmp_path, scenario({"clients": {"tiers": tiers}, "table": cells}))
    result = run_command("check", given)
    assert result.status == 0, result.err
    d = 65 * 8 + 9 * 10
    dense = f"{(2 * 5 + 4) * 4 * d / 1000:.1f} kB"
    for first, words in (
        ("method", "fed_ensemble: 5 models, 4 rounds, schedule permutation"),
        ("data", "digits, 6 clients by dirichlet"),
        ("model", f"mlp: {d} parameters"), ("jobs", f"{2 * 5 + 4:,} a round"),
        ("bytes", f"about {dense} down and {dense} up a round, if all jobs count; dense"),
        ("tier strong", "2 clients, 5 models a round"), ("tier weak", "4 clients, 1 models a round"),
        ("cell one", "fed_ensemble, 2 rounds"),
    ):  # fmt: skip
        assert any(line.startswith(first) and words in line for line in result.out.splitlines()), (words, result.out)
    assert "compress.ratio = 0.3 cannot act" in run_command("check", given, "compress.ratio=0.3").err
    assert "topk, ratio 0.3" in run_command("check", given, "compress.ratio=0.3", "compress.kind=topk").out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.yaml"]


def test_two_pages_said_that_check_prints_every_key_and_it_printed_a_summary(tmp_path: Path, run: fedray.Run) -> None:
    result = run_command("check", write_keys(tmp_path, scenario({"report": False})), "--all")
    assert result.status == 0 and result.out == (run.path / "scenario.yaml").read_text()
    assert result.out == run_command("check", write_keys(tmp_path, yaml.safe_load(result.out)), "--all").out
    changed = run_command("check", write_keys(tmp_path, scenario()), "local.lr=0.5", "--all")
    assert yaml.safe_load(changed.out)["local"]["lr"] == 0.5


def test_a_report_of_all_cells_of_a_table_was_refused(
    tmp_path: Path, run: fedray.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cells/*` has `NAME.yaml` beside `NAME`; a YAML file alone is still refused."""
    drawn: list[list[Path]] = []
    monkeypatch.setattr("fedray.report.page.write_report", lambda folders, _out: drawn.append(folders))
    given = write_keys(tmp_path, scenario())
    done = run_command("report", given, run.path, given, "--out", tmp_path / "page.html")
    assert done.status == 0 and drawn == [[run.path]], done.err
    for folder in (given, run.path.parent):
        assert "is no run directory" in run_command("report", folder).err


@pytest.mark.short_report
def test_report_writes_one_file_for_one_run_or_several(run: fedray.Run, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*") if path.is_file()}
    one, both = tmp_path / "one.html", tmp_path / "both.html"
    other = copy_run(run, tmp_path / "other", 4)  # a run that was interrupted is shown as far as it came
    assert run_command("report", run.path, "--out", one).out.strip() == str(one)
    result = run_command("report", run.path, other, "--out", both)
    assert result.status == 0, result.err
    assert "<svg" in one.read_text() and "other" in both.read_text()
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*") if path.is_file()} == before


def test_list_names_everything_a_scenario_may_say_and_docs_explain_what_a_module_adds(tmp_path: Path) -> None:
    known = {*CLASSIFIERS, *(name for kind in names.KINDS.values() for name in kind.specs)}
    result = run_command("list")
    assert result.status == 0
    assert {line.split()[0] for line in result.out.splitlines() if line.startswith("  ")} == known
    listed = run_command("list", "models").out.splitlines()[1:]
    assert {line.split()[0] for line in listed} == set(names.KINDS["model"].specs)
    mine = tmp_path / "module_of_a_set.py"
    mine.write_text("from fedray.scenario import names\nnames.allow_name('data', 'own', options={'z': 7})")
    assert "data.z (own)\n    number; default 7" in run_command("docs", "data", "--import", mine).out


def test_data_get_asks_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision import datasets

    asked = []
    monkeypatch.setattr(datasets, "MNIST", lambda root, train, download: asked.append((root, train, download)))
    result = run_command("data", "get", "mnist", "--root", tmp_path)
    assert result.status == 0, result.err
    assert asked == [(tmp_path, True, True), (tmp_path, False, True)]
    assert result.out.strip().startswith(str(tmp_path))


@pytest.mark.parametrize(("metric", "value"), [("accuracy", 0.3), ("nll", 2.0)])
def test_a_run_stops_early_at_its_target(tmp_path: Path, metric: str, value: float) -> None:
    """The round that reaches it is the last one: evaluated, saved, and the one that answers."""
    out, rule = tmp_path / "run", f"evaluate.stop_at={{metric: {metric}, value: {value}}}"
    result = run_command("run", write_keys(tmp_path, scenario({"report": False})), "rounds=12", rule, "--out", out)
    assert result.status == 0, result.err
    run = fedray.load(out)
    scores = run.rounds[metric].to_pylist()
    reached = [score <= value if metric == "nll" else score >= value for score in scores]
    assert reached == [False] * (len(scores) - 1) + [True]
    assert run.summary["rounds"] == len(scores) - 1 == run.progress.round < 12
    assert run.summary["metrics"][metric]["mean"] == scores[-1]


@pytest.mark.parametrize("name", ["quickstart", "papers/shefl_fig1_fmnist"])
def test_docs_say_what_each_key_of_a_scenario_means(name: str) -> None:
    """Options of methods, data, partitions and networks too; a key that is none ends in the nearest one."""
    everything = run_command("docs").out
    for key, value in flatten(to_plain(read_scenario(find_scenario_file(name)))).items():
        if not key.startswith("table"):
            told = run_command("docs", key)
            assert told.status == 0 and len(told.out.splitlines()) > 1, (key, value)
    assert "    The share of the training samples that is held out" in everything
    assert "did you mean local.lr?" in run_command("docs", "local.lrr").err
    assert run_command("docs", "local").out.count("\nlocal.") > 5
