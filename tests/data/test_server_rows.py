"""The server's rows as shards: client 0 has them, in every world its own, and nobody else has any."""

from __future__ import annotations

import numpy as np
import torch

from fedray.data.catalogue import load_data
from fedray.data.deal import build_shards
from fedray.data.shards import ServerShards


def test_client_zero_has_the_servers_rows_of_each_world_whatever_the_order() -> None:
    whole = build_shards(load_data("digits"), "iid", {}, clients=4, seeds=[0, 1], server=0.1)
    shards = ServerShards(whole)
    world, client = np.array([1, 0, 1, 0]), np.array([0, 0, 2, 3])
    fetched = shards.fetch(world, client)
    assert fetched.size.tolist() == [143, 143, 0, 0] == shards.sizes(world, client).tolist()
    for job, w in enumerate((1, 0)):
        x, y = whole.server(w)
        rows = fetched.rows[job, : fetched.size[job]]
        assert torch.equal(fetched.x[rows], x)
        assert torch.equal(fetched.labels(rows, job), y)
    assert not torch.equal(whole.server(0)[0], whole.server(1)[0])
