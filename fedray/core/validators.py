"""What a value may be: each kind is a function value -> value that raises ValueError("is not ...: give ...").

The message is put behind `key = value ` by whoever knows the key. A kind accepts its own results unchanged, and says
what it accepts (`describe_check`), for the reference.

Example:
    >>> describe_check(maybe(whole(1, 9)))
    Meaning(kind='whole number', values='1 to 9', empty=True)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from fedray.core.text import quote_value, suggest_nearest

Check = Callable[[Any], Any]
AnyCheck = TypeVar("AnyCheck", bound=Callable[..., Any])
_EXPONENT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+", re.ASCII)
_INTERVAL = re.compile(r"([\[(])(\S+), (\S+)([\])])")


class Meaning(NamedTuple):
    """What a check accepts, in words.

    Attributes:
        kind: whole number, number, text, word, list of ...
        values: an interval, or the words; empty: what the kind says.
        empty: whether null is accepted, too.
    """

    kind: str
    values: str = ""
    empty: bool = False


_MEANINGS: WeakKeyDictionary[Callable[..., Any], Meaning] = WeakKeyDictionary()


def means(kind: str, values: str = "", empty: bool = False) -> Callable[[AnyCheck], AnyCheck]:
    """Decorates a check with what it accepts; the arguments are those of `Meaning`."""

    def remember(check: AnyCheck) -> AnyCheck:
        _MEANINGS[check] = Meaning(kind, values, empty)
        return check

    return remember


def describe_check(check: Callable[..., Any]) -> Meaning:
    """Returns what a check accepts; a check without a description has the kind `value`.

    Example:
        >>> describe_check(either("all", whole(1, 9))), describe_check(len).kind
        (Meaning(kind='whole number', values='1 to 9, or `all`', empty=False), 'value')
    """
    return _MEANINGS.get(check, Meaning("value"))


def _to_number(value: Any) -> Any:
    """Converts numbers that YAML 1.1 reads as text (`12.5e6`, `1e-3`); returns any other value as it is."""
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


def whole(low: int, high: int) -> Check:
    """Accepts a whole number from low to high; `1e3` counts as one, also as text.

    Example:
        >>> whole(1, 10)(3.0), whole(1, 9999)("1e3")
        (3, 1000)
    """
    remedy = f"give one from {low} to {high}"

    @means("whole number", f"{low:,} to {high:,}")
    def check(value: Any) -> int:
        value = _to_number(value)
        if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 != 0:
            raise ValueError(f"is not a whole number: {remedy}")
        if not low <= value <= high:
            raise ValueError(f"is out of range: give a whole number from {low} to {high}")
        return int(value)

    return check


def real(interval: str) -> Check:
    """Accepts a number in an interval, written as in mathematics; infinity only if the interval is closed there.

    Example:
        >>> real("(0, 1]")(1), real("(0, 1]")("1e-3")
        (1.0, 0.001)
    """
    found = _INTERVAL.fullmatch(interval)
    assert found is not None, interval
    low, high = float(found[2]), float(found[3])

    @means("number", interval)
    def check(value: Any) -> float:
        value = _to_number(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            infinite = found[4] == "]" and high == float("inf") and value in ("inf", "+inf", "infinity")
            raise ValueError(f"is not a number: {'write .inf' if infinite else f'give one in {interval}'}")
        above = value >= low if found[1] == "[" else value > low
        below = value <= high if found[4] == "]" else value < high
        if not (above and below):
            raise ValueError(f"is out of range: give a number in {interval}")
        return float(value)

    return check


@means("true or false")
def flag(value: Any) -> bool:
    """Accepts true or false."""
    if not isinstance(value, bool):
        raise ValueError("is neither true nor false: write true or false")
    return value


@means("text")
def text(value: Any) -> str:
    """Accepts one line of printable text."""
    if not isinstance(value, str):
        raise ValueError("is not text: put it in quotes")
    if not value or not value.isprintable() or len(value) > 1000:
        raise ValueError("cannot be used: give 1 to 1000 printable characters")
    return value


@means("text")
def column_name(value: Any) -> str:
    """Accepts the name of a column; a number may stand without quotes."""
    return text(str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value)


@means("name", "letters, digits, `_` and `-`")
def label(value: Any) -> str:
    """Accepts a name that can be part of a key and of a file name."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", value):
        raise ValueError("cannot be a name: use up to 64 letters, digits, '_' and '-'")
    return value


