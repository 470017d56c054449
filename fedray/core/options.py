"""Options of methods, models, partitions and the rest: what a value may be, its default, what it means."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from fedray.core.errors import quote_value, suggest_nearest

# ---------------------------------------------------------------------------------------------------------------------
# What a value may be: each kind is a function value -> value that raises ValueError("is not ...: give ...").
#
# The message is put behind `key = value ` by whoever knows the key. A kind accepts its own results unchanged, and
# says what it accepts (`describe_check`), for the reference.

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
        >>> describe_check(maybe(whole(1, 9)))
        Meaning(kind='whole number', values='1 to 9', empty=True)
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


# ---------------------------------------------------------------------------------------------------------------------
# What a name in a scenario stands for: a line of text, the options that stand beside the name, and more of a method.

REQUIRED: Any = ...  # the default of an option that must be given


class Needs(NamedTuple):
    """What a key needs to be read by anything.

    Attributes:
        key: another key, dotted.
        values: of that key, with which this one is read.
    """

    key: str
    values: tuple[Any, ...]


class Option(NamedTuple):
    """One option of a method, data set, model or partition.

    Attributes:
        default: its value where a scenario does not set it; None: the option is then absent; `REQUIRED`: it must be
            set.
        check: what its value may be (`fedray.core.options`); of `sections` it takes a `ReadSections` beside it.
        text: what it means, of a method's option.
        needs: under which other key it is read; None: always.
        sections: whether its value is made of sections like `model`.
    """

    default: Any
    check: Callable[..., Any]
    text: str = ""
    needs: Needs | None = None
    sections: bool = False


class ReadSections(NamedTuple):
    """How sections in an option are read: the names of networks and classifiers belong to scenarios.

    Attributes:
        network: (dotted key, section like `model`, checks of its further keys) -> the section with its defaults.
        classifier: (dotted key, section) -> the section of a classifier of scikit-learn; None where it names none.
        classifiers: names of the classifiers.
    """

    network: Callable[[str, Mapping[str, Any], Mapping[str, Check]], dict[str, Any]]
    classifier: Callable[[str, Mapping[str, Any]], dict[str, Any] | None]
    classifiers: Collection[str]


class Section(NamedTuple):
    """A section of a scenario.

    Attributes:
        kind: the dataclass of its keys.
        many: a list of such sections, or a dict of them by name; None: it is one.
        example: the keys to write where somebody gave one value; what a number alone is meant for comes last.
    """

    kind: Any
    many: type | None = None
    example: Mapping[str, Any] = {}


def key(default: Any, check: Check, needs: Needs | None = None) -> Any:
    """Returns a field of a dataclass that is a key of a scenario; the arguments are fields of `Option`."""
    option = {"key": Option(default, check, needs=needs)}
    if default is REQUIRED:
        return field(metadata=option)
    if isinstance(default, list | dict):
        return field(default_factory=partial(copy, default), metadata=option)
    return field(default=default, metadata=option)


def section(kind: Any, default: Any = ..., *, example: Mapping[str, Any] = {}) -> Any:
    """Returns a field of a dataclass that is a section of a scenario.

    Args:
        kind: the dataclass of its keys.
        default: None: it may be absent; a list or dict: there may be several, listed or by name; else all its keys
            have their defaults.
        example: as in `Section`.
    """
    many = type(default) if isinstance(default, list | dict) else None
    made = {"section": Section(kind, many, example)}
    if default is None:
        return field(default=None, metadata=made)
    return field(default_factory=many or kind, metadata=made)


OptionSpecs = Mapping[str, Option]


@dataclass(frozen=True)
class NameSpec:
    """A model or a partition, as scenarios know it.

    Attributes:
        text: one line for `fedray list`.
        options: its own keys, which stand beside its name.
        more: whether further keys are handed on as they are, to what the name stands for.

    Example:
        >>> from fedray.core.options import real
        >>> NameSpec("a partition", {"alpha": Option(0.5, real("(0, inf)"))}).options["alpha"].check("0.1")
        Traceback (most recent call last):
        ...
        ValueError: is not a number: give one in (0, inf)
    """

    text: str
    options: OptionSpecs = field(default_factory=dict)
    more: bool = False


@dataclass(frozen=True)
class MethodSpec:
    """What fedray knows of a method by its name; it stands in the method's file, `fedray/methods/`.

    Attributes:
        text: one line for `fedray list methods` and the table of all methods.
        family: the group of the table of methods in which it stands.
        models: how many models K it trains: `any` number, `one` by definition, or one for each of the `clients`.
        options: its own keys in the section `method`.
        defaults: what its paper sets, as a tree of scenario keys; a scenario's own keys win.
        clients: N where neither the scenario nor the data says it.
        robust: whether `server.robust` may take the place of its mean.
        optimizer: whether `server.optimizer` may act on its mean delta.
        pooled: whether one client holds all rows (references without a federation).
        walks: whether models walk over a graph of clients instead of meeting at a server.
        trains: whether clients train in rounds, so that `local`, `compress` and `server` act.
        averages: whether uploads of several clients meet in one mean, so that `server.weighting` acts.
        coefficients: whether `server.coefficients` may weigh the tiers in that mean.
        schedules: whether `schedule.kind` says who trains which model.
        downloads: whether clients download anything, so that `downlink` of `clients.tiers` acts.
        samples: whether an answer is an average even if there is one model.
        splits: whether layers of its network may stay with the clients (`local.private`).
        own_models: whether a known client answers with models of its own, so that `predict.gamma` weighs nothing.
        all_models: whether every participant trains all K models, whatever its tier says.
        in_rounds: why it cannot train without rounds, to be read behind its name; empty: it can, for all that is known.
        private: which state its clients keep for themselves between rounds, in words; empty: none.
        parts: whether its model is made of parts that train one after another.
        asks: whether its clients ask the models what they answer, and train by it.
        fits: of methods whose clients fit learners and do not descend: what a round adds to the ensemble, `one`
            learner, all as one `committee`, or `each` with a vote; empty: clients train a network.
        network: what it trains in place of the scenario's network, a function (network, options, shape of an input,
            name of the network) -> module; None: the network itself.
        slices: which part of the network a tier trains, so that `width` of `clients.tiers` acts, a function (network,
            widths of the tiers, a row of inputs, options, name of the method) -> a `TierNet` for each; None: all of it.
        mean_field: what a model has beside a Gaussian over the network's weights, whose first rho is an option: its
            `prior`, or a client's `site`; empty: it is a network.
        sparse: whether uploads may be sparse (`compress.kind` topk or randomk).
        sampled: whether a model is several samples of a client's posterior, whose number is an option.
        step: the option that is a step beside `local.lr`, with which training can diverge; empty: none.
    """

    text: str
    family: str = ""
    models: Literal["any", "one", "clients"] = "any"
    options: OptionSpecs = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    clients: int = 100
    robust: bool = True
    optimizer: bool = True
    pooled: bool = False
    walks: bool = False
    trains: bool = True
    averages: bool = True
    coefficients: bool = True
    schedules: bool = True
    downloads: bool = True
    samples: bool = False
    splits: bool = False
    own_models: bool = False
    all_models: bool = False
    in_rounds: str = ""
    private: str = ""
    parts: bool = False
    asks: bool = False
    fits: Literal["", "one", "committee", "each"] = ""
    network: Callable[..., Any] | None = None
    slices: Callable[..., Any] | None = None
    mean_field: Literal["", "prior", "site"] = ""
    sparse: bool = True
    sampled: bool = False
    step: str = ""


# ---------------------------------------------------------------------------------------------------------------------
# How a user's own data are read: one row an option, which both doors, the loaders and the reference ask.


class ReadOptions(NamedTuple):
    """How a user's data are read.

    Attributes:
        target: The column to predict: one, also for a regression; None where the form says it.
        input: The inputs: a column of images, lists or text, or columns of numbers, truth values and categories; None
            where the form says it, or all other columns of a table.
        group: Column of the natural clients.
        test: The test rows, in the form of the data, or which of its parts they are; None: as the form says, or drawn.
        test_fraction: Share of the rows that are drawn as test rows where none are given.
        task: `auto`, `classification` or `regression`.
        missing: `refuse` missing values, put the `mean` of the training rows in their place (text gets a category of
            its own), or `drop` the rows that have them.
        tokenizer: Makes tokens of text: a function, a tokenizer, its file, or its name in the user's cache.
        length: Tokens of a row; shorter ones end in zeros. None: those of the longest row, 256 at most.
        size: Height and width that pictures are brought to; None: they are as they are, all of one size.
        input_key: What `input` is called where the options stand, for messages.
    """

    target: Any = None
    input: Any = None
    group: str | None = None
    test: Any = None
    test_fraction: float = 0.2
    task: str = "auto"
    missing: str = "refuse"
    tokenizer: Any = None
    length: int | None = None
    size: int | None = None
    input_key: str = "input"


CHECKS: dict[str, Check] = {  # of what a scenario says; in Python `target`, `input`, `test` and `tokenizer` may be more
    "target": column_name,
    "input": list_of(column_name, 65_536, scalar=True),
    "group": column_name,
    "test": text,
    "test_fraction": real("(0, 1)"),
    "task": one_of("auto", "classification", "regression"),
    "missing": one_of("refuse", "mean", "drop"),
    "tokenizer": text,
    "length": whole(1, 100_000),
    "size": whole(1, 4096),
}
NUMBERS_AND_WORDS = ("test_fraction", "task", "missing", "length", "size")


def options_of(names: str) -> OptionSpecs:
    """Some of the options of reading, by their names, as options of a data set.

    Example:
        >>> options_of("task size")["task"].default
        'auto'
    """
    return {name: Option(ReadOptions._field_defaults[name], CHECKS[name]) for name in names.split()}
