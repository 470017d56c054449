"""Text as tokens, made by a tokenizer that the user names.

Example:
    >>> tokenize([["a b", "c"]], lambda text: [1 + ord(c) for c in text], None).tolist()
    [[98, 33, 99], [100, 0, 0]]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedray.core.errors import BadInput
from fedray.data.forms.arrays import list_classes
from fedray.data.spool import Spool
from fedray.data.types import Array
from fedray.own_code.user_code import blame_user_code, name_type

MOST_TOKENS = 256  # of a row, where no length is given
Encode = Callable[[Sequence[str]], list[Sequence[int]]]


def tokenize(texts: Iterable[Sequence[Any]], tokenizer: Any, length: int | None) -> Array:
    """Tokens `[n, L]` int32; a longer text is cut, a shorter one ends in zeros.

    Args:
        texts: The texts, in pieces; what is no text is written as one.
        tokenizer: A function from a text to its tokens, a tokenizer of `tokenizers` or `transformers`, its file, or
            its name.
        length: L; None: that of the longest text, 256 at most.

    Raises:
        BadInput: There is no such tokenizer, a text is missing, or what it returns is no list of whole numbers.
    """
    encode, spool, longest, first = find_tokenizer(tokenizer), Spool(), 1, 0
    width = length or MOST_TOKENS
    for piece in texts:
        ids = encode([_as_text(value, first + place) for place, value in enumerate(piece)])
        first += len(piece)
        rows = np.zeros((len(ids), width), dtype=np.int32)
        for row, tokens in zip(rows, ids, strict=True):
            kept = tokens[:width]
            row[: len(kept)] = kept
            longest = max(longest, len(kept))
        spool.append(rows)
    found = spool.finish()
    return found if length else np.ascontiguousarray(found[:, :longest])


def _as_text(value: Any, row: int) -> str:
    """A text; one that is missing is refused."""
    if isinstance(value, str):
        return value
    if is_missing(value):
        raise BadInput(f"data: row {row} has no text: leave such rows out, or give an empty text")
    return str(value)


def is_missing(value: Any) -> bool:
    """Whether a value stands for nothing: None, NaN, or pandas' NA."""
    return value is None or str(value) == "<NA>" or bool(value != value)


def find_tokenizer(tokenizer: Any) -> Encode:
    """The function that encodes several texts."""
    if tokenizer is None:
        raise BadInput("data: the inputs are text: give data.tokenizer, a function or the file of a tokenizer")
    if isinstance(tokenizer, str | Path):
        tokenizer = _load_tokenizer(str(tokenizer))
    if "tokenizers.Tokenizer" in list_classes(tokenizer):
        return lambda texts: [part.ids for part in tokenizer.encode_batch(list(texts))]
    if not callable(tokenizer):
        raise BadInput(
            f"data.tokenizer is {name_type(tokenizer)}: give a function from a text to its tokens, or a file"
        )

    def encode(texts: Sequence[str]) -> list[Sequence[int]]:
        with blame_user_code("data.tokenizer"):
            return [_as_ids(tokenizer(text)) for text in texts]

    return encode


def _load_tokenizer(name: str) -> Any:
    """A tokenizer of a file, or of a name in the user's cache; nothing is downloaded."""
    file = Path(name).expanduser()
    try:
        if file.is_file():
            from tokenizers import Tokenizer

            return Tokenizer.from_file(str(file))
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(file) if file.is_dir() else name, local_files_only=True)
    except ImportError as error:
        package = str(error.name or "tokenizers").partition(".")[0]
        raise BadInput(f"data.tokenizer = {name} needs {package}: `pip install {package}`, or give a file") from error
    except Exception as error:  # both packages raise many kinds
        why = " ".join(str(error).split())[:200]
        raise BadInput(
            f"data.tokenizer = {name}: there is no such file, and no such name in the cache ({why}): give the file of "
            "a tokenizer"
        ) from error


def _as_ids(found: Any) -> Sequence[int]:
    """The tokens of a text as whole numbers."""
    if "tokenizers.Encoding" in list_classes(found):
        return list(found.ids)
    if isinstance(found, dict) or "input_ids" in getattr(found, "data", ()):
        found = found["input_ids"]
    tokens = found.tolist() if isinstance(found, np.ndarray) or "torch.Tensor" in list_classes(found) else found
    whole = isinstance(tokens, list | tuple) and all(isinstance(token, int | np.integer) for token in tokens)
    if not whole or any(token < 0 for token in tokens):
        raise BadInput(f"data.tokenizer returned {name_type(found)} for a text: return a list of whole numbers from 0")
    return list(tokens)
