"""What computes teachers and students at a server: compiled kernels where they have the network, else torch."""

from __future__ import annotations

from fedray.components.student import TORCH, ask_model, use_torch
from fedray.core.student import EngineOf, StudentEngine
from fedray.core.types import Lanes, Net
from fedray.simulation.study import Study
from fedray.training.compiled_conv import CONV_KERNEL
from fedray.training.compiled_student import ask_compiled, begin_compiled, find_student_kernel


def choose_students(lanes: Lanes) -> EngineOf:
    """What computes the students of each network.

    Args:
        lanes: whether compiled kernels may train.
    """
    return use_torch if lanes == "torch" else _choose_compiled


def _choose_compiled(net: Net) -> StudentEngine:
    """The kernels of a network, which answer for convolutions alone: of linear layers torch is as fast."""
    kernel = find_student_kernel(net)
    if kernel is None:
        return TORCH
    return StudentEngine(ask_compiled if kernel is CONV_KERNEL else ask_model, begin_compiled)


def has_compiled_students(study: Study) -> bool:
    """Whether compiled kernels train a student of a study's server.

    Args:
        study: any; most have no students.
    """
    options = study.scenario.get("method", {})
    if study.lanes == "torch" or not (options.get("distil_steps") or options.get("distil_epochs")):
        return False
    nets = [part.study.net for part in study.parts if part.voter is None] or [study.net]
    return any(find_student_kernel(net) is not None for net in nets)
