"""Networks: plain `nn.Module`s, their loss functions, and how a module becomes rows of numbers."""

from fedray.models.catalogue import NAMES, Builder, build_net, maker, names, register
from fedray.models.loss import gaussian, per_sample
from fedray.models.net import layout_of, load, net_of, state_dict

__all__ = [
    "NAMES",
    "Builder",
    "build_net",
    "gaussian",
    "layout_of",
    "load",
    "maker",
    "names",
    "net_of",
    "per_sample",
    "register",
    "state_dict",
]
