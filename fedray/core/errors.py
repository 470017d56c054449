"""Defines the errors and warnings of fedray, and formats values as text."""

import difflib
import math
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType
from typing import Any

from fedray.core.scores import BYTES, CLIENTS, NATS, SHARE, SPLITS, SQUARED, TARGET, cut_split, find_score

# ---------------------------------------------------------------------------------------------------------------------
# Errors and warnings. A message is one line that says what is wrong and what to do.


class FedrayError(Exception):
    """Raised if something failed during a run. The command line prints the message and exits with status 1."""


class BadInput(FedrayError):
    """Raised for input that cannot be used. The message names the key, its value and a remedy.

    The command line prints the message and exits with status 2.

    Example:
        >>> try:
        ...     raise BadInput("rounds = -1: it must be at least 0")
        ... except FedrayError as error:
        ...     print(error)
        rounds = -1: it must be at least 0
    """


class FedrayWarning(UserWarning):
    """A warning for the user. The command line prints it as one line, and the program continues."""


class ScenarioWarning(FedrayWarning):
    """Warns that a setting of a scenario has less effect than its author may expect."""


def warn_user(text: str, category: type[FedrayWarning] = ScenarioWarning) -> None:
    """Issues a warning. Python shows it with the line of the user's program that called fedray.

    Example:
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     warn_user("predict.gamma cannot act")
        >>> caught[0].category.__name__, str(caught[0].message)
        ('ScenarioWarning', 'predict.gamma cannot act')
    """
    level = 2
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("fedray."):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


class Unwritable(FedrayError):
    """Raised if the machine cannot write a file. A later attempt may succeed."""


class Lost(FedrayError):
    """Raised if a worker process died with state that no other process has, such as private vectors of clients.

    The run then continues from its newest checkpoint.
    """


class Damaged(FedrayError):
    """Raised if a file of a run directory is missing, or has changed since the run wrote it.

    Attributes:
        reason: Name of the file and what is wrong with it.
        remedy: Advice to the user.
    """

    def __init__(self, reason: str, remedy: str) -> None:
        FedrayError.__init__(self, reason, remedy)
        self.reason, self.remedy = reason, remedy

    def __str__(self) -> str:
        return f"{self.reason}: {self.remedy}"


class DamageWarning(FedrayWarning):
    """Warns that a file of a run directory is damaged and was set aside."""


class Diverged(FedrayError):
    """Raised if a client's training ended with parameters that are NaN, infinite or too large to be added exactly."""


class Enough(FedrayError):
    """Raised by the function `watch` of `run_session` to stop the run after the round of the newest snapshot.

    The run is saved and can be resumed. It has no summary.
    """


class Overflow(FedrayError):
    """Raised if rows of numbers cannot be added exactly: they hold NaN, infinity, or values of magnitude 2**28 or more.

    Attributes:
        rows: Indices of the first such rows, at most five.
    """

    def __init__(self, rows: list[int]) -> None:
        FedrayError.__init__(self, rows)
        self.rows = rows

    def __str__(self) -> str:
        return f"rows {self.rows} hold NaN, infinity or numbers above 2.7e8"


# ---------------------------------------------------------------------------------------------------------------------
# Numbers, units, scores and names as text for people.

BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")  # each unit is 1000 times the unit before
TIME_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))  # (seconds, name)
TOTAL_NAMES = {  # total of a run -> name for people
    "up_bytes": "uplink",
    "down_bytes": "downlink",
    "sim_seconds": "virtual time",
    "wall_seconds": "wall time of the rounds",
}
TOTALS = tuple(TOTAL_NAMES)
TARGET_NAMES = {"seconds_to_target": "virtual seconds to target", "bytes_to_target": "uplink bytes to target"}


def name_score(name: str, *, unit: bool = False) -> str:
    """Returns the name under which tables and pages show a score or a total of a run.

    `name` is the score's key in `summary.json`. If `unit` is true, the score's unit follows in parentheses. Only the
    units nats, target units and squared target units are shown.

    Example:
        >>> name_score("nll", unit=True), name_score("hold_out_personal_accuracy"), name_score("rounds_to_target")
        ('NLL (nats)', 'held-out personalized accuracy', 'rounds to target')
    """
    split, inner = cut_split(name)
    found = find_score(inner)
    known = {**TOTAL_NAMES, **TARGET_NAMES}
    text = known.get(inner, inner.replace("_", " ")) if found is None else found.name
    behind = f" ({found.unit})" if unit and found is not None and found.unit in (NATS, TARGET, SQUARED) else ""
    return SPLITS.get(split, "") + text + behind


