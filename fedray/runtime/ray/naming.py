r"""What actors are called in Ray's own tools: `ray list actors`, the dashboard, the prefix of what they print.

Example:
    >>> name_actors(["phones", "phones", "servers"])
    ['phones - 0', 'phones - 1', 'servers - 0']
    >>> print(spell_plainly("m\xe4rz"))
    m\xe4rz
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable
from typing import Any


def name_actors(tiers: Iterable[str]) -> list[str]:
    """A name for each client actor: its tier, and which one of that tier it is.

    Args:
        tiers: The tier of each actor.
    """
    seen: Counter[str] = Counter()
    names = []
    for tier in tiers:
        names.append(f"{tier} - {seen[tier]}")
        seen[tier] += 1
    return names


def spell_plainly(name: str) -> str:
    """A name of printable ASCII, which is all that Ray takes for the tags of its gauges."""
    return ascii(name)[1:-1]


def name_options(run: str, actors: Iterable[str]) -> list[dict[str, Any]]:
    """Options of Ray that name the actors of a run, in a new namespace: those there were may still have theirs.

    Args:
        run: Name of the run.
        actors: Name of each actor.
    """
    space = f"fedray {spell_plainly(run)} {secrets.token_hex(4)}"
    return [{"name": f"{spell_plainly(run)} / {actor}", "namespace": space} for actor in actors]
