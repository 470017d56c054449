"""A real local Ray gives the bits of the inline runtime, whatever the packing. One cluster serves the whole file."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from on_ray import CNN, GAUSSIANS, IDLE, PRIVATE, TIERS, WALK, hashes, inline, pictures, run
from small import rows

import fedray
from fedray.bench.measure import list_tree
from fedray.core import native
from fedray.core.errors import BadInput

pytestmark = pytest.mark.usefixtures("cluster")


class BothRuntimes(NamedTuple):
    """One scenario on both runtimes.

    Attributes:
        inline: Its run in this process.
        ray: Its run in two actors.
        watched: The rounds that the watcher of the run in actors was shown.
    """

    inline: fedray.Run
    ray: fedray.Run
    watched: list[int]


@pytest.fixture(scope="module")
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> BothRuntimes:
    """Actors take seconds to start: one run of them serves several tests."""
    request.getfixturevalue("cluster")
    folder, watched = tmp_path_factory.mktemp("both"), list[int]()
    sets = {"gamma": 0.1, "conformal": {"alpha": 0.5, "score": "aps"}}
    scored: dict[str, Any] = {"evaluate": {"clients": "all"}, "predict": sets, "data": {"hold_out": 0.25}}
    actors: dict[str, Any] = {"clients": {"actors": 2}}
    out = folder / "\xfcber Ray"  # every run of such a name died at its first round
    in_actors = run(scored, actors, out=out, watch=lambda shown: watched.append(shown["round"]))
    return BothRuntimes(run(scored, runtime="inline", out=folder / "inline"), in_actors, watched)


def test_a_run_whose_name_is_not_ascii_ends_on_ray_as_elsewhere(both: BothRuntimes) -> None:
    assert (both.ray.path.name, both.ray.summary["rounds"]) == ("\xfcber Ray", 4)


def test_two_actors_change_no_bit_and_no_row(both: BothRuntimes) -> None:
    assert hashes(both.ray) == hashes(both.inline)
    assert rows(both.ray.rounds) == rows(both.inline.rounds)
    assert rows(both.ray.clients) == rows(both.inline.clients)
    assert both.ray.client_scores.equals(both.inline.client_scores)


def test_a_watcher_sees_every_evaluated_round_once(both: BothRuntimes) -> None:
    assert both.watched == [0, 1, 2, 3, 4]


def test_the_manifest_is_the_client_actors_own(both: BothRuntimes) -> None:
    """What ran there: engine, width, self-test; not what the coordinator would have run."""
    inline, ray = (json.loads((one.path / "manifest.json").read_text()) for one in (both.inline, both.ray))
    assert inline["engine"] == ray["engine"]
    assert ray["engine"]["name"] == ("mlp-c" if native.is_available() else "mlp")
    assert (ray["runtime"], ray["actors"], ray["lanes_independent"]) == ("ray", 2, True)


slow = pytest.mark.slow
TORCH: dict[str, Any] = {"lanes": "torch"}
PACKINGS = {  # how clients are packed into actors, how the scenario is changed, what trains where kernels were built
    "1 actor": pytest.param({"actors": 1}, {}, "mlp-c", marks=slow),
    "3 actors": pytest.param({"actors": 3}, {}, "mlp-c", marks=slow),
    "an actor a client": pytest.param({"per_actor": 1}, {}, "mlp-c", marks=slow),  # ten processes start
    "cnn": pytest.param({"actors": 3}, CNN, "conv-c", marks=slow),
    "tiers": pytest.param({"per_actor": 6, "tiers": TIERS}, {"clients": {"tiers": TIERS}, **CNN, **TORCH}, "conv"),
    "private state": pytest.param({"actors": 2}, {**PRIVATE, **CNN}, "conv-c", marks=slow),
    "Gaussians of the clients": pytest.param({"actors": 2}, GAUSSIANS, "vmap", marks=slow),
    "walk": pytest.param({"actors": 3}, WALK, "mlp-c", marks=slow),  # test_faults.py walks in two actors
    "walkers": pytest.param({"per_actor": 1}, WALK, "mlp-c", marks=slow),
    "idle holders": pytest.param({"actors": 2}, {**IDLE, **TORCH}, "mlp", marks=slow),
}


@pytest.mark.parametrize(("packing", "change", "engine"), PACKINGS.values(), ids=PACKINGS)
def test_the_packing_never_changes_a_bit(
    packing: dict[str, Any], change: dict[str, Any], engine: str, tmp_path: Path
) -> None:
    """Inline, any number of actors, one actor a client, tiers of other sizes, compiled or not: one hash."""
    done = run(change, {"clients": packing}, out=tmp_path / "run")
    assert hashes(done) == inline(change)
    trained = json.loads((tmp_path / "run" / "manifest.json").read_text())["engine"]["name"]
    assert trained == (engine if native.is_available() else engine.removesuffix("-c"))


def test_more_than_the_cluster_has_is_one_line(tmp_path: Path) -> None:
    """No hang, and no directory is left in the way of the next try."""
    began = time.monotonic()
    with pytest.raises(BadInput) as caught:
        run({"clients": {"actors": 1, "tiers": {"all": {"num_cpus": 100}}}}, out=tmp_path / "run")
    assert "1 actors need 100 CPU, but the cluster has 12: lower clients.tiers.NAME.num_cpus" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()
    assert time.monotonic() - began < 120


@pytest.mark.slow
def test_a_coordinator_ends_when_its_driver_is_gone(tmp_path: Path) -> None:
    """An exception in the watcher ends the run; what it left goes on, under the same Ray, at once."""

    def stop(_snapshot: dict[str, Any]) -> None:
        raise KeyError("enough")

    long = {"rounds": 40, "local": {"epochs": 20}, "clients": {"actors": 1}}
    with pytest.raises(KeyError):
        run(long, watch=stop, out=tmp_path / "run")
    assert fedray.resume(tmp_path / "run", data=pictures()).summary["rounds"] == 40


def test_another_address_than_the_one_connected_to_is_refused() -> None:
    with pytest.raises(BadInput, match=r"--address 10.9.8.7:6379: this process is connected to .*: leave it out"):
        run({"clients": {"actors": 1}}, address="10.9.8.7:6379")


LOOPBACK = (
    "0100007F",
    "0000000000000000FFFF00000100007F",
    "00000000000000000000000001000000",
)  # as the kernel writes it


def test_a_ray_started_here_listens_on_loopback_only() -> None:
    """Nobody on the network can reach its scheduler, store or workers; there is no dashboard."""
    sockets = set()
    for one in list_tree():
        try:
            links = [str(file.readlink()) for file in Path(f"/proc/{one.id}/fd").iterdir()]
        except OSError:  # it ended
            continue
        sockets |= {link[8:-1] for link in links if link.startswith("socket:[")}
    rows = [line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()]
    open_ = [row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in sockets]
    assert len(open_) > 3
    assert set(open_) <= set(LOOPBACK)


@pytest.mark.slow
def test_clients_with_models_of_their_own_have_the_same_sets_in_actors(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"method": {"name": "ditto", "models": None}, "evaluate": {"clients": "all"}}
    keys |= {"data": {"hold_out": 0.25}, "predict": {"conformal": {"alpha": 0.5, "quantile": "qq"}}}
    in_actors = run(keys, {"clients": {"actors": 3}}, out=tmp_path / "ray")
    alone = run(keys, runtime="inline", out=tmp_path / "inline")
    assert rows(in_actors.rounds) == rows(alone.rounds)
    assert in_actors.client_scores.equals(alone.client_scores)
    assert "conformal_coverage" in alone.client_scores.column_names


@pytest.mark.slow
def test_losses_choose_the_same_clients_and_own_functions_deal_the_same_rows(tmp_path: Path) -> None:
    """Selection by Oort, a partition and a schedule of one's own, and turned images."""

    def deal(labels: Any, clients: int, generator: Any, _options: Any) -> Any:
        return np.array_split(generator.permutation(len(labels)), clients)

    def assign(models: int, _rows: str) -> Any:
        return lambda now, drawn, m, _state: (np.arange(len(m)), (drawn.client + now.t) % models)

    keys: dict[str, Any] = {"participation": {"per_round": 3, "selection": "oort"}, "clients": {"actors": 2}}
    keys |= {"data": {"partition": {"name": "iid", "rotation": 4}}}
    own = {"partition": deal, "schedule": assign}
    done = run(keys, **own, out=tmp_path / "run")
    keys["data"] = {"partition": {"name": "file", "file": str(done.path / "partition.parquet"), "rotation": 4}}
    assert hashes(run(keys, runtime="inline", schedule=assign)) == hashes(done)
