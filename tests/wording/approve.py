"""The approved wording of fedray's lines: `python tests/wording/approve.py [CHAPTER ...]` writes what it says today.

A chapter (`scenario.txt`, `command.txt`, ...) is written like a session. `>>>` and `...` are Python, answered by what
fedray warns of and by what is raised; `$ fedray ...` is a command line, answered by its standard error, behind the exit
status if that is not 2. Answers are indented by four. `{file}` is the path that the chapter calls `file`, in commands
and in answers; `home` is an empty folder, and the working directory. `git diff` shows what has changed.
"""

import os
import re
import shlex
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from own_names import forgetting_names
from small import run_command

from fedray.core.errors import FedrayWarning

CHAPTERS = sorted(Path(__file__).parent.glob("*.txt"))
INDENT = " " * 4
PROGRESS = ("round ", "connecting ")
Names = dict[str, Any]


def ask_python(code: str, names: Names) -> list[str]:
    """Runs a statement with the names of its chapter; returns what fedray warns of, and what is raised."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", FedrayWarning)
        try:
            exec(compile(code, "session.py", "exec"), names)
        except Exception as error:
            raised = [f"{type(error).__name__}: {error}"]
        else:
            raised = []
    return [*(f"{one.category.__name__}: {one.message}" for one in told), *raised]


def ask_command(typed: str, names: Names) -> list[str]:
    """Runs a command line; returns its standard error, behind the exit status if that is not 2."""
    typed = re.sub(r"\{(\w+)\}", lambda found: str(names[found[1]]), typed)
    done = run_command(*shlex.split(typed)[1:])
    said = [line for line in done.err.splitlines() if not line.startswith(PROGRESS)] or ["nothing"]
    return said if done.status == 2 else [f"({done.status}) {said[0]}", *said[1:]]


def without_place(line: str, names: Names) -> str:
    """A line without the folders of this call, which have their names, and without the words of other packages."""
    paths = {str(value): name for name, value in names.items() if isinstance(value, Path)}
    for path in sorted(paths, key=len, reverse=True):
        line = line.replace(path, "{" + paths[path] + "}")
    line = re.sub(r"(not valid YAML: |\(\w*Error: |is damaged \()[^()]*(\([^()]*\))?(?=\)|$)", r"\1...", line)
    return re.sub(r" at 0x[0-9a-f]+| \(traceback: .*\)", "", line)


def answer(text: str, home: Path) -> str:
    """Returns a chapter with what fedray says today."""
    names: Names = {"home": home, "__name__": "session"}
    written, code = list[str](), list[str]()
    asked = [line for line in text.splitlines() if not line.startswith(INDENT)]
    for line, after in zip(asked, [*asked[1:], ""]):
        written.append(line)
        said: list[str] = []
        if line.startswith("$ "):
            said = ask_command(line[2:], names)
        elif line.startswith((">>>", "...")):
            code.append(line[4:])
            if not after.startswith("..."):
                said, code = ask_python("\n".join(code), names), []
        for one in "\n".join(said).splitlines():
            written.append(INDENT + without_place(one, names))
    return "\n".join(written) + "\n"


@contextmanager
def far_from_home() -> Iterator[Path]:
    """An empty folder to work in; no data, cache, modules or names of the user's are near."""
    before, here = dict(os.environ), Path.cwd()
    with tempfile.TemporaryDirectory() as folder, forgetting_names():
        home = Path(folder).resolve()
        os.environ |= {"FEDRAY_DATA": str(home / "nowhere"), "FEDRAY_CACHE": str(home / "cache"), "COLUMNS": "80"}
        os.chdir(home)
        try:
            yield home
        finally:
            os.chdir(here)
            os.environ.clear()
            os.environ |= before


def main(wanted: list[str]) -> None:
    """Writes the chapters that are named, or all."""
    if unknown := {*wanted} - {chapter.stem for chapter in CHAPTERS}:
        sys.exit(f"{', '.join(sorted(unknown))}: choose {', '.join(chapter.stem for chapter in CHAPTERS)}")
    for chapter in CHAPTERS:
        if not wanted or chapter.stem in wanted:
            with far_from_home() as home:
                chapter.write_text(answer(chapter.read_text(), home))


if __name__ == "__main__":
    main(sys.argv[1:])
