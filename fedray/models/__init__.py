"""Defines networks and their losses, and the order of a model's parameters in a vector."""

from fedray.models.net import layout_of, net_of, per_sample, split_gaussian, state_dict
from fedray.models.nets import MODEL_NAMES, Builder, build_net, model_maker, model_names, register_model

__all__ = [
    "MODEL_NAMES",
    "Builder",
    "build_net",
    "layout_of",
    "model_maker",
    "model_names",
    "net_of",
    "per_sample",
    "register_model",
    "split_gaussian",
    "state_dict",
]
