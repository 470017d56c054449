"""What the server's functions of a user's own method and the code of its clients both hold, and one of them changes.

Clients train in other processes than the server steps, and a run may go on in a new one. There each has a copy of what
lies in a closure, so that a change is not seen by the others: such a method would compute something else on Ray, and
after a resumption, than in one process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fedray.core.errors import BadInput
from fedray.core.method import Phase
from fedray.methods.setting import Setting
from fedray.own_code.reached_values import find_changeable, is_changed, mark


def watch_shared(phase: Phase, where: str) -> Phase:
    """A phase whose server refuses what its functions and the code of the clients hold together, once it is changed.

    Tensors, arrays, tables and variables of closures count. A table to which something is added is not changed.

    Args:
        phase: Of the user's own method.
        where: How messages call the method.

    Raises:
        BadInput: Later, in a step of the server: names what was changed.
    """
    step, server = phase.server.step, phase.server
    clients = find_changeable([phase.local, phase.personal, phase.compress.apply, server.reduce], Setting)
    held = find_changeable([step, phase.choose, phase.remember, phase.ask], Setting)
    both = [held[key] for key in held if key in clients]
    if not both:
        return phase
    marks = [mark(thing) for _, thing in both]

    def check() -> None:
        for (name, thing), before in zip(both, marks, strict=True):
            if is_changed(thing, before):
                raise BadInput(
                    f"{where}: {name!r} is changed in training, and both its server and its clients hold it: on Ray, "
                    "and after a resumption, each has a copy: keep it in state.extra, and send it in models or uploads"
                )

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            check()
            found = function(*arguments)
            check()
            return found

        return call

    named = {name: getattr(phase, name) for name in ("choose", "remember") if getattr(phase, name) is not None}
    watching: dict[str, Any] = {name: watched(function) for name, function in named.items()}
    return replace(phase, server=server._replace(step=watched(step)), **watching)
