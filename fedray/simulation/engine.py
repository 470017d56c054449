"""The engine that trains and evaluates the clients of a study."""

from __future__ import annotations

from fedray.simulation.study import Study
from fedray.training.choice import Engine, choose_engine


def choose_study_engine(study: Study, device: str = "cpu") -> Engine:
    """The engine of a study's network, with what its scenario says of training and of answers.

    Args:
        study: The study.
        device: Kind of the device, "cpu" or "cuda".

    Raises:
        BadInput: Compiled kernels must train, and cannot.
    """
    phase, drops = study.method.phase, study.evaluation.dropout_at_test
    return choose_engine(
        study.net, device, study.example, lanes=study.lanes, local=phase.local, drops=drops, models=phase.models
    )
