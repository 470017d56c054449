"""Layers that stay with the clients: which they are, and the upload of the rest.

A layer is a module that owns tensors of a row. What is private is neither sent nor counted, its float buffers included.

Example:
    >>> from fedray.models.nets import build_net
    >>> layout = build_net("mlp", (4,), 3, "cross_entropy", hidden=[8]).layout
    >>> trained_layers(layout), drop_layers(layout, ("1",)).d
    (('1', '3'), 27)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from fedray.components.compression import restrict_to_columns
from fedray.core.method import Compress
from fedray.core.types import Layout


def trained_layers(layout: Layout) -> tuple[str, ...]:
    """The modules that own trainable tensors, in the order of the row."""
    return tuple(dict.fromkeys(name.rpartition(".")[0] for name in layout.names[: layout.trainable_tensors]))


def drop_layers(layout: Layout, layers: tuple[str, ...]) -> Layout:
    """The layout of what is left when some layers are taken out."""
    stay = [(n, s) for n, s in zip(layout.names, layout.shapes, strict=True) if n.rpartition(".")[0] not in layers]
    trainable = int((~layout.mask(layers))[: layout.trainable].sum())
    counters = tuple(name for name in layout.counters if name.rpartition(".")[0] not in layers)
    return Layout(tuple(n for n, _ in stay), tuple(s for _, s in stay), trainable, counters)


def compress_rest(make: Callable[[Layout], Compress], layout: Layout, private: tuple[str, ...]) -> Compress:
    """A compression of all but the private layers, which are sent as 0.

    Args:
        make: makes the compression for a layout.
        layout: of the whole row.
        private: layers that stay with the client; without any this is `make(layout)`.
    """
    if not private:
        return make(layout)
    columns = torch.from_numpy(np.flatnonzero(~layout.mask(private)))
    return restrict_to_columns(make(drop_layers(layout, private)), columns, layout.d)
