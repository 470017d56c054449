"""One HTML file that shows a run, or compares several: made from the files of run directories, and self-contained.

No network: figures are inline SVG that follow the page's light or dark colours, and print. One script of the page's own
shows their values, hides lines, draws logarithmic axes and downloads; without it the page says the same.

Example:
    >>> _short_names([Path("/runs/a/seed-1"), Path("/runs/b/seed-1")])
    ['a/seed-1', 'b/seed-1']
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedray.core.errors import BadInput, Unwritable
from fedray.files.checksums import refuse_links
from fedray.files.plain import refuse_special, replace_file
from fedray.report.sheets import PageTable


def write_report(run_dirs: list[Path], out: Path, *, title: str = "", tables: Sequence[PageTable] = ()) -> None:
    """Writes the report of one run directory, or the comparison of several, to `out`.

    Args:
        run_dirs: directories as `fedray run` leaves them; an interrupted run shows what it recorded.
        out: the HTML file; its directory is made.
        title: of a comparison; empty: how many runs it compares.
        tables: shown before those of a comparison: heading, (header, rows), note.

    Raises:
        BadInput: no directory was given, one is not a run directory, or `out` cannot be written (an earlier report
            stays as it was).
        Unwritable: the disk is full or has a fault.
    """
    from fedray.report.page import render_many, render_one  # Matplotlib is imported only when a report is made
    from fedray.report.read import read_run

    if not run_dirs:
        raise BadInput("report: no run directory given: name at least one")
    for folder in run_dirs:
        refuse_links(folder)
    with _one_line(out):
        refuse_special(out)  # said before minutes of drawing
    runs = [read_run(folder, name) for folder, name in zip(run_dirs, _short_names(run_dirs), strict=True)]
    page = render_one(runs[0]) if len(runs) == 1 and not tables else render_many(runs, title, tables)
    with _one_line(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        replace_file(out, page.encode())


@contextmanager
def _one_line(out: Path) -> Iterator[None]:
    """Errors of the system as one line about the file that is written."""
    try:
        yield
    except OSError as error:
        line = f"--out {out} cannot be written ({error.strerror})"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise Unwritable(f"{line}: free space or choose another file") from None
        raise BadInput(f"{line}: choose another file") from None


def _short_names(run_dirs: list[Path]) -> list[str]:
    """The last parts of the paths that tell the runs apart, at least one."""
    paths = [folder.resolve() for folder in run_dirs]
    for depth in range(1, 4):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{path.name} ({place})" for place, path in enumerate(paths, 1)]
