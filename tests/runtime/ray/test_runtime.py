"""A real local Ray gives the bits of the inline runtime, whatever the packing. One cluster serves the whole file."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from on_ray import CNN, IDLE, PRIVATE, TIERS, WALK, hashes, inline, pictures, run
from small import rows

import fedray
from fedray.bench.measure import list_tree
from fedray.core.errors import BadInput

pytestmark = pytest.mark.usefixtures("no_report", "cluster")


@pytest.mark.parametrize(
    ("packing", "change"),
    [
        pytest.param({"actors": 1}, {}, marks=pytest.mark.slow),
        pytest.param({"actors": 2}, {}, marks=pytest.mark.slow),
        ({"actors": 3}, {}),
        pytest.param({"per_actor": 1}, {}, marks=pytest.mark.slow),  # ten processes start
        pytest.param({"actors": 3}, CNN, marks=pytest.mark.slow),
        ({"per_actor": 4, "tiers": TIERS}, {"clients": {"tiers": TIERS}}),
        ({"actors": 2}, PRIVATE),
        ({"actors": 3}, WALK),
        pytest.param({"per_actor": 1}, WALK, marks=pytest.mark.slow),
        ({"actors": 3}, IDLE),
    ],
    ids=[
        "1 actor",
        "2 actors",
        "3 actors",
        "an actor a client",
        "cnn",
        "tiers",
        "private state",
        "walk",
        "walkers",
        "idle holders",
    ],
)
def test_the_packing_never_changes_a_bit(packing: dict[str, Any], change: dict[str, Any]) -> None:
    """Inline, any number of actors, one actor a client, tiers of other sizes: one hash."""
    assert hashes(run(change, {"clients": packing})) == inline(change)


def test_rows_are_the_same_on_both_runtimes() -> None:
    here, there = run(runtime="inline"), run({"clients": {"actors": 2}})
    assert rows(here.rounds) == rows(there.rounds)
    assert rows(here.clients) == rows(there.clients)


@pytest.mark.parametrize(
    ("tier", "says"),
    [
        ({"num_cpus": 100}, "1 actors need 100 CPU, but the cluster has 12: lower clients.tiers.NAME.num_cpus"),
        ({"num_gpus": 3}, "1 actors need 3 GPU, but the cluster has 0: lower clients.tiers.NAME.num_gpus"),
        ({"resources": {"moon": 1}}, "1 actors need 1 moon, but the cluster has 0: lower clients.tiers.NAME.resources"),
        ({"resources": {"lab": 2}}, "1 actors need 2 lab, but the cluster has 1"),
    ],
)
def test_more_than_the_cluster_has_is_one_line(tier: dict[str, Any], says: str, tmp_path: Path) -> None:
    """No hang, and no directory is left in the way of the next try."""
    began = time.monotonic()
    with pytest.raises(BadInput) as caught:
        run({"clients": {"actors": 1, "tiers": {"all": tier}}}, out=tmp_path / "run")
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()
    assert time.monotonic() - began < 120


def test_a_watcher_sees_every_evaluated_round_once() -> None:
    seen: list[int] = []
    run({"clients": {"actors": 2}}, watch=lambda shown: seen.append(shown["round"]))
    assert seen == [0, 1, 2, 3, 4]


def test_a_coordinator_that_nobody_watches_ends(tmp_path: Path) -> None:
    """An exception in the watcher ends the run; what it left goes on, under the same Ray, at once."""

    def stop(_snapshot: dict[str, Any]) -> None:
        raise KeyError("enough")

    slow = {"rounds": 40, "local": {"epochs": 20}, "clients": {"actors": 2}}
    with pytest.raises(KeyError):
        run(slow, watch=stop, out=tmp_path / "run")
    assert fedray.resume(tmp_path / "run", data=pictures()).summary["rounds"] == 40


def test_another_address_than_the_one_connected_to_is_refused() -> None:
    with pytest.raises(BadInput, match=r"--address 10.9.8.7:6379: this process is connected to .*: leave it out"):
        run({"clients": {"actors": 1}}, address="10.9.8.7:6379")


def test_the_manifest_is_the_client_actors_own(tmp_path: Path) -> None:
    """What ran there: engine, width, self-test; not what the coordinator would have run."""
    told = []
    for runtime in ("inline", "ray"):
        run({"rounds": 1, "clients": {"actors": 2}}, runtime=runtime, out=tmp_path / runtime)
        told.append(json.loads((tmp_path / runtime / "manifest.json").read_text()))
    assert told[0]["engine"] == told[1]["engine"]
    assert told[1]["engine"]["name"] == "mlp"
    assert (told[1]["runtime"], told[1]["actors"], told[1]["lanes_independent"]) == ("ray", 2, True)


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