def one_of(*words: str) -> Check:
    """Accepts one of a few words."""

    @means("word", ", ".join(f"`{word}`" for word in words))
    def check(value: Any) -> str:
        if isinstance(value, str) and value in words:
            return value
        raise ValueError(f"is not one of {', '.join(words)}: {suggest_nearest(value, words, 'choose one')}")

    return check


@means("word", "`auto`, `cpu`")
def device(value: Any) -> str:
    """Accepts the device on which tiers with GPUs compute; another key says which tiers have GPUs."""
    if value not in ("auto", "cpu"):
        raise ValueError("is not one of auto, cpu: leave it at auto, and give tiers GPUs: clients.tiers.NAME.num_gpus")
    return str(value)


@means("word", "`tensorboard`, `wandb`, `mlflow`, each also with `:VALUE`")
def logger(value: Any) -> str:
    """Accepts a run logger, with `:VALUE` for another directory, project or URI than the usual."""
    name, colon, where = value.partition(":") if isinstance(value, str) else (value, "", "")
    one_of("tensorboard", "wandb", "mlflow")(name)
    if colon and not where:
        raise ValueError("has nothing behind the colon: leave the colon out, or name a directory, project or URI")
    return str(value)


def either(word: str, check: Check) -> Check:
    """Accepts a certain word, or what `check` accepts."""
    kind, values, empty = describe_check(check)

    @means(kind, f"{values}, or `{word}`" if values else f"any, or `{word}`", empty)
    def checked(value: Any) -> Any:
        if value == word and isinstance(value, str):
            return value
        try:
            return check(value)
        except ValueError as wrong:
            raise ValueError(f"{wrong}, or {word!r}") from None

    return checked


def maybe(check: Check) -> Check:
    """Accepts None, or what `check` accepts."""
    kind, values, _ = describe_check(check)

    @means(kind, values, empty=True)
    def checked(value: Any) -> Any:
        try:
            return None if value is None else check(value)
        except ValueError as wrong:
            raise ValueError(f"{wrong}, or null for none") from None

    return checked


def list_of(check: Check, most: int, scalar: bool = False) -> Check:
    """Accepts a list of up to `most` entries; with `scalar` a bare entry counts as a list of one.

    Args:
        check: of an entry.
        most: entries at most.
        scalar: whether a bare entry counts as a list of one.
    """
    kind, values, _ = describe_check(check)

    @means(f"list of {kind}s" if kind != "true or false" else "list of flags", values)
    def checked(value: Any) -> list[Any]:
        entries = [value] if scalar and isinstance(value, int | float | str) else value
        if not isinstance(entries, list | tuple):
            raise ValueError("is not a list: write it as [a, b]")
        if len(entries) > most:
            raise ValueError(f"has {len(entries)} entries: give {most} at most")
        for entry in entries:
            try:
                check(entry)
            except ValueError as wrong:
                raise ValueError(f"holds {quote_value(entry)}, which {wrong}") from None
        return [check(entry) for entry in entries]

    return checked


def map_of(check: Check) -> Check:
    """Accepts a mapping from text to what `check` accepts."""

    @means(f"names, each with a {describe_check(check).kind}", describe_check(check).values)
    def checked(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError("is not a mapping: write it as {name: value}")
        for key, entry in value.items():
            try:
                check(entry)
            except ValueError as wrong:
                raise ValueError(f"holds {quote_value(key)}: {quote_value(entry)}, which {wrong}") from None
        return {text(key): check(entry) for key, entry in value.items()}

    return checked


@means("number", "0, 1/n or 1")
def gpu_share(value: Any) -> float:
    """Accepts the GPUs of an actor: Ray schedules 0, 1/n and 1 reliably; 0.33 and 0.333 count as 1/3.

    Example:
        >>> gpu_share(0.25), gpu_share(1)
        (0.25, 1.0)
    """
    number: float = real("[0, 1000]")(value)
    if number > 1:
        raise ValueError("is more than an actor uses: give 1 or a share of it; further actors use further GPUs")
    parts = round(1 / max(number, 1e-4))
    if number != 0 and not (parts <= 100 and 0.99 / parts - 1e-9 <= number <= 1 / parts + 1e-9):
        raise ValueError("is not a share that Ray schedules reliably: give 0, 1/n (0.5, 0.25, 0.2, ...) or 1")
    return number
