"""Bad input is one line on stderr, exit status 2 (1 while running), no traceback, and nothing that existed changes.

One table: what is typed, and what the line must say. `{run}` is a finished run, `{out}` a directory that does not
exist, `{full}` one that holds a user's file, `{data}` an empty folder, `{broken}` one with a damaged MNIST, `{file}` a
scenario, `{disk}` a full disk that holds a user's file and an earlier report, `{little}` a disk of 200 kB.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from small import run_command, scenario

import fedray

RUN = "run {file} --out {out} "
BAD: list[tuple[str, str]] = [
    # the command line itself
    ("", "Usage: fedray"),
    ("rnu x", "No such command 'rnu'"),
    ("run", "Missing argument 'SCENARIO': see `fedray run --help`"),
    ("run {file} --ouy x", "No such option"),
    ("table {file} --out {out} --jobs many", "'many' is not a valid integer"),
    ("table {file}", "Missing option '--out'"),
    ("list nothing", "'nothing' is not one of 'methods'"),
    ("data get nothing --root {data}", "no such data set"),
    ("data get femnist --root {data}", "it cannot be downloaded"),
    # scenario files
    ("run {data}/no.yaml --out {out}", "no.yaml does not exist"),
    ("run {data} --out {out}", "is a directory"),
    ("run {bad} --out {out}", "not valid YAML"),
    ("check {empty}", "the scenario is empty"),
    ("run {sweep} --out {out}", "is a sweep file: use `fedray tune`"),
    ("tune {file} --out {out}", "is a scenario, not a sweep: use `fedray run`"),
    ("check {bad}", "bad.yaml, line 2"),
    ("table {file} --out {out}", "table is empty"),
    # keys: unknown, of a wrong type, out of range
    (RUN + "local.learning_rate=1", "local.learning_rate is not a key of local: did you mean local.lr?"),
    (RUN + "locale.lr=1", "locale is not a key of a scenario: did you mean local?"),
    (RUN + "method.name=fedavgg", "method.name = 'fedavgg' is not a known method: did you mean fedavg?"),
    (RUN + "method.name=fedadam", "write method.name=fedavg server.optimizer=adam"),
    (RUN + "method=FedYogi", "write method.name=fedavg server.optimizer=yogi"),
    (RUN + "method=fed_adagrad", "server.optimizer=adam or yogi"),
    (RUN + "method=fedavgm", "write method.name=fedavg server.optimizer=momentum"),
    (RUN + "method=fedavg method.name=fedprox", "method.name is set twice"),
    (RUN + "clients=ten", "clients = 'ten' is not a mapping"),
    (RUN + "data.name=minst", "data.name = 'minst' is not a known data set: did you mean mnist?"),
    (RUN + "model.name=cnnn", "model.name = 'cnnn' is not a known model: did you mean cnn?"),
    (RUN + "data.partition.name=dirichlett", "did you mean dirichlet?"),
    (RUN + "rounds=ten", "rounds = 'ten' is not a whole number"),
    (RUN + "rounds=-1", "rounds = -1 is out of range"),
    (RUN + "rounds=1.5", "rounds = 1.5 is not a whole number"),
    (RUN + "rounds", "'rounds' is not an override: write key=value"),
    (RUN + "local=3", "local = 3 is not a mapping"),
    (RUN + "local.lr=-1", "local.lr = -1 is out of range"),
    (RUN + "local.lr=.nan", "local.lr"),
    (RUN + "data.hold_out=0.001", "data.hold_out = 0.001 holds out no row"),
    (RUN + "method.models=0", "method.models = 0 is out of range"),
    (RUN + "method.name=fedavg method.models=5", "method.models = 5, but fedavg trains one model"),
    (RUN + "method.name=fedprox method.models=5", "method.models = 5, but fedprox trains one model"),
    (RUN + "clients.number=1e12", "clients.number = 1000000000000"),
    (RUN + "compress.kind=topk compress.ratio=0", "compress.ratio = 0 is out of range"),
    # keys against each other, and against the data
    (
        RUN + "server.coefficients=paper_eq2 server.weighting=examples",
        "server.weighting = examples, but server.coefficients is paper_eq2",
    ),
    (
        RUN + "evaluate.target='{{metric: acuracy, value: 0.9}}'",
        "evaluate.target.metric = acuracy: this run has no such metric",
    ),
    (
        RUN + "clients.tiers.hpc.number=60 clients.tiers.lpc.number=1",
        "clients.tiers.hpc.number = 60, but clients.number",
    ),
    (RUN + "clients.tiers.a.num_gpus=0.3", "clients.tiers.a.num_gpus = 0.3"),
    (RUN + "clients.tiers.a.models_per_round=9", "models_per_round = 9, but method.models is 5"),
    (RUN + "participation.per_round=7", "participation.per_round = 7, but clients.number is 6"),
    (RUN + "local.epochs=2 local.steps=2", "give one of the two"),
    (RUN + "clients.number=5000", "clients.number = 5000, but"),
    (RUN + "data.partition.name=classes data.partition.classes=20", "data.partition.classes = 20, but the data has 10"),
    (RUN + "data.partition.name=natural", "data.partition.name = natural"),
    (RUN + "data.fold=3", "data.fold = 3, but digits has folds 0 to 0"),
    (RUN + "model.objective=half_mse", "model.objective = half_mse, but digits has classes"),
    (RUN + "evaluate.stop_at='{{metric: rmse, value: 1}}'", "evaluate.stop_at.metric = rmse"),
    (RUN + "clients.tiers.a.num_gpus=1", "num_gpus = 1"),
    (RUN + "clients.trace={data}/no.csv", "no.csv"),
    (RUN + "schedule.kind=walk", "schedule.kind = walk, but fed_ensemble has a server"),
    (RUN + "graph.kind=torus", "graph.kind = torus, but fed_ensemble uses no graph"),
    (RUN + "method.name=random_walk graph.kind=edges graph.edges={data}/no.csv", "no.csv"),
    (RUN + "on_client_error=ignore", "on_client_error = 'ignore'"),
    (RUN + "client_timeout=0", "client_timeout = 0"),
    # data files
    (RUN + "data.name=mnist data.root={data} data.limit=20", "data.name = mnist, but there is no {data}"),
    (RUN + "data.name=cifar10 data.root={data}/nowhere data.limit=20", "run `fedray data get cifar10`"),
    (RUN + "data.name=mnist data.root={broken} data.limit=20", "is damaged"),
    (RUN + "data.name=uci/energy data.root={data}", "data.name = uci/energy, but there is no"),
    (RUN + "data.name=table data.target=y data.path={data}/no.csv", "no.csv"),
    (RUN + "data.name=table data.target=y data.path={full}/precious.txt", "precious.txt"),
    # directories
    ("run {file} --out {run}", "holds another run: choose another directory, or `fedray resume"),
    ("run {file} --out {full}", "holds other files: choose another directory"),
    ("run {file} --out {full}/precious.txt", "holds other files"),
    ("run {file} --out {full}/precious.txt/below", "precious.txt is no directory"),
    ("resume {full}", "is no run directory"),
    ("resume {out}", "is no run directory"),
    ("bench --only startup --out {out}/below/x.md", "give a file in a directory that exists"),
    ("report {full}", "no scenario.yaml there"),
    ("report {run} {out}", "no scenario.yaml there"),
    ("report {run} --out {full}/precious.txt/x.html", "cannot be written"),
    ("export {full}", "is no run directory"),
    # own code and clusters
    (RUN + "--import no_such_module", "--import no_such_module: ModuleNotFoundError"),
    (RUN + "--import ..bad", "--import ..bad"),
    (RUN + "--address auto", "--address auto, but runtime = inline"),
    ("check {file} --address auto", "--address auto, but runtime = inline"),
    ("resume {run} --address auto", "--address auto, but runtime = inline"),
    ("tune {sweep} --out {out} --address auto", "--address auto, but runtime = inline"),
    (RUN + "runtime=ray --address 127.0.0.1:1", "--address 127.0.0.1:1: nobody answers there"),
]
WHILE_RUNNING: list[tuple[str, str]] = [
    (RUN + "local.lr=1e30 local.epochs=3", "training diverged (NaN, infinite or huge weights) at client"),
    ("export {cut}", "round-000001 is missing: `fedray resume"),
    ("export {damaged}", "state.safetensors is damaged"),
    ("run {file} --out {disk}/new", "No space left on device: free space or choose another --out"),
    ("table {file} table='[{{name: a}}]' --out {disk}/new", "No space left on device: free space or choose another"),
    ("export {run} --out {disk}/new", "No space left on device: free space or choose another --out"),
    ("report {run} --out {disk}/x.html", "cannot be written (No space left on device): free space or choose another"),
    ("report {run} --out {disk}/report.html", "cannot be written (No space left on device): free space"),
    (
        "run {file} --out {little}/new rounds=99 checkpoint.every=1 checkpoint.keep=99 model.hidden=[40]",
        "No space left on device",
    ),
]


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Two small disks, one of them full; nothing where we may not mount."""
    home = tmp_path_factory.mktemp("disks")
    mounted: dict[str, Path] = {}
    for name in ("disk", "little"):
        (home / name).mkdir()
        made = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(home / name)]
        if shutil.which("mount") and subprocess.run(made, capture_output=True).returncode == 0:
            mounted[name] = home / name
    if "disk" in mounted:
        (mounted["disk"] / "report.html").write_text("an earlier report")
        (mounted["disk"] / "precious.bin").write_bytes(b"x" * (196 << 10))
    try:
        yield mounted
    finally:
        for path in mounted.values():
            subprocess.run(["umount", str(path)], check=True)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, disks: dict[str, Path]) -> dict[str, Path]:
    """What the table's names stand for."""
    home = tmp_path_factory.mktemp("bad")
    where = {name: home / name for name in ("run", "out", "full", "data", "broken", "cut", "damaged")}
    for name in ("full", "data", "broken"):
        where[name].mkdir()
    for name in ("run", "cut", "damaged"):
        fedray.run(scenario({"rounds": 1, "report": False}), out=where[name])
    (where["full"] / "precious.txt").write_text("mine")
    raw = where["broken"] / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (raw / f"{part}-ubyte.gz").write_bytes(b"not gzip")
    (where["cut"] / "checkpoints" / "round-000001").rename(where["cut"] / "elsewhere")
    (where["damaged"] / "checkpoints" / "round-000001" / "state.safetensors").write_bytes(b"\xff" * 9)
    for name, text in {
        "file": yaml.safe_dump(scenario()),
        "bad": "rounds: 1\n\tx: 2\n",
        "empty": "# nothing\n",
        "sweep": "scenario: {runtime: inline}\nspace: {local.lr: [0.1]}\nobjectives: accuracy\n",
    }.items():
        where[name] = home / f"{name}.yaml"
        where[name].write_text(text)
    return where | disks


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data, no cache and no runs of the user's are near."""
    monkeypatch.setenv("FEDRAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDRAY_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    monkeypatch.chdir(tmp_path)


def everything(places: dict[str, Path]) -> dict[str, str]:
    """Every file below the table's places, with a digest of what it holds."""
    homes = [places["full"].parent, *(places[name] for name in ("disk", "little") if name in places)]
    files = [path for home in homes for path in home.rglob("*") if path.name != ".lock"]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "" for path in files}


