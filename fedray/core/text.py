"""Numbers, units and names as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass  # rich is loaded when something is shown: `fedray check` only writes text
import difflib
import math
from collections.abc import Iterable

from matplotlib.ticker import FuncFormatter, MaxNLocator


def format_score(value: Mapping[str, Any], worlds: int) -> str:
    """Mean, sd and n of a metric; where only some worlds have it (those that reached a target), of how many.

    Example:
        >>> format_score({"mean": 3.5, "sd": 0.7071, "n": 2}, 3)
        '3.5000 +- 0.7071 (n = 2 of 3)'
        >>> format_score({"mean": 3.0, "sd": None, "n": 1}, 1), score({"mean": None, "sd": None, "n": 0}, 1)
        ('3.0000', '')
    """
    if value["mean"] is None:
        return ""
    spread = f" +- {value['sd']:.4f}" if value["sd"] is not None else ""
    many = f"n = {value['n']}" + (f" of {worlds}" if value["n"] < worlds else "")
    return f"{value['mean']:.4f}{spread}" + (f" ({many})" if worlds > 1 else "")


def format_bytes(number: float) -> str:
    """Bytes for people.

    Example:
        >>> format_bytes(1_250_000)
        '1.2 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.1f} {unit}" if unit != "B" else f"{number:.0f} B"
        number /= 1000
    return f"{number:.1f} TB"


def format_seconds(seconds: float) -> str:
    """Seconds for people.

    Example:
        >>> format_seconds(3725), span(9.4)
        ('1 h 02 min', '9 s')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


SECONDS = ((86400, "d"), (3600, "h"), (60, "min"))
UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def whole(axis: Any) -> None:
    """Whole numbers only on an axis of rounds, clients or models."""
    axis.set_major_locator(MaxNLocator(integer=True, nbins=7, steps=[1, 2, 5, 10]))


def in_percent(axis: Any) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %"))


def unit(what: str, most: float) -> tuple[float, str]:
    """The one unit of an axis of `bytes` or `seconds` that reaches to `most`: what to divide by, its name.

    Example:
        >>> unit("bytes", 3e7), unit("seconds", 7200)
        ((1000000, 'MB'), (60, 'min'))
    """
    if what == "bytes":
        power = min(int(math.log10(max(most, 1)) / 3 + 1e-9), len(UNITS) - 1)
        return 1000**power, UNITS[power]
    return next(((size, name) for size, name in SECONDS if most >= 3 * size), (1, "s"))


def human_bytes(number: float) -> str:
    """Bytes for people.

    Example:
        >>> human_bytes(0), human_bytes(1234), human_bytes(5.6e9)
        ('0 B', '1.23 kB', '5.6 GB')
    """
    size, name = unit("bytes", abs(number))
    return f"{number / size:.4g} {name}" if number / size >= 999.5 else f"{number / size:.3g} {name}"


def human_seconds(number: float) -> str:
    """Seconds for people.

    Example:
        >>> human_seconds(0.25), human_seconds(90), human_seconds(7200)
        ('0.25 s', '1.5 min', '2 h')
    """
    size, name = next(((size, name) for size, name in SECONDS if abs(number) >= size), (1, "s"))
    return f"{number / size:.3g} {name}"


def number(value: float, name: str = "") -> str:
    """A metric for people: shares in percent, the rest with four digits.

    Example:
        >>> number(0.91234, "accuracy"), number(1.23456, "rmse")
        ('91.2 %', '1.235')
    """
    return f"{100 * value:.1f} %" if is_share(name) else f"{value:.4g}"


def is_share(name: str) -> bool:
    """Whether a metric is read in percent."""
    return name.removeprefix("hold_out_").startswith(("accuracy", "personal", "disagreement", "coverage"))


def quote_value(value: object, most: int = 60) -> str:
    """A value as one short line.

    Example:
        >>> quote_value("a" * 100, 10), shown("x\\ny")
        ("'aaaaaa...", "'x\\\\ny'")
    """
    if isinstance(value, str):
        value = value[: 2 * most]
    elif isinstance(value, int) and abs(value) >= 10**19:
        return f"about {'-' if value < 0 else ''}10^{int(value.bit_length() * math.log10(2))}"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."


def find_nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is spelt most like `word`, if any is near."""
    lower = {k.lower(): k for k in reversed(list(known))}
    wanted = word.lower().replace("-", "_")
    near = difflib.get_close_matches(wanted, lower, n=1, cutoff=0.6)
    if near:
        return lower[near[0]]
    inside = [k for k in lower if len(wanted) > 2 and (wanted in k or (len(k) > 2 and k in wanted))]
    return lower[inside[0]] if inside else None
