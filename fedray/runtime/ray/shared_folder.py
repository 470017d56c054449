"""Whether all nodes of a cluster see a folder: the trials of a sweep write their run directories where they train.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     note = Path(folder) / "note"
    ...     _ = note.write_text("x")
    ...     holds_note(str(note), "x"), holds_note(str(note), "y")
    (True, False)
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedray.core.errors import BadInput
from fedray.runtime.environment import read_patience


def holds_note(path: str, text: str) -> bool:
    """Whether a file is there and holds a text."""
    try:
        return Path(path).read_text() == text
    except (OSError, ValueError):
        return False


def confirm_shared(folder: Path, environment: dict[str, Any]) -> None:
    """Writes a note into a folder and asks every node that can train whether it reads it.

    Args:
        folder: The directory of the sweep.
        environment: The runtime environment of the workers.

    Raises:
        BadInput: A node does not see it: said before anything is trained, and not after.
    """
    untyped: Any = ray
    nodes = [node for node in untyped.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
    if len(untyped.nodes()) == 1:
        return
    ask: Any = ray.remote(holds_note)
    note, text = folder / f".{secrets.token_hex(12)}.part", secrets.token_hex(12)
    note.write_text(text)
    try:
        options = {"num_cpus": 0, "max_retries": 2, "runtime_env": environment}
        pins = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=True) for node in nodes]
        asked = [ask.options(**options, scheduling_strategy=pin).remote(str(note), text) for pin in pins]
        seen = ray.get(asked, timeout=read_patience())
    finally:
        note.unlink(missing_ok=True)
    blind = [node["NodeManagerAddress"] for node, sees in zip(nodes, seen, strict=True) if not sees]
    if blind:
        raise BadInput(
            f"--out {folder}: node {blind[0]}{f' (and {len(blind) - 1} more)' if blind[1:] else ''} does not see it, "
            "and trials write there: put it on a file system that all nodes share, or tune on one machine"
        )
