"""Keys that decide a piece of a `Setting` which a user's own method does not put into its parts: a warning names them.

A method that takes the place of a part with `replace(phase, server=...)` drops what the scenario's keys made of it.

Example:
    >>> import warnings
    >>> from fedray.assembly.study import build_study
    >>> from fedray.assembly.user_objects import UserObjects
    >>> from fedray.methods import federated
    >>> from fedray.scenario.loader import read_scenario
    >>> keys = {"data": {"limit": 90}, "clients": 3, "server": {"robust": "median"}}
    >>> def own(setting):  # its server is that of a scenario without the key
    ...     phase = federated(setting)
    ...     return Method("own", replace(phase, server=federated(replace(setting, robust=Robust())).server))
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     _ = build_study(read_scenario(keys), UserObjects(method=own))
    >>> print(str(caught[0].message)[:77])
    server.robust = median cannot act, because own has a server without it: leave
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from fedray.components.schedule import invite_all
from fedray.core.errors import FedrayError, warn_user
from fedray.core.method import Method
from fedray.core.text import quote_value
from fedray.methods.setting import Optimizer, Robust, Setting
from fedray.own_code.reached_values import reach
from fedray.scenario.schema import Scenario
from fedray.scenario.training import ServerKeys


class _Piece(NamedTuple):
    """What a key has decided: the key with its value, the fields of `Setting` with other values, and the remedy."""

    key: str
    other: dict[str, Any]
    remedy: str


_SERVER = "has a server without it: leave the key out, or name the server as merge"
_SCHEDULE = "has a schedule without it: leave the key out, or let the schedule call setting.participation"
_ASSIGN = "has a schedule without it: leave the key out, or name the schedule as assign"


def warn_of_unread_pieces(
    scenario: Scenario, pieces: Setting, method: Method, compose: Callable[[Setting], Method]
) -> None:
    """Says which keys of servers, schedules, participants and compression a method drops.

    The method is composed with the piece that a key has made and with another one. Where both reach the same code and
    values, and no code that holds the setting names the piece, the key cannot act.

    Args:
        scenario: has the keys.
        pieces: of the method.
        method: the user's own.
        compose: makes it from other pieces.
    """
    asked = list(_list_asked(scenario, pieces))
    if not asked:
        return
    given = reach(compose(pieces), Setting)
    for piece in asked:
        try:
            changed = compose(replace(pieces, **piece.other))
        except FedrayError:  # it needs the piece
            continue
        if given.named.isdisjoint(piece.other) and given.things == reach(changed, Setting).things:
            warn_user(f"{piece.key} cannot act, because {method.name} {piece.remedy}")


def _list_asked(scenario: Scenario, pieces: Setting) -> Iterator[_Piece]:
    """The pieces that a key has decided."""
    server, people = scenario.server, scenario.participation
    if pieces.robust.kind != "none":
        yield _Piece(f"server.robust = {server.robust}", {"robust": Robust()}, _SERVER)
    if pieces.optimizer.kind != "none":
        yield _Piece(f"server.optimizer = {server.optimizer}", {"optimizer": Optimizer()}, _SERVER)
    if pieces.coefficients is not None:
        yield _Piece(f"server.coefficients = {server.coefficients}", {"coefficients": None}, _SERVER)
    if pieces.weighting != ServerKeys().weighting:
        other = {"weighting": ServerKeys().weighting}
        remedy = "has a server that does not read it: leave the key out, or let merge(rows, weighting) read it"
        yield _Piece(f"server.weighting = {pieces.weighting}", other, remedy)
    if pieces.compress is not None:
        remedy = "has a compression without it: leave the key out, or name the compression as compress"
        yield _Piece(f"compress.kind = {scenario.compress.kind}", {"compress": None}, remedy)
    if pieces.assign is not None and scenario.schedule.kind != "walk":
        yield _Piece(f"schedule.kind = {scenario.schedule.kind}", {"assign": None}, _ASSIGN)
    named = next((name for name in ("per_round", "fraction") if getattr(people, name) is not None), None)
    if named is not None and people.mode == "sync" and pieces.participants < pieces.clients.number:
        everyone = {"participation": invite_all(pieces.clients)}
        number = {"participants": pieces.clients.number, **everyone}
        yield _Piece(f"participation.{named} = {quote_value(getattr(people, named))}", number, _SCHEDULE)
        if people.selection.name != "uniform":
            yield _Piece(f"participation.selection = {people.selection.name}", everyone, _SCHEDULE)
