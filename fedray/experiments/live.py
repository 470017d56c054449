"""Shows the progress of a run as a live table on a terminal, a bar in a notebook, or plain lines elsewhere.

A *snapshot* is a dict about a run after an evaluated round, with the round, mean scores and costs. In this module, a
*phase* is what a command is doing now, such as reading the data.
"""

import importlib.util
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from fedray.core.errors import format_bytes, format_seconds, format_total, name_score
from fedray.core.scores import drop_repeats
from fedray.process import tolerate_stderr

if TYPE_CHECKING:
    from rich.console import Group

# ---------------------------------------------------------------------------------------------------------------------
# Lines about the phase of a command, such as reading the data.
#
# A phase is a message of the logger `fedray` (Python's `logging`), so programs that use fedray can show phases, too. A
# phase is printed after it has lasted for two seconds. Later lines say that a long phase still runs.

log = logging.getLogger("fedray")
SOON = 2.0  # seconds after which a phase is printed
SILENCE = 15.0  # seconds until a line says that the command still works, times 1.5 after each such line
MOST_SILENCE = 25.0
STILL = "still "  # beginning of such a line


class ProgressPhase:
    """The phase of a command (what it is doing now), and the time at which the command last printed a line.

    Attributes:
        phase: Words for the present phase. They are empty before the first phase.
        began: The time at which the phase began (`time.monotonic`).
        last_printed: The time at which the last line was printed (`time.monotonic`).
        printed: Whether a line about this phase was printed.
        pause: The number of seconds that may pass without a line.
        shown: Whether a live display shows the phase. If so, no lines are printed.
        show_phase: A function that is called with each new phase.
    """

    def __init__(self) -> None:
        self.phase, self.began, self.printed = "", time.monotonic(), True
        self.last_printed, self.pause, self.shown = self.began, SILENCE, False
        self.show_phase: Callable[[str], object] = lambda _phase: None

    def begin(self, phase: str) -> None:
        """Begins a new phase with these words."""
        self.phase, self.began, self.printed, self.pause = phase, time.monotonic(), False, SILENCE
        self.show_phase(phase)

    def record_line(self) -> None:
        """Records that other code has printed a line. This delays the next line about the phase."""
        self.last_printed, self.pause, self.printed = time.monotonic(), SILENCE, True


def next_line(progress: ProgressPhase, now: float) -> str | None:
    """Returns the line that must be printed now, or None if no line is due.

    Args:
        progress: The phase of the command, and the time of its last line. If a line is due, `progress` is updated.
        now: The present time (`time.monotonic`).
    """
    if not progress.printed and now - progress.began >= SOON:
        progress.printed, progress.last_printed = True, now
        return progress.phase
    if progress.printed and progress.phase and now - max(progress.began, progress.last_printed) >= progress.pause:
        progress.last_printed, progress.pause = now, min(1.5 * progress.pause, MOST_SILENCE)
        return f"{STILL}{progress.phase} ({format_seconds(now - progress.began)})"
    return None


@contextmanager
def show_phases(say: Callable[[str], object]) -> Iterator[ProgressPhase]:
    """Prints the phases of a `with` block, unless the logger `fedray` shows only warnings (`--quiet`).

    Yields:
        The present phase, which is updated while the block runs.

    Example:
        >>> with show_phases(print) as progress:
        ...     logging.getLogger("fedray").info("reading the data")
        ...     progress.phase
        'reading the data'
    """
    progress, over, level = ProgressPhase(), threading.Event(), log.level

    def hear(record: logging.LogRecord) -> bool:
        progress.begin(record.getMessage())
        return True

    def print_lines() -> None:
        while not over.wait(0.1):
            line = next_line(progress, time.monotonic())
            if line is not None and not progress.shown and log.isEnabledFor(logging.INFO):
                say(line)

    log.addFilter(hear)
    log.setLevel(logging.INFO)
    thread = threading.Thread(target=print_lines, daemon=True)
    thread.start()
    try:
        yield progress
    finally:
        over.set()
        thread.join()
        log.removeFilter(hear)
        log.setLevel(level)


# ---------------------------------------------------------------------------------------------------------------------
# The progress of a run.

# rich is imported only when something is shown, because `fedray check` only writes text

LINES_EVERY = 2.0  # seconds between plain lines
METRICS = ("accuracy", "accuracy_mean", "personal_accuracy", "rmse", "nll")


def is_in_notebook() -> bool:
    """Returns whether this process is the kernel of a notebook.

    Example:
        >>> is_in_notebook()
        False
    """
    ipython = sys.modules.get("IPython")
    return getattr(ipython and ipython.get_ipython(), "kernel", None) is not None


def estimate_time_left(snapshot: dict[str, Any]) -> str:
    """Estimates the remaining time of a run, after its first round, as text.

    The estimate assumes that the remaining rounds take as long as earlier rounds.
    """
    done, total = snapshot["round"], snapshot["rounds"]
    return format_seconds(snapshot["wall_seconds"] / done * (total - done))


def describe_snapshot(snapshot: dict[str, Any]) -> str:
    """Returns a snapshot of a run as one line of text.

    Example:
        >>> snapshot = {"round": 5, "rounds": 20, "metrics": {"accuracy": 0.9}, "up_bytes": 3e6, "wall_seconds": 10.0}
        >>> describe_snapshot(snapshot)
        'round 5/20  accuracy 0.9000  uplink 3 MB  30 s left'
    """
    scores = _describe_scores(snapshot)
    left = f"  {estimate_time_left(snapshot)} left" if 0 < snapshot["round"] < snapshot["rounds"] else ""
    up = f"{name_score('up_bytes')} {format_bytes(snapshot['up_bytes'])}"
    return f"round {snapshot['round']}/{snapshot['rounds']}  {scores}  {up}{left}"


