"""Whether the answer to a row depends on the rows beside it: batch statistics that are taken in evaluation too.

Such a network has no score of its own: it depends on how the test rows are cut into pieces, and on their order.

Example:
    >>> from torch import nn
    >>> from fedray.models.net import net_of
    >>> norm = nn.BatchNorm1d(2, track_running_stats=False)
    >>> net = net_of(lambda: nn.Sequential(nn.Linear(4, 2), norm), "own", "cross_entropy", 2)
    >>> mixes_rows(net, torch.zeros(4)), mixes_rows(net_of(lambda: nn.Linear(4, 2), "own", "mse", 2), torch.zeros(4))
    (True, False)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call

from fedray.core import rng
from fedray.core.types import Net

FEW, ALL = 3, 8  # rows that are answered alone, and among others
TOLERANCE = 1e-4  # of single precision


def mixes_rows(net: Net, example: Tensor) -> bool:
    """Tries whether a network in evaluation answers three rows otherwise when they stand among further ones.

    Args:
        net: The network; it is tried with its first parameters, and with others nearby.
        example: One network input; its values do not matter.

    Returns:
        Also False where the network cannot be tried.
    """
    numbers = torch.from_numpy(rng.normal(rng.keys(1, "mixing"), ALL * max(1, example.numel())))
    x = numbers.view(ALL, *example.shape).to(example.dtype if example.is_floating_point() else torch.float32)
    if not example.is_floating_point():  # tokens 0 and 1: every vocabulary has them
        x = (x > 0).to(example.dtype)
    first = net.init(0)
    moved = first + 0.3 * torch.from_numpy(rng.normal(rng.keys(0, "mixing"), len(first))).to(first)
    training = net.module.training
    try:
        net.module.eval()
        return any(_differs(net, row, x) for row in (first, moved))
    except Exception:  # what is wrong with the network is found where it is tried to train
        return False
    finally:
        net.module.train(training)


def _differs(net: Net, row: Tensor, x: Tensor) -> bool:
    views = net.layout.views(row)
    with torch.no_grad(), rng.torch_scope(0):
        few: Tensor = functional_call(net.module, views, (x[:FEW],))
        among: Tensor = functional_call(net.module, views, (x,))[:FEW]
    scale = 1.0 + float(torch.nan_to_num(few).abs().max())
    return not torch.allclose(few, among, rtol=0.0, atol=TOLERANCE * scale, equal_nan=True)
