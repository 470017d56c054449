"""What a model becomes between two clients when there is no server: what its holder made of it, as it was sent.

A hop sends the difference to the first models, which every client can draw by itself (by address). Entries that the
compression leaves alone arrive exactly, so that keeping all of them is the dense hop, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedray import rng
from fedray.core import Clients, Compress, Server, State, Stats, Uploads, Walk
from fedray.server import Rows, counted, totals
from fedray.tree import Kept

FIRST = "first"  # the first models, where hops are compressed


def handed_over(rows: Rows, walk: Walk, clients: Clients, seeds: Sequence[int], compress: Compress | None) -> Server:
    """Models that go from client to client; one that stays with its holder is not compressed.

    Args:
        seeds: one a world. compress: what survives a hop; None: everything.
    """
    world_seed = np.array(seeds, dtype=np.int64)

    def init(models: Tensor) -> dict[str, Tensor]:
        return {} if compress is None else {FIRST: models.clone()}

    def reduce(uploads: Uploads) -> Stats:
        keys = zip(uploads.replicate.tolist(), uploads.model.tolist(), uploads.client.tolist(), strict=True)
        weight = torch.ones(len(uploads.size), dtype=torch.int64)
        both = totals(uploads, rows.of(uploads), weight, rows.number)
        return {"uploads": Kept(dict(zip(keys, uploads.delta, strict=True))), **both}

    def step(state: State, stats: Stats, t: int) -> State:
        if "uploads" not in stats:  # the models went from client to client, and are not here
            return state
        kept = stats["uploads"].rows
        world, model, client = np.array(sorted(kept), dtype=np.int64).reshape(-1, 3).T
        row = torch.from_numpy(world * rows.models + model)
        after = state.models[row] + torch.stack([kept[key] for key in sorted(kept)])
        leaves = walk.at(t + 1)[world, model] != client
        if compress is not None and leaves.any():
            first = state.extra[FIRST][row[leaves]]
            key = rng.keys(world_seed[world[leaves]], "hop_entries", t, client[leaves], model[leaves])
            whole = Uploads(
                after[leaves] - first, client[leaves], model[leaves], world[leaves], clients.tier_of(client[leaves]),
                np.ones(int(leaves.sum()), dtype=np.int64), key=key,
            )  # fmt: skip
            sent = compress.apply(whole).delta
            after[leaves] = torch.where(sent == whole.delta, after[leaves], first + sent)
        models = state.models.index_copy(0, row, after)
        return State(models, counted(state.counters, stats), state.extra)

    return Server(init, reduce, step, keeps=True)
