"""What a scenario, a data file or a run directory of somebody else may not do, and what one's own does not reveal.

They may not take all memory, leave their folder, or run code.
"""

import ast
import os
import pickle
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from small import copy_run, run_command, scenario

import fedray
from fedray.assembly import models as memory_needs
from fedray.core.errors import BadInput, FedrayError
from fedray.data.files import untar
from fedray.data.store import open_dataset

pytestmark = pytest.mark.short_report  # a page of a run that is read

PACKAGE = Path(fedray.__file__).parent
RUNS_CODE = ("load", "eval", "exec", "unsafe_load", "system", "extractall", "extract")
SECRET = "xyzzy-e2718281828"


def test_nothing_that_runs_code_reads_a_file() -> None:
    """No pickle, no torch.load, no eval; arrays without objects, safe YAML, filtered archives, no shell."""
    wrong = []
    for module in PACKAGE.rglob("*.py"):
        text = module.read_text()
        if not re.search(r"pickle|shelve|marshal|load|eval|exec|system|extract|shell", text):
            continue
        nodes = list(ast.walk(ast.parse(text)))
        imported = {a.name.split(".")[0] for n in nodes if isinstance(n, ast.Import) for a in n.names}
        imported |= {(n.module or "").split(".")[0] for n in nodes if isinstance(n, ast.ImportFrom)}
        wrong += [f"{module.name} imports {name}" for name in imported & {"pickle", "cloudpickle", "shelve", "marshal"}]
        for call in (node for node in nodes if isinstance(node, ast.Call)):
            words = [word.arg for word in call.keywords]
            last = getattr(call.func, "attr", getattr(call.func, "id", ""))
            if last not in RUNS_CODE and "shell" not in words:
                continue
            name = ast.unparse(call.func)
            given = {word.arg: ast.unparse(word.value) for word in call.keywords}
            bad = name in ("torch.load", "eval", "exec", "yaml.load", "yaml.unsafe_load", "os.system", "joblib.load")
            bad |= name == "np.load" and given.get("allow_pickle") != "False"
            bad |= name.endswith((".extractall", ".extract")) and "filter" not in given
            bad |= given.get("shell") == "True"
            wrong += [f"{module.name}, line {call.lineno}: {name}"] * bad
    assert not wrong


class Bomb:
    """Touches a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedray.Run:
    return fedray.run(scenario({"rounds": 2, "report": False}), out=tmp_path_factory.mktemp("security") / "run")


@pytest.mark.parametrize(
    ("name", "command"),
    [("checkpoints/round-000002/state.safetensors", "export"), ("pictures.npz", "report"), ("scenario.yaml", "report")],
)
def test_a_pickle_in_a_run_directory_is_not_opened(name: str, command: str, run: fedray.Run, tmp_path: Path) -> None:
    folder, mark = copy_run(run, tmp_path / "run", 2), tmp_path / "mark"
    bomb = pickle.dumps(Bomb(mark))
    (folder / name).write_bytes(bomb)
    result = run_command(command, folder)
    said = [line for line in result.err.splitlines() if line.startswith("fedray: ")]
    assert result.status in (1, 2)
    assert len(said) == 1 and Path(name).name in said[0] and "Traceback" not in result.err, result.err
    assert not mark.exists()
    pickle.loads(bomb)  # it would have
    assert mark.exists()


@pytest.mark.parametrize("wrong", ["a link", "2 GB"])
def test_a_link_or_a_huge_file_in_a_run_directory_is_refused(wrong: str, run: fedray.Run, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(run.path, out)
    summary = out / "summary.json"
    content = summary.read_bytes()
    summary.unlink()
    if wrong == "a link":
        (tmp_path / "elsewhere.json").write_bytes(content)
        summary.symlink_to(tmp_path / "elsewhere.json")
    else:
        with summary.open("wb") as file:
            file.truncate(2_000_000_000)
    with pytest.raises(FedrayError, match=r"summary\.json cannot be used"):
        _ = fedray.load(out).summary


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("../evil", {}),
        ("out", {"type": tarfile.SYMTYPE, "linkname": ".."}),
        ("evil", {"type": tarfile.LNKTYPE, "linkname": "../secret"}),
    ],
    ids=["up", "link", "hard link"],
)
def test_an_archive_does_not_leave_its_folder(name: str, fields: dict[str, Any], tmp_path: Path) -> None:
    info = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(info, key, value)
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        archive.addfile(info)
    with pytest.raises(BadInput, match=r"a\.tar\.gz is damaged"):
        untar("cifar10", tmp_path / "a.tar.gz", tmp_path / "there")
    assert {path.name for path in tmp_path.rglob("*")} <= {"a.tar.gz", "there"}


def test_a_foreign_pickle_is_not_read_as_cifar(tmp_path: Path) -> None:
    """The set is a pickle as its authors made it: torchvision opens the very files that it knows, by their digests."""
    folder = tmp_path / "CIFAR10" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"):
        (folder / name).write_bytes(pickle.dumps(Bomb(tmp_path / "mark")))
    with pytest.raises(BadInput, match="is damaged"):
        open_dataset("cifar10", tmp_path)
    assert not (tmp_path / "mark").exists()


SYNTHETIC, STRATA = "data.name=synthetic", "schedule.rows=stratum"
TOO_MUCH = [
    ("method.models x replicates x model", ["method.models=10000", "model.hidden=[65536]"]),
    ("clients.number x replicates", [SYNTHETIC, "clients.number=1e9", "participation.per_round=1", STRATA]),
    ("evaluate.clients x replicates", ["clients.number=1e4", "replicates=1e4", "participation.per_round=1",
                                        "evaluate.clients=all", "method.models=1", "model.name=linear"]),
    ("method.models x replicates x test rows x model", ["method={name: pvi, samples: 10000}", "replicates=50"]),
    ("data.clients x data.samples", ["data={name: sine, samples: 1000000}", "clients.number=1e6"]),
    ("clients.per_actor", [SYNTHETIC, "clients.number=1e8", "participation.per_round=9", "runtime=ray",
                           "clients.per_actor=1", "schedule.rows=client", "method.models=2"]),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "changes"), TOO_MUCH, ids=[" ".join(changes)[:70] for _, changes in TOO_MUCH])
def test_a_product_of_keys_that_no_machine_holds_is_refused(
    keys: str, changes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each value is in its range; the product would take 16 GB. The line names the keys, and nothing was allocated."""
    monkeypatch.setattr(memory_needs, "read_machine_memory", lambda: 16e9)
    (tmp_path / "a.yaml").write_text("rounds: 1\nruntime: inline\n")
    result = run_command("check", tmp_path / "a.yaml", *changes)
    assert result.status == 2, result
    assert len(result.err.splitlines()) == 1
    assert all(key in result.err for key in keys.split(", ")), result.err


def test_a_run_directory_holds_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the environment: not the variables that hold keys, not the user, not the machine's name."""
    for name in ("AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "HF_TOKEN", "RAY_AUTH_TOKEN", "USER", "HOSTNAME"):
        monkeypatch.setenv(name, SECRET)
    (tmp_path / "a.yaml").write_text("rounds: 1\nruntime: inline\ndata: {limit: 200}\nclients: {number: 5}\n")
    assert run_command("run", tmp_path / "a.yaml", "--out", tmp_path / "run").status == 0
    assert run_command("resume", tmp_path / "run").status == 0
    found = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(found) > 5
    secrets = SECRET.encode(), os.uname().nodename.encode() + b"\n"
    assert [path for path in found if any(word in path.read_bytes() for word in secrets)] == []
