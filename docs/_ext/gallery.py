"""Makes the pictures of the gallery again, by the commands of its page.

`python docs/_ext/gallery.py` makes all of them, with a part of a name behind it those whose names hold it.
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


def list_entries() -> dict[str, list[str]]:
    """The commands of each picture of the page, by the name of its scenario."""
    entry = r"^## (\S+)\n.*?^```text\n(.*?)^```$"
    return {name: body.splitlines() for name, body in re.findall(entry, PAGE.read_text(), flags=re.M | re.S)}


def make_picture(commands: list[str], target: Path = ROOT / "docs" / "gallery") -> None:
    """Runs the commands of an entry in a folder of their own; only the picture stays.

    Args:
        commands: the first runs, the second draws.
        target: the folder of the picture.

    Raises:
        CalledProcessError: one of them failed.
    """
    target.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "docs" / "gallery").mkdir(parents=True)
        for command in commands:
            line = command.replace("fedray", f"{sys.executable} -m fedray", 1)
            subprocess.run(["bash", "-c", line], cwd=folder, check=True)
        for picture in (Path(folder) / "docs" / "gallery").iterdir():
            shutil.copy(picture, target / picture.name)


if __name__ == "__main__":
    for name, commands in list_entries().items():
        if all(part in name for part in sys.argv[1:]):
            print(name, flush=True)
            make_picture(commands)
