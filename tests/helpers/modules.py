"""One model as a plain module, to compare with what fedray computes."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from fedray.core.types import Net
from fedray.models.net import state_dict


def load_module(net: Net, row: Tensor, counters: Tensor | None = None) -> nn.Module:
    """A module of its own in evaluation mode, with the parameters `[d]` and the counters `[c]` of one model."""
    module = copy.deepcopy(net.module)
    module.load_state_dict(state_dict(net.layout, row, counters), strict=False)  # constants stay the template's
    return module.eval()
