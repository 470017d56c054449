"""Shifted clients: what their rows show changes as promised, and nothing else does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedray
from fedray.data.catalogue import load_data
from fedray.data.deal import build_shards
from fedray.data.shards import Shards
from fedray.data.shifts import draw_groups

N = 8


def shard(seeds: tuple[int, ...] = (0,), **options: Any) -> Shards:
    return build_shards(load_data("digits"), "iid", options, N, list(seeds), hold_out=0.1)


def rows_of(shards: Shards, world: int, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    found = shards.fetch(np.array([world]), np.array([client]))
    return found.x[found.rows[0]], found.labels(found.rows, 0)[0]


@pytest.mark.parametrize("world", [0, 1])
@pytest.mark.parametrize("turns", [2, 4])
def test_a_client_turns_all_its_images_by_its_own_turn(world: int, turns: int) -> None:
    plain, turned = shard((0, 5)), shard((0, 5), rotation=turns)
    group = draw_groups((0, 5)[world], "rotation", N, turns)
    assert sorted(group.tolist()) == sorted([*range(turns)] * (N // turns))
    for client in range(N):
        (x, y), (z, same) = rows_of(plain, world, client), rows_of(turned, world, client)
        assert torch.equal(z, torch.rot90(x, int(group[client]) * (4 // turns), (-2, -1))) and torch.equal(y, same)
    held = [torch.rot90(plain.holdout(world)[0][rows], int(group[i]) * (4 // turns), (-2, -1))
            for i in range(N) for rows in [torch.from_numpy(plain.client_holdout(world, i))]]  # fmt: skip
    assert torch.equal(turned.holdout(world)[0], torch.cat(held))
    assert torch.equal(turned.test(world)[0], plain.test(world)[0])


def test_noise_grows_with_the_rank_of_the_client_and_bytes_stay_bytes() -> None:
    plain, noisy = shard(), shard(feature_noise=2.0)
    change = [(rows_of(noisy, 0, i)[0].double() - rows_of(plain, 0, i)[0].double()).std().item() for i in range(N)]
    assert rows_of(noisy, 0, 0)[0].dtype == torch.uint8
    assert min(change) < max(change) / 3
    assert np.all(np.diff(np.sort(change)) > 0)


def test_a_group_of_clients_has_a_permutation_of_the_classes_and_wrong_labels_come_on_top() -> None:
    plain, permuted = shard(), shard(permute_labels=2)
    group, maps = draw_groups(0, "label groups", N, 2), set()
    for client in range(N):
        (x, y), (same, z) = rows_of(plain, 0, client), rows_of(permuted, 0, client)
        assert torch.equal(x, same)
        meaning = dict(zip(y.tolist(), z.tolist(), strict=True))
        assert all(meaning[a] == b for a, b in zip(y.tolist(), z.tolist(), strict=True))
        assert (group[client] == 0) == all(a == b for a, b in meaning.items())
        maps.add((int(group[client]), tuple(sorted(meaning.items()))))
    assert len(maps) == 2
    flipped = shard(permute_labels=2, flipped=1.0)
    assert torch.equal(rows_of(flipped, 0, 0)[1], (rows_of(permuted, 0, 0)[1] + 1) % 10)


def test_a_run_with_shifted_clients_differs_and_pooled_clients_keep_their_shifts() -> None:
    keys: dict[str, Any] = {"rounds": 1, "runtime": "inline", "report": False}
    keys |= {"data": {"name": "digits", "limit": 100}, "model": {"name": "linear"}}

    def hash_of(method: str, **options: Any) -> Any:
        data = {**keys["data"], "partition": {"name": "iid", **options}} if options else keys["data"]
        known = {} if method == "centralized" and not options else {"clients": 4}
        return fedray.run({**keys, **known, "method": method, "data": data}).summary["model_hash"]

    for method in ("fedavg", "centralized"):
        found = {hash_of(method, **options) for options in ({}, {"rotation": 4}, {"permute_labels": 2})}
        assert len(found) == 3
