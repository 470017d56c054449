"""Lists the building blocks of methods. Each line says from which module `kit.py` loads a name.

A name that is imported from a file is also a name of `fedray.methods`. A name that is imported from a folder is a
module with ingredients.
"""

import numpy as numpy
import torch as torch

from fedray.components import compression as compression
from fedray.components import distillation as distillation
from fedray.components import gaussians as gaussians
from fedray.components import one_shot as one_shot
from fedray.components import random_walk as random_walk
from fedray.components import schedule as schedule
from fedray.components import servers as servers
from fedray.components.compression import dense as dense
from fedray.components.schedule import permutation as permutation
from fedray.components.servers import Rows as Rows
from fedray.components.servers import apply_delta as apply_delta
from fedray.components.servers import group_totals as group_totals
from fedray.components.servers import mean as mean
from fedray.components.servers import no_extra as no_extra
from fedray.components.servers import upload_weights as upload_weights
from fedray.core import options as options
from fedray.core import rng as rng
from fedray.core import types as types
from fedray.core.method import Answer as Answer
from fedray.core.method import Augmentation as Augmentation
from fedray.core.method import Compress as Compress
from fedray.core.method import Compressed as Compressed
from fedray.core.method import Local as Local
from fedray.core.method import LocalLoss as LocalLoss
from fedray.core.method import LossContext as LossContext
from fedray.core.method import Method as Method
from fedray.core.method import Phase as Phase
from fedray.core.method import Piece as Piece
from fedray.core.method import Pooled as Pooled
from fedray.core.method import RateSchedule as RateSchedule
from fedray.core.method import Server as Server
from fedray.core.method import StepContext as StepContext
from fedray.core.method import Transform as Transform
from fedray.core.method import Work as Work
from fedray.core.method import start_empty as start_empty
from fedray.core.options import MethodSpec as MethodSpec
from fedray.core.options import Needs as Needs
from fedray.core.options import Option as Option
from fedray.core.sums import Counts as Counts
from fedray.core.sums import ExactSum as ExactSum
from fedray.core.sums import Kept as Kept
from fedray.core.sums import Largest as Largest
from fedray.core.sums import exact_sum as exact_sum
from fedray.core.types import Layout as Layout
from fedray.core.types import Plan as Plan
from fedray.core.types import State as State
from fedray.core.types import Stats as Stats
from fedray.core.types import Uploads as Uploads
from fedray.core.types import Weighting as Weighting
from fedray.features import boosting as boosting
from fedray.features import particles as particles
from fedray.features import personal as personal
from fedray.features import stacking as stacking
from fedray.features.boosting import Ensemble as Ensemble
from fedray.features.boosting import FitTrees as FitTrees
from fedray.features.correction import Correction as Correction
from fedray.features.correction import Vectors as Vectors
from fedray.features.correction import chain as chain
from fedray.features.correction import contrast_models as contrast_models
from fedray.features.correction import sharpness_aware as sharpness_aware
from fedray.features.correction import train_in_turns as train_in_turns
from fedray.features.measure import ClientSums as ClientSums
from fedray.features.measure import Curvature as Curvature
from fedray.features.measure import SeenRows as SeenRows
from fedray.features.mixture import Mixture as Mixture
from fedray.features.particles import Particles as Particles
from fedray.features.personal import PersonalPasses as PersonalPasses
from fedray.features.personal import PrivateLayers as PrivateLayers
from fedray.features.slices import Slices as Slices
from fedray.features.slices import TierNet as TierNet
from fedray.features.slices import cut_slices as cut_slices
from fedray.features.slices import make_tier_nets as make_tier_nets
from fedray.features.slices import mark_columns as mark_columns
from fedray.features.windows import Finish as Finish
from fedray.features.windows import Windows as Windows
from fedray.methods import base as base
from fedray.methods import setting as setting
from fedray.methods.base import federated as federated
from fedray.methods.base import federated_each as federated_each
from fedray.methods.base import federated_slices as federated_slices
from fedray.methods.setting import Composition as Composition
from fedray.methods.setting import Setting as Setting
from fedray.metrics.scores import Scored as Scored
from fedray.models import net as net
from fedray.models import nets as nets
from fedray.models.net import count_forward_flops as count_forward_flops
from fedray.training import block as block

def list_public() -> list[str]: ...
