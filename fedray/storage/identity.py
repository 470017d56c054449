"""`identity.json` of a run directory: what the run began with, so that nothing else goes on in its place.

It holds the keys of the scenario that decide results, its rounds, and digests of the data, of the network, of the
source of the user's own code and of the values that this reads. Another value is a warning, all else is refused. The
file is written before the first round and stays as it is; only a run that is made longer changes it. The manifest says
that it is there, so that a lost one is noticed. Run directories that were written before there was such a file are used
without these checks, and digests of own code that earlier versions wrote are not compared.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     out = Path(folder)
    ...     _ = (out / "scenario.yaml").write_text("rounds: 4")
    ...     confirm_identity(out, {"data": {"training labels": "12ab"}})
    ...     confirm_identity(out, {"data": {"training labels": "34cd"}})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    fedray.core.errors.BadInput: ...: the data are not those the run began with (training labels): ...
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedray.core import native
from fedray.core.errors import BadInput, Damaged
from fedray.core.types import Lanes
from fedray.files.bounded import find_checkpoints, read_sealed, read_totals, write_sealed
from fedray.files.plain import write_atomically
from fedray.scenario import names
from fedray.scenario.identity import (
    IDENTITY_FILE,
    list_result_keys,
    refuse_edited_scenario,
    refuse_lost_identity,
)
from fedray.scenario.names import method_spec_of
from fedray.scenario.yaml_text import load_yaml, write_yaml
from fedray.storage.summary import tell_user

Digests = Mapping[str, Mapping[str, str]]  # part -> what of it -> digest
_ANSWERS = ("model ", "partition ")  # what reads values after the training too
_PARTS = {  # that are refused where they differ: what a sentence says of each
    "data": "the data are not those the run began with ({}): restore them",
    "source": "the source of {} is not what the run began with: restore it",
    "network": "the network is not the one the run began with ({}): restore it",
    "files": "the file of module {} is not what the run began with: restore it",
    "engine": "the engine is not the one the run began with ({}): restore it",
}


def confirm_identity(out: Path, digests: Digests, tell: Callable[[str], object] = tell_user) -> None:
    """Writes the identity of a run that has none and no checkpoint, or checks it.

    Args:
        out: the run directory.
        digests: of what is to be trained.
        tell: says in a line which values are others than when the run began.

    Raises:
        BadInput: the run began with something else.
    """
    if read_identity(out) or find_checkpoints(out / "checkpoints"):
        check_scenario_file(out)
        _compare(out, read_identity(out), digests, tell)
    else:
        write_identity(out, digests)


def check_identity(out: Path, digests: Digests) -> None:
    """Refuses what a run that only answers did not begin with; one without an identity is not checked.

    Args:
        out: the run directory.
        digests: of what is to answer. Of values those of networks and partitions count.

    Raises:
        BadInput: names what was changed.
    """
    check_scenario_file(out)
    values = {key: digest for key, digest in digests.get("values", {}).items() if key.startswith(_ANSWERS)}
    _compare(out, read_identity(out), {**digests, "values": values}, tell_user)


def check_scenario_file(out: Path) -> None:
    """Refuses a run directory whose `scenario.yaml` was edited; one without an identity is not checked.

    Raises:
        BadInput: names the key, its old and its new value.
    """
    began = read_identity(out)
    if began:
        refuse_edited_scenario(str(out), began, read_keys(out))


def read_keys(out: Path) -> dict[str, Any]:
    """Returns the keys of a run directory's `scenario.yaml`, as they stand there.

    Raises:
        BadInput: there are none: the file was emptied, say.
    """
    tree = load_yaml(out / "scenario.yaml")
    if not isinstance(tree, dict):
        raise BadInput(f"{out / 'scenario.yaml'} is damaged (no keys in it): restore it, or start a new run")
    return tree


def confirm_digests(out: Path, digests: Digests, *, fresh: bool) -> None:
    """Keeps the digests of a directory that has no scenario of its own, such as a sweep's, or checks them.

    Args:
        out: the directory.
        digests: of what its trainings have in common.
        fresh: whether nothing was trained yet.

    Raises:
        BadInput: names what was changed.
    """
    if fresh:
        write_sealed(out / IDENTITY_FILE, {"format": 1, **digests})
    _compare(out, read_identity(out), digests, tell_user)


def write_identity(out: Path, digests: Digests) -> None:
    """Writes the identity of a run directory: its scenario's keys, and these digests."""
    tree = load_yaml(out / "scenario.yaml")
    keys = {"format": 1, "rounds": tree.get("rounds"), "scenario": list_result_keys(tree)}
    write_sealed(out / IDENTITY_FILE, {**keys, **digests})


def read_identity(out: Path) -> dict[str, Any]:
    """Reads `identity.json`; empty if there is none and the manifest does not name one.

    Raises:
        Damaged: the file is damaged, or lost.
        FedrayError: it cannot be read for another reason.
    """
    path, remedy = out / IDENTITY_FILE, "restore it, or start a new run"
    if not os.path.lexists(path):
        manifest: dict[str, Any] = {}
        with suppress(Damaged):  # it is missing too, or says nothing
            manifest = read_sealed(out / "manifest.json", remedy)
        refuse_lost_identity(out, manifest, remedy)
        return {}
    found = read_sealed(path, remedy)
    if not found or not all(isinstance(found.get(part, {}), dict) for part in ("scenario", *_PARTS)):
        raise Damaged(f"{path} is damaged (a part is missing)", remedy)
    return found


