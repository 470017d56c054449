"""Whether a user's own objects can be sent to the actors of Ray.

Example:
    >>> from threading import Lock
    >>> lock = Lock()
    >>> check_sendable(UserObjects(model=lambda: lock))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    fedray.core.errors.BadInput: model = ...: it cannot be sent to the actors of Ray (TypeError: cannot pickle ...
"""

from __future__ import annotations

from ray import cloudpickle

from fedray.assembly.user_objects import UserObjects
from fedray.core.errors import BadInput
from fedray.core.user_code import describe_exception


def check_sendable(own: UserObjects) -> None:
    """Refuses a function that holds what no other process can have.

    Args:
        own: The user's own objects.

    Raises:
        BadInput: Names the object and says what it holds.
    """
    for kind, thing in (("model", own.model), ("method", own.method)):
        try:
            cloudpickle.dumps(thing)
        except Exception as error:
            raise BadInput(
                f"{kind} = {own.named()[kind]}: it cannot be sent to the actors of Ray ({describe_exception(error)}): "
                "open files, locks and loggers inside the function, or set runtime: inline"
            ) from None
