"""What a person watches while a run goes: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table  # rich is loaded when something is shown: `fedray check` only writes text
from fedray.core.text import format_bytes, format_seconds

LINES_EVERY = 2.0  # seconds between plain lines
SHOWN = ("accuracy", "accuracy_mean", "personal_accuracy", "rmse", "nll")
LABELS = {"accuracy": "ensemble", "accuracy_mean": "members (mean)", "personal_accuracy": "known clients"}


def time_left(shown: dict[str, Any]) -> str:
    """The estimate of the time left."""
    done, total = shown["round"], shown["rounds"]
    if not done:
        return ""
    return format_seconds(shown["wall_seconds"] / done * (total - done))


def snapshot_line(shown: dict[str, Any]) -> str:
    """One snapshot as one line."""
    scores = "  ".join(f"{LABELS.get(n, n)} {shown['metrics'][n]:.4f}" for n in SHOWN if n in shown["metrics"])
    tail = f"  {time_left(shown)} left" if shown["round"] < shown["rounds"] and shown["round"] else ""
    return f"round {shown['round']}/{shown['rounds']}  {scores}  up {format_bytes(shown['up_bytes'])}{tail}"


@contextmanager
def watch_run(title: str) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that shows snapshots until the block ends."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines()
        return
    rows: list[dict[str, Any]] = []
    with Live(Text(f"{title}: starting"), console=console, refresh_per_second=8) as live:

        def show(shown: dict[str, Any]) -> None:
            if not rows or rows[-1]["round"] != shown["round"]:
                rows.append(shown)
            live.update(_table(title, rows))

        yield show


def _lines() -> Callable[[dict[str, Any]], None]:
    last = {"round": -1, "time": 0.0}

    def show(shown: dict[str, Any]) -> None:
        now = time.monotonic()
        new = shown["round"] != last["round"]
        if new and (now - last["time"] >= LINES_EVERY or shown["round"] == shown["rounds"]):
            last.update(round=shown["round"], time=now)
            print(snapshot_line(shown), file=sys.stderr, flush=True)

    return show


def _table(title: str, rows: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    newest = rows[-1]
    share = newest["round"] / max(1, newest["rounds"])
    bar = "█" * round(24 * share) + "░" * (24 - round(24 * share))
    caption = f"{bar} {100 * share:.0f} %" + (f", {time_left(newest)} left" if 0 < share < 1 else "")
    table = Table(title=title, caption=caption)
    names = [n for n in SHOWN if n in newest["metrics"]]
    for name in ("round", *(LABELS.get(n, n) for n in names), "uplink", "virtual time", "elapsed"):
        table.add_column(name, justify="right")
    for row in rows[-10:]:
        scores = [f"{row['metrics'].get(n, float('nan')):.4f}" for n in names]
        table.add_row(
            f"{row['round']}/{row['rounds']}",
            *scores,
            format_bytes(row["up_bytes"]),
            format_seconds(row["sim_seconds"]),
            format_seconds(row["wall_seconds"]),
        )
    return table