def keep_lanes(lanes: Lanes, out: Path) -> Lanes:
    """Returns the engine of a run that goes on: the one that it began with, if its scenario leaves the choice.

    Args:
        lanes: what its scenario says.
        out: the run directory.

    Raises:
        BadInput: it began with compiled kernels, and there are none here.
    """
    began = read_identity(out).get("engine", {}).get("lanes")
    if began is None and find_checkpoints(out / "checkpoints"):
        began = "torch"  # it was written before there were compiled kernels
    if lanes != "auto" or began is None:
        return lanes
    library = native.load_library()
    if began == "compiled" and isinstance(library, native.Missing):
        raise BadInput(f"{out}: the run began with compiled kernels, but {library.why}")
    return "torch" if began == "torch" else lanes


def extend_rounds(out: Path, rounds: int) -> None:
    """Makes a run longer, also one that is finished: `scenario.yaml` and `identity.json` get the new rounds.

    Args:
        out: the run directory.
        rounds: how many there will be in all.

    Raises:
        BadInput: the run has done more, its rounds have parts, or a run that was long at once would be another.
    """
    tree, began = read_keys(out), read_identity(out)
    done = max(find_checkpoints(out / "checkpoints"), default=0)
    method = tree.get("method")
    spec = method_spec_of(method.get("name")) if isinstance(method, dict) else None
    if spec is not None and (spec.parts or spec.fits):
        raise BadInput(f"--rounds {rounds}: a stack or an ensemble of learners is not made longer: start a new run")
    if rounds < done:
        raise BadInput(f"--rounds {rounds}: the run has done {done}: give at least as many")
    if rounds > done:
        totals = read_totals(out / "checkpoints" / f"round-{done:06d}", "restore it") if done else {}
        _refuse_longer(tree, totals, rounds)
    refuse_edited_scenario(str(out), {**began, "rounds": tree.get("rounds")} if began else {}, tree)
    if began:
        write_sealed(out / IDENTITY_FILE, {**began, "rounds": rounds})
    if tree.get("rounds") != rounds:
        write_atomically(out / "scenario.yaml", write_yaml({**tree, "rounds": rounds}).encode())
        (out / "summary.json").unlink(missing_ok=True)  # of the shorter run


def _refuse_longer(tree: Mapping[str, Any], totals: Mapping[str, Any], rounds: int) -> None:
    """Refuses to make a run longer that would not be the run that was so long at once.

    Args:
        tree: the scenario of the run.
        totals: of its newest checkpoint; empty where it has none.
        rounds: how many rounds there would be.
    """
    done, stopped = totals.get("round", 0), totals.get("stopped")
    if stopped:
        raise BadInput(f"--rounds {rounds}: the run ended after {done} rounds, because {stopped}: start a new run")
    local = tree.get("local")
    keys: Any = local.get("schedule") if isinstance(local, dict) else None
    if isinstance(keys, dict) and keys.get("kind") in ("cosine", "linear") and not keys.get("restart"):
        end = int(keys.get("rounds") or rounds)
        if rounds > end and not keys.get("floor"):
            raise BadInput(f"--rounds {rounds}: local.schedule ends with a rate of 0: start a new, longer run")
        if rounds > end == tree.get("rounds"):  # what it is without a number of its own
            raise BadInput(f"--rounds {rounds}: local.schedule falls over this run's {end} rounds: start a new run")
    rules = tree.get("evaluate")
    every, seconds = (rules.get(key) for key in ("every", "every_seconds")) if isinstance(rules, dict) else (1, None)
    seen = [entry[1] for entries in totals.get("courses", {}).values() for entry in entries if entry]
    if done in seen and (seconds or done % (every or 1)):  # it was measured because it was the last
        raise BadInput(
            f"--rounds {rounds}: the best value that stop or checkpoint.best knows is of round {done}, which a longer "
            "run does not evaluate: start a new run"
        )


def _compare(out: Path, began: Mapping[str, Any], digests: Digests, tell: Callable[[str], object]) -> None:
    """Refuses digests that differ from those a directory began with, and tells of values that do."""
    for part, said in _PARTS.items():
        if changed := _list_changes(part, began, digests):
            raise BadInput(f"{out}: {said.format(', '.join(changed))}, or start a new run")
    if each := _list_changes("values", began, digests):
        said = "value {} is not what the run began with: the new one counts"
        if len(each) > 1:
            said = "values {} are not what the run began with: the new ones count"
        tell(f"{out}: {said.format(', '.join(each))}")


def _list_changes(part: str, began: Mapping[str, Any], now: Digests) -> list[str]:
    """Says in words what of a part differs; an empty digest differs from nothing.

    Only of data and of source is it a difference that something is gone: of a network, earlier versions kept more, and
    modules and values are those that a process happens to have.
    """
    found, gone = now.get(part, {}), None if part in ("data", "source") else ""
    pairs = [(key, old, found.get(key, gone)) for key, old in began.get(part, {}).items() if part in now]
    changed = [key.partition(": ") for key, old, new in pairs if old != new and "" not in (old, new)]
    files = {name: f"{name} of {file}" for name, file in _list_names(began)}
    return [f"{name} of {files.get(thing, thing)}" if name else thing for thing, _, name in changed]


def refuse_missing_names(out: Path) -> None:
    """Refuses to go on with a run, or a sweep, that uses a user's names which nothing has registered.

    Args:
        out: the directory of the run, or of the sweep.

    Raises:
        BadInput: names the first such name, and the file that registered it.
    """
    for name, file in _list_names(read_identity(out)):
        kind, _, known = name.partition(" ")
        if kind in names.KINDS and not names.is_known(kind, known):
            raise BadInput(
                f"{out}: this run used {kind} {known!r} of {file}: --import {file}, or import it first in Python"
            )


def _list_names(began: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the user's names that a run used, as "method mine", and their files."""
    found = began.get("names", {})
    return [(str(name), str(file)) for name, file in found.items()] if isinstance(found, dict) else []
