"""Makes the pictures of the gallery, and the first picture of README and site, again by commands.

`python docs/_ext/gallery.py` makes all of them, with a part of a name behind it those whose names hold it: `front` is
the report of the quickstart as Chromium shows it (`docs/report.png`), the others are those of `docs/gallery.md`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "gallery.md"
FRONT = [
    "fedray run quickstart runtime=inline --out runs/quickstart",
    "chromium --headless --no-sandbox --hide-scrollbars --window-size=1200,1470 --screenshot=docs/gallery/report.png "
    "runs/quickstart/report.html",
]


def list_entries() -> dict[str, list[str]]:
    """Returns the commands of each picture of the page, by the name of its scenario."""
    entry = r"^## (\S+)\n.*?^```text\n(.*?)^```$"
    return {name: body.splitlines() for name, body in re.findall(entry, PAGE.read_text(), flags=re.M | re.S)}


def find_chromium() -> str | None:
    """Returns the Chromium of the system; None where there is none."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def make_picture(commands: list[str], target: Path = ROOT / "docs" / "gallery") -> None:
    """Runs the commands of an entry in a folder of their own; only the picture stays.

    Args:
        commands: The first runs, the second draws.
        target: The folder of the picture.

    Raises:
        CalledProcessError: One of them failed.
    """
    target.mkdir(exist_ok=True)
    programs = {"fedray": f"{sys.executable} -m fedray", "chromium": find_chromium() or "chromium"}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "docs" / "gallery").mkdir(parents=True)
        for command in commands:
            name, _, rest = command.partition(" ")
            subprocess.run(["bash", "-c", f"{programs[name]} {rest}"], cwd=folder, check=True)
        for picture in (Path(folder) / "docs" / "gallery").iterdir():
            shutil.copy(picture, target / picture.name)


if __name__ == "__main__":
    for name, commands in {"front": FRONT, **list_entries()}.items():
        if all(part in name for part in sys.argv[1:]):
            print(name, flush=True)
            make_picture(commands, ROOT / "docs" if commands is FRONT else ROOT / "docs" / "gallery")
