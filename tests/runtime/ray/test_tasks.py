"""What a task of a Ray cluster raises reaches the driver as it was raised."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from ray.exceptions import RayTaskError

from fedray.core.errors import Unwritable
from fedray.runtime.ray.tasks import _pass_on


def test_an_error_of_fedray_in_a_task_was_a_traceback_of_many_lines() -> None:
    task: Future[Any] = Future()
    told: Any = RayTaskError  # which has no types
    task.set_exception(told("work", "line\nline", Unwritable("the disk is full")).as_instanceof_cause())
    waiting: Future[Any] = Future()
    _pass_on(None, waiting, task)  # type: ignore[arg-type]  # no actor is asked
    assert str(waiting.exception()) == "the disk is full"
