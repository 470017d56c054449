"""Normalization layers: batch or group, in any network.

Example:
    >>> type(replace_norms(nn.Sequential(nn.BatchNorm2d(4)), "group")[0]).__name__
    'GroupNorm'
"""

from __future__ import annotations

import math

from torch import nn

from fedray.core.errors import BadInput

NORM_GROUPS = 2  # Hsieh et al. 2020, appendix; Reddi et al. 2021, ResNet-18 with group normalization


def norm_layer(norm: str, channels: int) -> nn.Module:
    """BatchNorm2d, or GroupNorm with 2 groups (1 if the number of channels is odd).

    Group normalization has no running statistics. So nothing has to be averaged over clients, and training and
    evaluation do not differ.
    """
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    if norm == "group":
        return nn.GroupNorm(math.gcd(NORM_GROUPS, channels), channels)
    raise BadInput(f"model.norm = {norm}: choose batch or group")


def replace_norms(module: nn.Module, norm: str) -> nn.Module:
    """The same network with every BatchNorm2d replaced by `norm`, in place."""
    norm_layer(norm, NORM_GROUPS)  # refuses an unknown name
    if norm != "batch":
        for parent in list(module.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.BatchNorm2d):
                    setattr(parent, name, norm_layer(norm, child.num_features))
    return module
