"""Training a slice of a network: its lanes are lanes of a smaller network, between rows of the whole one."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedray.core.local import Reading
from fedray.core.types import Net
from fedray.training.block import Block, Trained
from fedray.training.choice import Engine


def for_slice(engine: Engine, net: Net, columns: Tensor) -> Engine:
    """Returns the engine of a slice for rows of the whole network; the other numbers stay as they are.

    Args:
        engine: What trains the slice.
        net: The network of the slice.
        columns: Places of its numbers in a row of the whole network, `[s]`.
    """

    def train(_whole: Net, block: Block) -> Trained:
        places = columns.to(block.start.device)
        trained = engine.train(net, cut_block(block, places))
        final = torch.zeros_like(block.start) if block.wants_change else block.start.clone()
        return trained._replace(final=final.contiguous().index_copy_(1, places, trained.final))

    return replace(engine, train=train)


def cut_block(block: Block, columns: Tensor) -> Block:
    """Returns a block of lanes of the whole network as one of a slice.

    Args:
        block: The lanes, `[W, d]`.
        columns: Places of the slice's numbers in a row, `[s]`.
    """

    def cut(rows: Tensor | None) -> Tensor | None:
        if rows is None:
            return None
        if rows.dim() == 2 and rows.stride(0) == 0:  # one row, which is not copied for each lane
            return rows[:1].index_select(1, columns).expand(len(rows), -1)
        return rows.index_select(-1, columns)

    start, anchor, offset = cut(block.start), cut(block.anchor), cut(block.offset)
    assert start is not None
    reading = block.reading
    if reading is not None:
        broadcast = cut(reading.broadcast)
        assert broadcast is not None
        rest = {"previous": cut(reading.previous), "ensemble": cut(reading.ensemble), "size": reading.size}
        reading = Reading(reading.round, reading.client, reading.model, broadcast, **rest)
    return block._replace(start=start, anchor=anchor, offset=offset, reading=reading)