def refused(typed: str, says: str, places: dict[str, Path], status: int) -> list[str]:
    """Runs a line of the table; returns what stood on stderr."""
    for disk in ("disk", "little"):
        if f"{{{disk}}}" in typed and disk not in places:
            pytest.skip("no right to mount a tmpfs")
    result = run_command(*shlex.split(typed.format(**places)))
    assert result.status == status, result
    assert "Traceback" not in result.err + result.out
    assert says.format(**places) in result.err, result.err
    return result.err.splitlines()


def drawn_by_its_command(typed: str, says: str) -> Any:
    """A line of the table; `fedray report` writes a real page."""
    return pytest.param(typed, says, marks=[pytest.mark.short_report] if typed.startswith("report") else [])


LINES = [drawn_by_its_command(*line) for line in BAD]


@pytest.mark.parametrize(("typed", "says"), LINES, ids=[typed.removeprefix(RUN) or "nothing" for typed, _ in BAD])
def test_bad_input_is_one_line_and_changes_nothing(typed: str, says: str, places: dict[str, Path]) -> None:
    before = everything(places)
    lines = refused(typed, says, places, 2)
    assert everything(places) == before
    if typed:  # without a command fedray shows its help
        assert len(lines) == 1, lines
        assert re.match(r"fedray: \S", lines[0])
        assert len(lines[0]) < 700


@pytest.mark.parametrize(
    ("typed", "says"),
    [drawn_by_its_command(*line) for line in WHILE_RUNNING],
    ids=[typed for typed, _ in WHILE_RUNNING],
)
def test_what_fails_while_running_is_one_line(typed: str, says: str, places: dict[str, Path]) -> None:
    """Behind the run's progress, if it made any; nothing that existed before is gone."""
    before = everything(places)
    lines = refused(typed, says, places, 1)
    assert [line for line in lines if not line.startswith("round ")] == lines[-1:]
    assert lines[-1].startswith("fedray: ")
    after = everything(places)
    new = [str(places[disk] / "new") for disk in ("disk", "little") if disk in places]
    own = (str(places["out"]), str(places["damaged"] / "manifest.json"), *new)
    assert {path: digest for path, digest in after.items() if not path.startswith(own)} == {
        path: digest for path, digest in before.items() if not path.startswith(own)
    }
