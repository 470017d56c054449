r"""Tables as text, such as CSV files: what separates their columns.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "t.csv"
    ...     _ = file.write_text("a;b\n1;x\n")
    ...     read_text_table(file, ",").shape
    (1, 2)
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fedray.core.errors import BadInput
from fedray.data.cells import MARKS, holds_marked_numbers, is_text
from fedray.data.input_columns import refuse_twins

DELIMITERS = ";\t|"  # beside the comma


def read_text_table(file: Path, delimiter: str) -> Any:
    """Returns a file of text; where its first line has no such delimiter, but another one, that one is meant.

    Args:
        file: The file, UTF-8 or UTF-16.
        delimiter: Between its columns.

    Raises:
        BadInput: Two columns have one name, or the first line does not name the columns.
    """
    import pandas as pd

    with file.open("rb") as opened:
        encoding = "utf-16" if opened.read(2) in (b"\xff\xfe", b"\xfe\xff") else "utf-8"

    def read_names() -> list[str]:
        """Returns the names of the columns as the file has them; empty where one has none."""
        how: Any = {"header": None, "nrows": 1, "dtype": str, "keep_default_na": False}
        return [str(name) for name in pd.read_csv(file, sep=delimiter, encoding=encoding, **how).iloc[0]]

    head = read_names()
    found = [mark for mark in DELIMITERS if len(head) == 1 and mark in head[0]]
    if len(found) == 1:
        delimiter = found[0]
        head = read_names()
    if len(head) == 1 and re.fullmatch(r"\S+( +\d+:\S+)+", head[0].strip()):
        raise BadInput(
            f"data: {file.name} is text of libsvm (label index:value ...): read it by "
            "sklearn.datasets.load_svmlight_file, and give data=(x.toarray(), y)"
        )
    refuse_twins([name for name in head if name], file.name)  # pandas would call the second one a.1
    frame = pd.read_csv(file, sep=delimiter, encoding=encoding)
    if isinstance(frame.index, pd.MultiIndex):
        raise BadInput(
            f"data: {file.name}: its first line names {len(head)} columns, but its rows have "
            f"{len(head) + frame.index.nlevels} fields: remove what stands above the names of the columns, or name all"
        )
    for column in frame if delimiter != "," else ():
        if is_text(frame[column]) and holds_marked_numbers(frame[column]):
            raise BadInput(f"data: {file.name}: column {column} has {MARKS}")
    return frame