def format_score(value: Mapping[str, Any], worlds: int, name: str = "", largest: float | None = None) -> str:
    """Formats a metric's mean and standard deviation over the run's worlds, and the number of these worlds.

    A world is one combination of a seed and a fold.

    Args:
        value: A mapping with `mean`, `sd` and `n`, the number of worlds that have the metric. `mean` and `sd` may be
            None.
        worlds: Number of all worlds of the run. A world may lack the metric, for example because it did not reach a
            target.
        name: Name of the metric. Counts (of rounds or clients) have at most one decimal. Bytes and seconds have units.
        largest: If several values of bytes or seconds are shown in the same unit, the largest of these values. None
            means that each number has its own unit.

    Example:
        >>> format_score({"mean": 3.5, "sd": 0.7071, "n": 2}, 3)
        '3.5000 +- 0.7071 (n = 2 of 3)'
        >>> format_score({"mean": 3.0, "sd": None, "n": 1}, 1)
        '3.0000'
        >>> format_score({"mean": 0.00004, "sd": 0.00001, "n": 3}, 3)
        '4e-05 +- 1e-05 (n = 3)'
        >>> format_score({"mean": None, "sd": None, "n": 0}, 1)
        ''
        >>> format_score({"mean": 7.666, "sd": 0.5773, "n": 3}, 3, "rounds_to_target")
        '7.7 +- 0.6 (n = 3)'
        >>> format_score({"mean": 11.0, "sd": None, "n": 1}, 1, "personal_roc_auc_clients")
        '11'
        >>> format_score({"mean": 466240.0, "sd": 117466.2, "n": 3}, 3, "bytes_to_target")
        '466 kB +- 117 kB (n = 3)'
    """
    if value["mean"] is None:
        return ""
    form = ".4g" if 0 < abs(value["mean"]) < 0.01 else ".4f"
    found = find_score(name)
    unit = None if found is None else found.unit

    def write(number: float) -> str:
        if name in TARGET_NAMES or unit == BYTES:
            return format_total(name, number, largest)
        counts = name == "rounds_to_target" or unit == CLIENTS
        return f"{number:.1f}".removesuffix(".0") if counts else f"{number:{form}}"

    mean, sd = ("" if value[key] is None else write(value[key]) for key in ("mean", "sd"))
    spread = f" +- {sd}" if sd else ""
    count = f"n = {value['n']}" + (f" of {worlds}" if value["n"] < worlds else "")
    return mean + spread + (f" ({count})" if worlds > 1 else "")


def choose_unit(quantity: str, largest: float) -> tuple[float, str]:
    """Returns the divisor and the name of the unit in which the values of an axis are shown.

    `quantity` is `bytes` or `seconds`, and `largest` is the largest value of the axis in bytes or seconds.

    Example:
        >>> choose_unit("bytes", 3e7), choose_unit("seconds", 7200)
        ((1000000, 'MB'), (60, 'min'))
    """
    if quantity == "bytes":
        power = min(int(math.log10(max(largest, 1)) / 3 + 1e-9), len(BYTE_UNITS) - 1)
        return 1000**power, BYTE_UNITS[power]
    return next(((size, name) for size, name in TIME_UNITS if largest >= 3 * size), (1, "s"))


def format_bytes(number: float) -> str:
    """Writes a number of bytes with a unit and at most three significant digits.

    Example:
        >>> format_bytes(0), format_bytes(1234), format_bytes(5.6e9)
        ('0 B', '1.23 kB', '5.6 GB')
    """
    size, name = choose_unit("bytes", abs(number))
    return f"{number / size:.4g} {name}" if number / size >= 999.5 else f"{number / size:.3g} {name}"


def format_seconds(number: float) -> str:
    """Writes a number of seconds with a unit and at most three significant digits.

    Example:
        >>> format_seconds(0.25), format_seconds(90), format_seconds(7200)
        ('0.25 s', '1.5 min', '2 h')
    """
    size, name = next(((size, name) for size, name in TIME_UNITS if abs(number) >= size), (1, "s"))
    return f"{number / size:.3g} {name}"


