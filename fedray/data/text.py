"""Shakespeare: the next character after 80; a role is a client (LEAF's task).

A role's text is cut into a training part and a test part. A window and its target lie in one part, so that no character
is in both. Windows are tokens `[n, 80]`, uint8.
"""

from __future__ import annotations

import csv
import gzip
import re
import unicodedata
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedray.core.errors import BadInput
from fedray.core.types import IntArray
from fedray.data.files import explain_damage, find_file
from fedray.data.types import Dataset, Split, classification

# LEAF's 80 characters, in its order (leaf/models/utils/language_utils.py).
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
LENGTH = 80  # characters of a window
_PLAIN_MARKS = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": "-"})
_LOOKUP = np.full(128, ALPHABET.index(" "), np.uint8)
_LOOKUP[[ord(c) for c in ALPHABET]] = np.arange(len(ALPHABET))
_FOLDERS = {  # source -> folder, and pattern of its files
    "mit_plays": ("mit_plays_csv", "*.csv"),
    "tiny": ("tinyshakespeare", "input.txt"),
    "complete": ("complete_works", "t8.shakespeare.txt*"),
}


def encode(text: str) -> NDArray[np.uint8]:
    r"""Tokens of a text, one for each character; white space becomes one space, and so does an unknown character.

    Example:
        >>> ALPHABET[encode("na\u00efve")[2]]
        'i'
    """
    plain = unicodedata.normalize("NFKD", " ".join(text.split()).translate(_PLAIN_MARKS))
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    codes = np.array([ord(c) if ord(c) < 128 else ord(" ") for c in plain], dtype=np.uint8)
    return _LOOKUP[codes]


def find_shakespeare_folder(root: Path | None, source: str) -> Path:
    """The folder of one of the three texts, see `load_shakespeare`."""
    if source not in _FOLDERS:
        raise BadInput(f"data.source = {source}: choose one of {', '.join(_FOLDERS)}")
    folder, needs = _FOLDERS[source]
    return find_file(root, "shakespeare", [f"shakespeare/{folder}", folder], needs, fetchable=False)


def load_shakespeare(root: Path | None, source: str = "mit_plays", stride: int = 1, train: float = 0.8) -> Dataset:
    """The windows of every role that has at least one training window.

    Args:
        root: Folder of data files; None for the usual one.
        source: `mit_plays` (five plays, public domain), `tiny` (roles by name), or `complete` (LEAF's edition).
        stride: Characters from one window to the next; 80 for windows that do not overlap.
        train: Share of a role's text that is for training, between 0 and 1.
    """
    if stride < 1 or not 0 < train < 1:
        raise BadInput(f"data.stride = {stride}, data.train = {train}: stride is at least 1, train between 0 and 1")
    folder = find_shakespeare_folder(root, source)
    path = next(iter(sorted(folder.glob(_FOLDERS[source][1]))))
    try:
        parse = {"mit_plays": _parse_mit_plays, "tiny": _parse_tiny, "complete": _parse_complete}[source]
        roles = parse(folder if source == "mit_plays" else path)
    except (OSError, EOFError, UnicodeDecodeError, KeyError, csv.Error) as error:
        raise explain_damage("shakespeare", path, error) from error
    tokens = [encode(" ".join(lines)) for _, lines in sorted(roles.items())]
    tokens = [t for t in tokens if int(len(t) * train) > LENGTH]
    if not tokens:
        raise explain_damage("shakespeare", path, "no role has enough text")
    cuts = [int(len(t) * train) for t in tokens]
    left = _cut_windows([t[:cut] for t, cut in zip(tokens, cuts, strict=True)], stride)
    right = _cut_windows([t[cut:] for t, cut in zip(tokens, cuts, strict=True)], stride)
    return classification("shakespeare", left, right, tuple(ALPHABET))


def _cut_windows(texts: list[NDArray[np.uint8]], stride: int) -> Split:
    """All windows of all texts; a text is a group, and one of at most 80 characters has no windows."""
    view = np.lib.stride_tricks.sliding_window_view
    cut = [view(t, LENGTH)[: len(t) - LENGTH : stride] if len(t) > LENGTH else t[:0] for t in texts]
    count = [len(c) for c in cut]
    x = np.concatenate([c.reshape(-1, LENGTH) for c in cut])
    y = np.concatenate([t[LENGTH::stride][:n] for t, n in zip(texts, count, strict=True)]).astype(np.int64)
    group: IntArray = np.repeat(np.arange(len(texts)), count).astype(np.int64)
    return Split(x, y, group)


Roles = dict[str, list[str]]  # role -> its lines


def _parse_mit_plays(folder: Path) -> Roles:
    """The roles `play_role` of all CSV files; stage directions belong to no role."""
    roles: Roles = {}
    for path in sorted(folder.glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if "dialogue" not in (reader.fieldnames or ()):
                continue  # the list of plays
            for row in reader:
                if not row["character"].startswith("["):
                    roles.setdefault(f"{path.stem}_{row['character'].strip().upper()}", []).append(row["dialogue"])
    return roles


def _parse_tiny(path: Path) -> Roles:
    """The roles of all plays by name; a speech begins with `Name:` on a line of its own after an empty line."""
    roles: Roles = {}
    for speech in re.split(r"\n\s*\n", path.read_text(encoding="utf-8")):
        name, _, text = speech.strip().partition(":\n")
        if text:
            roles.setdefault(name.strip().upper(), []).append(text)
    return roles


def _parse_complete(path: Path) -> Roles:
    """The roles `play_ROLE` with more than two lines: LEAF's parser for the 36 plays of Project Gutenberg."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        lines = str(file.read()).splitlines()
    titles = [i for i, line in enumerate(lines) if "by William Shakespeare" in line][1:]  # the first: the sonnets
    end = min(124196, len(lines))  # LEAF's last line: behind it are poems
    roles: Roles = {}
    for start, stop in zip(titles, [*titles[1:], end], strict=True):
        title = next((t for t in (lines[start - k].strip() for k in range(2, 8)) if t), "")
        if (
            start < end
            and len(play := _parse_play(lines[start + 1 : min(stop, end)], title == "THE COMEDY OF ERRORS")) > 1
        ):
            roles |= {f"{title}_{role}": said for role, said in play.items() if len(said) > 2}
    return roles


def _parse_play(lines: list[str], flush: bool) -> Roles:
    """The lines of each role of one play; `flush` is for the play whose text is not indented."""
    speech = re.compile(r"^([a-zA-Z][a-zA-Z ]*)\. (.*)" if flush else r"^  ([a-zA-Z][a-zA-Z ]*)\. (.*)")
    more = re.compile(r"^(.*)" if flush else r"^    (.*)")
    roles: Roles = {}
    role = ""
    for line in lines:
        if match := speech.match(line):
            role = match[1].upper()
            if flush and role.startswith("ACT "):
                role = ""
            else:
                roles.setdefault(role, []).append(match[2])
        elif role and (match := more.match(line)):
            if flush and match[1].startswith("<"):
                role = ""
            else:
                roles[role].append(match[1])
    return roles
