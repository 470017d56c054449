"""The papers, one file each, as compositions of schedules, local training, compression, servers and predictions.

Beside them stands what a method of your own is made of: `federated`, servers and their exact sums.

`METHODS` is the one registry: name -> function from a `Setting` to a `Method`. It holds every method of
`fedray.scenario.methods`, found by its module and its name.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from fedray.components.servers import Rows, apply_delta, group_totals, mean, no_extra, upload_weights
from fedray.core.local import (
    Augmentation,
    LocalLoss,
    LossContext,
    RateSchedule,
    StepContext,
    Transform,
    Windows,
    start_empty,
)
from fedray.core.measured import ClientSums, Curvature, SeenRows
from fedray.core.method import Answer, Compress, Compressed, Local, Method, Phase, Server
from fedray.core.sums import Counts, ExactSum, Kept, Largest, exact_sum
from fedray.core.types import Layout, Plan, State, Uploads
from fedray.methods.base import federated, federated_each, federated_slices
from fedray.methods.bayesian_linear import bayesian_linear
from fedray.methods.beta_predbayes import beta_predbayes
from fedray.methods.boosting import adaboost_f, distboost_f, federated_bagging, preweak_f
from fedray.methods.ditto import ditto
from fedray.methods.dsvgd import dsvgd
from fedray.methods.fed_ensemble import fed_ensemble
from fedray.methods.fedag import fedag
from fedray.methods.fedavg import fedavg, fedprox
from fedray.methods.fedbe import fedbe, fedbe_nokd
from fedray.methods.fedbens import fedbens
from fedray.methods.feddf import feddf
from fedray.methods.feddyn import feddyn, feddyn_ensemble
from fedray.methods.fedem import fedem
from fedray.methods.fedfisher import fedfisher
from fedray.methods.fednova import fednova
from fedray.methods.fedpa import fedpa
from fedray.methods.fedper import fedbn, fedper, fedrep
from fedray.methods.fedrolex import fedrolex
from fedray.methods.fedsam import fedsam
from fedray.methods.fens import fens
from fedray.methods.heterofl import heterofl
from fedray.methods.ifca import ifca
from fedray.methods.ivon_admm import ivon_admm
from fedray.methods.lg_fedavg import lg_fedavg
from fedray.methods.moon import moon
from fedray.methods.pfedbayes import pfedbayes
from fedray.methods.pvi import pvi
from fedray.methods.random_walk import random_walk
from fedray.methods.references import centralized, deep_ensemble, local_only
from fedray.methods.scaffold import scaffold
from fedray.methods.setting import Setting
from fedray.methods.shefl import shefl
from fedray.methods.stacking import stacking
from fedray.metrics.scores import Scored
from fedray.scenario.methods import METHOD_SPECS

__all__ = [
    "METHODS",
    "Answer",
    "Augmentation",
    "ClientSums",
    "Composition",
    "Compress",
    "Compressed",
    "Counts",
    "Curvature",
    "ExactSum",
    "Kept",
    "Largest",
    "Layout",
    "Local",
    "LocalLoss",
    "LossContext",
    "Method",
    "Phase",
    "Plan",
    "RateSchedule",
    "Rows",
    "Scored",
    "SeenRows",
    "Server",
    "Setting",
    "State",
    "StepContext",
    "Transform",
    "Uploads",
    "Windows",
    "adaboost_f",
    "apply_delta",
    "bayesian_linear",
    "beta_predbayes",
    "centralized",
    "deep_ensemble",
    "distboost_f",
    "ditto",
    "dsvgd",
    "exact_sum",
    "fed_ensemble",
    "fedag",
    "fedavg",
    "fedbe",
    "fedbe_nokd",
    "fedbens",
    "fedbn",
    "feddf",
    "feddyn",
    "feddyn_ensemble",
    "fedem",
    "federated",
    "federated_bagging",
    "federated_each",
    "federated_slices",
    "fedfisher",
    "fednova",
    "fedpa",
    "fedper",
    "fedprox",
    "fedrep",
    "fedrolex",
    "fedsam",
    "fens",
    "group_totals",
    "heterofl",
    "ifca",
    "ivon_admm",
    "lg_fedavg",
    "local_only",
    "mean",
    "moon",
    "no_extra",
    "pfedbayes",
    "preweak_f",
    "pvi",
    "random_walk",
    "scaffold",
    "shefl",
    "stacking",
    "start_empty",
    "upload_weights",
]

Composition = Callable[[Setting], Method]
"""A function from a `Setting` to a `Method`, as the file of each paper has it."""

METHODS: dict[str, Composition] = {
    name: getattr(import_module(f"fedray.methods.{spec.module or name}"), name) for name, spec in METHOD_SPECS.items()
}
"""The methods by name, your registered ones not among them."""