def format_total(name: str, value: float | None, largest: float | None = None) -> str:
    """Writes a run's total of bytes or seconds with a unit.

    `value` is the total in bytes or seconds. None means infinity. If several totals are shown in the same unit,
    `largest` is the largest of these totals.

    Example:
        >>> format_total("up_bytes", 2e6), format_total("sim_seconds", 90)
        ('2 MB', '1.5 min')
        >>> format_total("sim_seconds", 30, largest=240)
        '0.5 min'
    """
    if value is None or not math.isfinite(value):
        return "infinite"
    if largest is not None:
        size, unit = choose_unit("bytes" if "bytes" in name else "seconds", largest)
        return f"{value / size:.3g} {unit}"
    return format_bytes(value) if "bytes" in name else format_seconds(value)


def format_number(value: float, name: str = "") -> str:
    """Formats a value of the metric `name`: a share (0 to 1) in percent, other values with four significant digits.

    Example:
        >>> format_number(0.91234, "accuracy"), format_number(1.23456, "rmse")
        ('91.2 %', '1.235')
    """
    return f"{100 * value:.1f} %" if is_share(name) else f"{value:.4g}"


def format_digits(value: float, digits: int, sign: str = "") -> str:
    """Writes a number with `digits` significant digits. Trailing zeros stay, so that columns are aligned.

    If `sign` is `+`, positive numbers begin with a plus sign.

    Example:
        >>> format_digits(0.587, 4), format_digits(1000.2, 4), format_digits(-0.013, 3, "+")
        ('0.5870', '1000', '-0.0130')
    """
    return f"{value:{sign}#.{digits}g}".removesuffix(".")


def is_share(name: str) -> bool:
    """Returns whether a metric is a share (0 to 1), which is written in percent."""
    found = find_score(name)
    return found is not None and found.unit == SHARE


def quote_value(value: object, most: int = 60) -> str:
    r"""Writes a value as one line of at most `most` characters, for messages.

    Example:
        >>> quote_value("a" * 100, 10), quote_value(True), quote_value(10**400)
        ("'aaaaaa...", 'true', 'about 10^400')
    """
    if isinstance(value, str):
        value = value[: 2 * most]
    elif isinstance(value, int) and abs(value) >= 10**19:
        return f"about {'-' if value < 0 else ''}10^{int(value.bit_length() * math.log10(2))}"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."


def show_line(message: object, most: int = 300) -> str:
    r"""Writes a message, such as an error of a different library, as one line of printable characters.

    The line has at most `most` characters.

    Example:
        >>> show_line("no\nsuch\x1b file ")
        'no such file'
    """
    return " ".join("".join(c if c.isprintable() else " " for c in str(message)[: 4 * most]).split())[:most]


def find_nearest(word: str, known: Iterable[str]) -> str | None:
    """Returns the known word that is spelled most like `word`, or None if no known word is similar.

    The case of letters does not matter, and `-` equals `_`. Two words are also similar if one contains the other.

    Example:
        >>> find_nearest("Fed-Avg", ["fed_avg", "fedprox"]), find_nearest("xyz", ["fed_avg"])
        ('fed_avg', None)
    """
    lower = {k.lower(): k for k in reversed(list(known))}
    wanted = word.lower().replace("-", "_")
    near = difflib.get_close_matches(wanted, lower, n=1, cutoff=0.6)
    if near:
        return lower[near[0]]
    inside = [k for k in lower if len(wanted) > 2 and (wanted in k or (len(k) > 2 and k in wanted))]
    return lower[inside[0]] if inside else None


def name_some(names: Sequence[str], most: int = 3) -> str:
    """Returns the first `most` names as text, with the number of other names.

    Example:
        >>> name_some("abc"), name_some("abcde")
        ('a, b, c', 'a, b, c and 2 more')
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if names[most:] else "")


def suggest_nearest(word: object, known: Iterable[str], otherwise: str, prefix: str = "") -> str:
    """Returns the question whether the user meant the most similar known word, or `otherwise` if no word is similar.

    Args:
        word: The user's value. If it is not text, no word is similar.
        known: The allowed words.
        otherwise: The text that is returned if no known word is similar to `word`.
        prefix: Text before the known word in the question, for example `method.`.

    Example:
        >>> suggest_nearest("digit", ["digits", "mnist"], "choose one of digits, mnist")
        'did you mean digits?'
    """
    near = find_nearest(word, known) if isinstance(word, str) else None
    return f"did you mean {prefix}{near}?" if near else otherwise
