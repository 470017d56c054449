"""Finds the keys of a scenario that decide the results of a run, and the keys that changed since the run began.

The file `identity.json` of a run directory has the keys that decide the results, with their values. So fedray notices a
changed `scenario.yaml` when the run is resumed.

Example:
    >>> began = list_result_keys({"seed": 0, "runtime": "ray", "local": {"lr": 0.1}})
    >>> began
    {'seed': '0', 'local.lr': '0.1'}
    >>> find_changed_key(began, {"seed": 0, "runtime": "inline", "local": {"lr": 0.2}})
    ('local.lr', '0.1', '0.2')
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedray.core.errors import BadInput, Damaged, quote_value
from fedray.scenario.nested import flatten, generalize_key

# Sections and keys that change no result.
FREE_SECTIONS = ("runtime", "report", "loggers", "checkpoint", "table", "published")
FREE_KEYS = ("data.root", "clients.per_actor", "clients.actors", "clients.device", "own.modules")
FREE_TIER_KEYS = ("num_cpus", "num_gpus", "resources")
# Keys that may change when a run is resumed. The first two decide the effect of a client's failure; `rounds` has a
# check of its own.
CHANGEABLE_KEYS = ("on_client_error", "client_timeout", "rounds")
# Keys that were added to fedray later, each with the value that gives the earlier behavior; `*` stands for the name of
# a tier. Older runs and sweeps lack these keys. So that older runs can be resumed, a key with this value is left out of
# identities and of hashes of trainings.
VALUES_OF_BEFORE: dict[str, Any] = {
    "server.seconds_per_step": 0.0,
    "server.seconds_per_sample": 0.0,
    "clients.tf32": False,
    "local.augment": [],
    "data.standardize": True,
    "data.scale": "standard",
    "local.nesterov": False,
    "local.last_batch": "keep",
    "server.tau": 0.001,
    "server.schedule": None,
    "participation.max_staleness": None,
    "evaluate.personal_steps": None,
    "evaluate.train": False,
    "clients.tiers.*.epochs": None,
    "clients.tiers.*.steps": None,
    "participation.partial": 0.0,
}
IDENTITY_FILE = "identity.json"  # in a run directory
RECORDED = "identity"  # key of the manifest: whether the run has the file `identity.json`
FORMAT = 1  # format of the file; a different number means that a newer fedray wrote the file
UNSET = "not set"


def select_result_keys(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys of a resolved scenario that decide its results, with their values. Keys are dotted."""
    keys = {key: value for key, value in flatten(tree).items() if not is_free(key)}
    return {key: value for key, value in keys.items() if _value_of_before(key) != value}


def list_result_keys(tree: Mapping[str, Any]) -> dict[str, str]:
    """Returns the dotted keys that a resumed run must not change, with their values as text."""
    keys = select_result_keys(tree)
    return {key: _text(value) for key, value in keys.items() if key not in CHANGEABLE_KEYS}


def find_changed_key(began: Mapping[str, str], tree: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Returns the first key that has changed since a run began, with its old and its new value. None means no change.

    `began` is the result of `list_result_keys` when the run began.
    """
    now = list_result_keys(tree)
    for key in dict.fromkeys([*began, *now]):
        unset = _text(_value_of_before(key))
        old, new = began.get(key, unset), now.get(key, unset)
        if old != new:
            return key, old, new
    return None


def refuse_edited_scenario(where: str, began: Mapping[str, Any], tree: Mapping[str, Any]) -> None:
    """Refuses a scenario that was changed since its run began.

    `began` is the content of the run's `identity.json`. It is empty if an old version of fedray made the run and wrote
    no such file.

    Raises:
        BadInput: A key was changed, or a newer fedray wrote `identity.json`. The message names the key with its old and
            new value.
    """
    if began.get("format", FORMAT) != FORMAT:
        raise BadInput(
            f"{where}/{IDENTITY_FILE} has format = {quote_value(began['format'])}, and this fedray knows {FORMAT}: "
            "use the fedray that wrote it"
        )
    keys, rounds = began.get("scenario", {}), began.get("rounds")
    if keys and (changed := find_changed_key(keys, tree)) is not None:
        key, old, new = changed
        raise BadInput(
            f"{where}/scenario.yaml has {key} = {new[:80]}, but the run began with {str(old)[:80]}: restore it, or "
            "start a new run"
        )
    if rounds is not None and tree.get("rounds") != rounds:
        raise BadInput(
            f"{where}/scenario.yaml has rounds = {tree.get('rounds')}, but the run began with {rounds}: restore it, "
            f"or make the run longer with `fedray resume {where} --rounds {tree.get('rounds')}`"
        )


def refuse_lost_identity(out: Path, manifest: Mapping[str, Any], remedy: str) -> None:
    """Refuses a run directory that lacks `identity.json` although its manifest names this file.

    `manifest` is the content of `manifest.json`. It is empty if there is no such file.

    Raises:
        Damaged: `identity.json` is lost.
    """
    if manifest.get(RECORDED):
        raise Damaged(f"{out / IDENTITY_FILE} is missing, so nobody knows what the run began with", remedy)


def is_free(key: str) -> bool:
    """Returns whether a dotted key does not influence results."""
    parts = key.split(".")
    is_tier = parts[:2] == ["clients", "tiers"] and len(parts) > 3 and parts[3] in FREE_TIER_KEYS
    return parts[0] in FREE_SECTIONS or key in FREE_KEYS or is_tier


def _value_of_before(key: str) -> Any:
    """Returns the value of a key for scenarios of older versions of fedray, which lack this key.

    With this value, fedray behaves as the older versions did. The result is the placeholder `UNSET` for a key that
    older versions have, too.
    """
    return VALUES_OF_BEFORE.get(generalize_key(key), UNSET)


def _text(value: Any) -> str:
    """Returns a plain value as text. Equal numbers give the same text, however a file spells them: 1, 1.0 and '1.0'."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_text(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_text(entry) for entry in value) + "]"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return str(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    return repr(value)