def _describe_scores(snapshot: dict[str, Any]) -> str:
    metrics = drop_repeats(snapshot["metrics"])
    return "  ".join(f"{name_score(n)} {metrics[n]:.4f}" for n in METRICS if n in metrics)


@contextmanager
def watch_run(
    title: str, progress: ProgressPhase | None = None, note: str = ""
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Returns a context manager. It yields a function that shows snapshots of a run as a table, a bar or lines.

    Args:
        title: The title of the table.
        progress: The phase of the command. None means that there is no phase.
        note: A line to print with the first snapshot.
    """
    progress = progress or ProgressPhase()
    if log.level > logging.INFO:  # --quiet
        yield lambda _snapshot: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True)
    if console.is_jupyter:
        with _show_bar(title, progress) as show:
            yield show
        return
    if not console.is_terminal:
        yield _make_line_printer(progress, note)
        return
    rows: list[dict[str, Any]] = []
    title = f"{title}\n{note}" if note else title

    def draw() -> "Group | Text":
        phase = f"{progress.phase or 'starting'} ({format_seconds(round(time.monotonic() - progress.began))})"
        return _make_table(title, rows, progress.phase and phase) if rows else Text(f"{title}: {phase}")

    progress.shown = True
    try:
        with Live(get_renderable=draw, console=console, refresh_per_second=8) as live:

            def show(snapshot: dict[str, Any]) -> None:
                if not rows or rows[-1]["round"] != snapshot["round"]:
                    rows.append(snapshot)
                live.refresh()

            yield show
    finally:
        progress.shown = False


@contextmanager
def show_if_wanted(
    wanted: bool | None, title: str, watch: Callable[[dict[str, Any]], None] | None
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Returns a context manager. It yields a function that shows a snapshot (if wanted) and calls the user's function.

    Args:
        wanted: Whether phases and rounds are shown. None means that they are shown only in a notebook.
        title: The title of the table.
        watch: The user's function, which is called with each snapshot. None means that there is no such function.
    """
    if not (is_in_notebook() if wanted is None else wanted):
        yield watch or (lambda _snapshot: None)
        return
    with (
        tolerate_stderr(),
        show_phases(partial(print, file=sys.stderr, flush=True)) as progress,
        watch_run(title, progress) as show,
    ):

        def both(snapshot: dict[str, Any]) -> None:
            show(snapshot)
            if watch is not None:
                watch(snapshot)

        yield both


@contextmanager
def _show_bar(title: str, progress: ProgressPhase) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Returns a context manager. It yields a function that shows snapshots as a progress bar in a notebook.

    The phase is before the bar, and the newest scores are after it.
    """
    if importlib.util.find_spec("ipywidgets") is None:
        from tqdm import tqdm
    else:
        from tqdm.notebook import tqdm
    with tqdm(total=None, desc=title, unit=" rounds", file=sys.stderr, dynamic_ncols=True) as bar:

        def show_phase(phase: str) -> None:
            bar.set_description_str(f"{title}: {phase}" if phase else title)

        def show(snapshot: dict[str, Any]) -> None:
            if bar.total != snapshot["rounds"]:
                bar.reset(snapshot["rounds"])
            bar.update(snapshot["round"] - bar.n)
            bar.set_postfix_str(_describe_scores(snapshot))

        show_phase(progress.phase)
        progress.shown, progress.show_phase = True, show_phase
        try:
            yield show
        finally:
            progress.shown, progress.show_phase = False, lambda _phase: None
            show_phase("")


def _make_line_printer(progress: ProgressPhase, note: str) -> Callable[[dict[str, Any]], None]:
    """Returns a function that prints a snapshot as a line, at most every two seconds. `note` is printed first.

    The last round is always printed.
    """
    last_round, last_time = -1, 0.0

    def show(snapshot: dict[str, Any]) -> None:
        nonlocal last_round, last_time
        now = time.monotonic()
        new = snapshot["round"] != last_round
        if new and (now - last_time >= LINES_EVERY or snapshot["round"] == snapshot["rounds"]):
            if last_round < 0 and note:
                print(note, file=sys.stderr, flush=True)
            last_round, last_time = snapshot["round"], now
            progress.record_line()
            print(describe_snapshot(snapshot), file=sys.stderr, flush=True)

    return show


def _make_table(title: str, rows: list[dict[str, Any]], phase: str) -> "Group":
    """Returns the live table with the newest ten snapshots, a bar of completed rounds, and the phase."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    newest = rows[-1]
    share = newest["round"] / max(1, newest["rounds"])
    left = f", {estimate_time_left(newest)} left" if 0 < share < 1 else ""
    below = Table.grid(padding=(0, 1))
    bar = ProgressBar(newest["rounds"], newest["round"], width=24)
    below.add_row(bar, f"{100 * share:.0f} %{left}{phase and ', '}{phase}")
    table = Table(title=title)
    shown = drop_repeats(newest["metrics"])
    names = [n for n in METRICS if n in shown]
    costs = ("up_bytes", "sim_seconds", "wall_seconds")
    for name in ("round", *(name_score(n) for n in (*names, *costs))):
        table.add_column(name, justify="right")
    for row in rows[-10:]:
        scores = [f"{row['metrics'].get(n, float('nan')):.4f}" for n in names]
        table.add_row(f"{row['round']}/{row['rounds']}", *scores, *(format_total(n, row[n]) for n in costs))
    return Group(table, below)
