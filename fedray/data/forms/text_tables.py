r"""Tables as text, such as CSV files: what separates their columns, and what is wrong with a file that cannot be read.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "t.csv"
    ...     _ = file.write_text("a;b\n1;x\n")
    ...     table, delimiter = read_text_table(file, ",")
    >>> table.shape, delimiter
    ((1, 2), ';')
"""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path
from typing import Any

from fedray.core.errors import BadInput
from fedray.core.text import quote_value
from fedray.data.input_columns import refuse_twins

DELIMITERS = ";\t|"  # beside the comma
KINDS = {  # how files of other kinds begin: what they are, the endings that say so, and the remedy
    b"PK\x03\x04": ("a zip archive or an Excel file", (), "unpack it, or save it as CSV"),
    b"\x1f\x8b": ("packed by gzip", (".gz",), "name it .csv.gz"),
    b"PAR1": ("a Parquet file", (".parquet", ".pq"), "name it .parquet"),
    b"ARROW1": ("a Feather file", (".feather", ".arrow"), "name it .feather"),
}
LIBSVM = re.compile(r"\s*[^\s:]+(\s+(qid|\d+):[^\s:]+)+\s*(#.*)?")  # a line of it
UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # how such a file begins


def read_text_table(file: Path, delimiter: str) -> tuple[Any, str]:
    """Returns a file of text; where its first line has no such delimiter, but another one, that one is meant.

    Args:
        file: The file, UTF-8 or UTF-16.
        delimiter: Between its columns.

    Returns:
        The table, and its delimiter.

    Raises:
        BadInput: Two columns have one name, or the first line does not name the columns.
    """
    import pandas as pd

    encoding = "utf-16" if _begin(file).startswith(UTF_16) else "utf-8"
    head = _read_names(file, delimiter, encoding)
    found = [mark for mark in DELIMITERS if len(head) == 1 and mark in head[0]]
    if len(found) == 1:
        delimiter = found[0]
        head = _read_names(file, delimiter, encoding)
    refuse_twins([name for name in head if name], file.name)  # pandas would call the second one a.1
    if LIBSVM.fullmatch(delimiter.join(head)):
        raise BadInput(
            f"data: {file.name} is text of libsvm (label index:value ...): read it once, x, y = "
            "sklearn.datasets.load_svmlight_file(...), and give data=(x.toarray(), y)"
        )
    frame = pd.read_csv(file, sep=delimiter, encoding=encoding)
    if isinstance(frame.index, pd.MultiIndex):
        raise BadInput(
            f"data: {file.name}: its first line names {len(head)} columns, but its rows have "
            f"{len(head) + frame.index.nlevels} fields: remove what stands above the names of the columns, or name all"
        )
    return frame, delimiter


def explain_table(file: Path, error: Exception, where: str) -> BadInput:
    """The line for a table that cannot be read: of which kind it is, its encoding, or which of its lines is wrong.

    Args:
        file: The file.
        error: What reading it raised.
        where: The key and its value, for the message.
    """
    why = " ".join(str(error).split())[:200] or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        return BadInput(f"{where} cannot be read ({error.strerror}): make it readable")
    begin, named = _begin(file), file.suffix.lower()
    for first, (kind, endings, remedy) in KINDS.items():
        if begin.startswith(first) and named not in endings:
            return BadInput(f"{where} is {kind}: {remedy}")
    if named in (".parquet", ".pq", ".feather", ".arrow", ".gz") and not begin.startswith(
        (*KINDS, b"\xff\xff\xff\xff")
    ):
        return BadInput(f"{where} is no {named} file: name it .csv if it is a table of text")
    if found := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", why):
        wanted, line, seen = found.groups()
        return BadInput(
            f"{where}: line {line} has {seen} fields, but those above it {wanted}: correct or remove that line, or "
            "what stands above the names of the columns"
        )
    if found := re.search(r"EOF inside string starting at row (\d+)", why):
        return BadInput(f"{where}: a quotation mark in line {int(found[1]) + 1} is never closed: close or remove it")
    if "No columns to parse" in why:
        return BadInput(f"{where} is empty: its first line names the columns")
    if isinstance(error, UnicodeDecodeError) and (coded := _explain_encoding(file)):
        return BadInput(f"{where}{coded}")
    return BadInput(f"{where} is damaged ({why}): replace it by the original file")


def _begin(file: Path) -> bytes:
    """Returns the first bytes of a file."""
    with file.open("rb") as opened:
        return opened.read(6)


def _read_names(file: Path, delimiter: str, encoding: str) -> list[str]:
    """Returns the names of the columns as the file has them; empty where one has none."""
    import pandas as pd

    head = pd.read_csv(file, sep=delimiter, encoding=encoding, header=None, nrows=1, dtype=str, keep_default_na=False)
    return [str(name) for name in head.iloc[0]]


def _explain_encoding(file: Path) -> str:
    """Returns which line is no UTF-8, and as which encoding it can be read; empty where nothing is wrong."""
    opener = gzip.open if file.suffix.lower() == ".gz" else open
    try:
        with opener(file, "rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    line.decode("utf-8")
                except UnicodeDecodeError as error:
                    if b"\0" in line:
                        return " is no table of text: give CSV, Parquet or Feather"
                    return _name_encoding(number, line, error.start)
    except (OSError, EOFError, zlib.error):
        pass
    return ""


def _name_encoding(number: int, line: bytes, at: int) -> str:
    """Returns the end of a message about a line that is no UTF-8 from a place on."""
    try:
        encoding, text = "cp1252", line.decode("cp1252")
    except UnicodeDecodeError:
        encoding, text = "latin-1", line.decode("latin-1")
    word = quote_value(text[max(0, at - 8) : at + 12].strip())
    return (
        f": line {number} is no UTF-8 text (it has {word} if it is {encoding}): convert it once, "
        f"pandas.read_csv(..., encoding={encoding!r}).to_parquet(...)"
    )
