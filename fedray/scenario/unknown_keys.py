"""The error for a key that a section does not have, which names the key that was probably meant."""

from __future__ import annotations

from collections.abc import Mapping

from fedray.core.errors import quote_value, suggest_nearest
from fedray.scenario import names

MOST_PLACES = 3  # that a message offers
_ALIAS = {  # words of other tools
    "learning_rate": "local.lr",
    "eta": "local.lr",
    "batch": "local.batch_size",
    "bs": "local.batch_size",
    "wd": "local.weight_decay",
    "k": "method.models",
    "members": "method.models",
    "ensemble_size": "method.models",
    "n": "clients.number",
    "num_clients": "clients.number",
    "clients_per_round": "participation.per_round",
    "num_rounds": "rounds",
    "dataset": "data",
    "algorithm": "method",
    "strategy": "method",
    "network": "model",
    "repetitions": "replicates",
    "seeds": "replicates",
    "gpus": "clients.tiers.NAME.num_gpus",
    "backend": "runtime",
}


def explain_unknown_key(
    path: str,
    key: str,
    keys: tuple[str, ...],
    owner: tuple[str, str] | None = None,
    sections: Mapping[str, tuple[str, ...]] | None = None,
) -> str:
    """Returns the line of the error for a key that a section does not have, with the nearest key of the section.

    Args:
        path: dotted key of the section.
        key: the unknown key.
        keys: the keys of the section.
        owner: kind and name of the thing that the section names, if the options of the thing are known.
        sections: the keys of every other section, by the dotted key of the section, if known.

    Example:
        >>> explain_unknown_key("local", "learning_rate", ("lr", "epochs"))
        'local.learning_rate is not a key of local: did you mean local.lr?'
    """
    word = key if key.isprintable() and 0 < len(key) <= 60 else quote_value(key)
    lead = f"{path}." if path else ""
    where = path or "a scenario"
    if owner is not None:
        where = f"{names.KINDS[owner[0]].text} {owner[1]}"
        users = _list_users(owner[0], key)
        if users:
            return f"{lead}{word} is not a key of {where}, but of {', '.join(users)}: choose one of these"
    if alias := _ALIAS.get(key.lower().replace("-", "_")):
        last = alias.rpartition(".")[2]
        remedy = f"did you mean {lead}{last}?" if last in keys else f"did you mean {alias}?"
    elif 0 < len(elsewhere := _find_elsewhere(key, path, sections or {})) <= MOST_PLACES:
        remedy = f"did you mean {' or '.join(elsewhere)}?"
    else:
        remedy = suggest_nearest(key, keys, f"choose one of {', '.join(keys)}", prefix=lead)
    return f"{lead}{word} is not a key of {where}: {remedy}"


def _find_elsewhere(key: str, path: str, sections: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Returns the keys of this name in other sections, or the names that have such an option.

    Example:
        >>> _find_elsewhere("ratio", "", {"local": ("lr",), "compress": ("kind", "ratio")})
        ['compress.ratio']
        >>> _find_elsewhere("mu", "local", {}), _find_elsewhere("color", "local", {})
        (['method.mu (of fedprox, moon, shefl)'], [])
    """
    found = [f"{section}.{key}" for section, keys in sections.items() if key in keys and section not in ("", path)]
    for kind in names.NAMED.values():
        users = _list_users(kind.word, key)
        if users and kind.section != path:
            found.append(
                f"{kind.section}.{key} (of {', '.join(users[:MOST_PLACES])}{', ...' * (len(users) > MOST_PLACES)})"
            )
    return found


def _list_users(kind: str, key: str) -> list[str]:
    """Returns the names of a kind that have an option with this key."""
    return [name for name, spec in names.KINDS[kind].specs.items() if key in spec.options]
