"""Describes the options of methods, models, partitions and data: allowed values, defaults and meanings."""

import re
from collections.abc import Callable, Collection, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from fedray.core.errors import BadInput, quote_value, suggest_nearest

# ---------------------------------------------------------------------------------------------------------------------
# Checks of values. A check is a function that takes a scenario's value and returns the value for the program.
#
# For a wrong value a check raises ValueError("is not ...: give ..."). The caller puts `key = value ` before this
# message. A check returns its own results unchanged. The reference shows the check's description (`describe_check`).

Check = Callable[[Any], Any]
AnyCheck = TypeVar("AnyCheck", bound=Callable[..., Any])
_EXPONENT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+", re.ASCII)
_INTERVAL = re.compile(r"([\[(])(\S+), (\S+)([\])])")


class Meaning(NamedTuple):
    """A description of the values that a check accepts.

    Attributes:
        kind: The kind of value, such as `whole number`, `number`, `text` or `word`.
        values: The accepted interval or words. Empty means every value of the kind.
        empty: Whether null is also accepted.
    """

    kind: str
    values: str = ""
    empty: bool = False


_MEANINGS: WeakKeyDictionary[Callable[..., Any], Meaning] = WeakKeyDictionary()


def means(kind: str, values: str = "", empty: bool = False) -> Callable[[AnyCheck], AnyCheck]:
    """Returns a decorator that describes the values a check accepts. The arguments are the fields of `Meaning`."""

    def remember(check: AnyCheck) -> AnyCheck:
        _MEANINGS[check] = Meaning(kind, values, empty)
        return check

    return remember


def describe_check(check: Callable[..., Any]) -> Meaning:
    """Returns the description of a check of values. A check without a description has the kind `value`.

    Example:
        >>> describe_check(either("all", whole(1, 9))), describe_check(len).kind
        (Meaning(kind='whole number', values='1 to 9, or `all`', empty=False), 'value')
        >>> describe_check(maybe(whole(1, 9)))
        Meaning(kind='whole number', values='1 to 9', empty=True)
    """
    return _MEANINGS.get(check, Meaning("value"))


def check_value(key: str, value: Any, check: Check) -> Any:
    """Returns the checked value of a key. A wrong value raises `BadInput` with the key and the value.

    Example:
        >>> check_value("local.lr", "1e-3", real("(0, inf)"))
        0.001
    """
    try:
        return check(value)
    except ValueError as wrong:
        raise BadInput(f"{key} = {quote_value(value)} {wrong}") from None


def _to_number(value: Any) -> Any:
    """Converts numbers that YAML 1.1 reads as text (`12.5e6`, `1e-3`). Other values stay unchanged."""
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


def whole(low: int, high: int) -> Check:
    """Returns a check that accepts a whole number from low to high. The text `1e3` counts as a whole number.

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
    """Returns a check that accepts a number in an interval such as `(0, 1]`.

    Infinity is accepted only at a closed end of the interval.

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
    """Accepts the name of a column. A name that is a number needs no quotes."""
    return text(str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value)


@means("name", "letters, digits, `_` and `-`")
def label(value: Any) -> str:
    """Accepts a name that can be part of a key or of a file name."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", value):
        raise ValueError("cannot be a name: use up to 64 letters, digits, '_' and '-'")
    return value


def one_of(*words: str) -> Check:
    """Returns a check that accepts the words `words`, and no other value."""

    @means("word", ", ".join(f"`{word}`" for word in words))
    def check(value: Any) -> str:
        if isinstance(value, str) and value in words:
            return value
        raise ValueError(f"is not one of {', '.join(words)}: {suggest_nearest(value, words, 'choose one')}")

    return check


@means("word", "`auto`, `cpu`")
def device(value: Any) -> str:
    """Accepts the name of a device on which clients are trained."""
    if value not in ("auto", "cpu"):
        raise ValueError(
            "is not one of auto, cpu: auto uses the GPUs of this machine where they are faster, and those that tiers "
            "reserve (clients.tiers.NAME.num_gpus)"
        )
    return str(value)


@means("word", "`tensorboard`, `wandb`, `mlflow`, each also with `:VALUE`")
def logger(value: Any) -> str:
    """Accepts the name of a run logger. `:VALUE` after the name replaces the default directory, project or URI."""
    name, colon, where = value.partition(":") if isinstance(value, str) else (value, "", "")
    one_of("tensorboard", "wandb", "mlflow")(name)
    if colon and not where:
        raise ValueError("has nothing behind the colon: leave the colon out, or name a directory, project or URI")
    return str(value)


def either(word: str, check: Check) -> Check:
    """Returns a check that accepts the text `word`, and every value that `check` accepts."""
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
    """Returns a check that accepts None, and every value that `check` accepts."""
    kind, values, _ = describe_check(check)

    @means(kind, values, empty=True)
    def checked(value: Any) -> Any:
        try:
            return None if value is None else check(value)
        except ValueError as wrong:
            raise ValueError(f"{wrong}, or null for none") from None

    return checked


def list_of(check: Check, most: int, scalar: bool = False) -> Check:
    """Returns a check that accepts a list of at most `most` entries, if `check` accepts each of them.

    If `scalar` is true, a single value counts as a list of one entry.
    """
    kind, values, _ = describe_check(check)

    @means(f"list of {kind}s" if kind != "true or false" else "list of flags", values)
    def checked(value: Any) -> list[Any]:
        entries = [value] if scalar and isinstance(value, int | float | str) else value
        if not isinstance(entries, list | tuple):
            raise ValueError("is not a list: write it as [a, b]")
        if len(entries) > most:
            raise ValueError(f"has {len(entries)} entries: give {most} at most")
        return [_check_entry(check, quote_value(entry), entry) for entry in entries]

    return checked


def map_of(check: Check) -> Check:
    """Returns a check that accepts a mapping from text to values, if `check` accepts each value."""

    @means(f"names, each with a {describe_check(check).kind}", describe_check(check).values)
    def checked(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError("is not a mapping: write it as {name: value}")
        shown = {key: f"{quote_value(key)}: {quote_value(entry)}" for key, entry in value.items()}
        return {text(key): _check_entry(check, shown[key], entry) for key, entry in value.items()}

    return checked


def _check_entry(check: Check, shown: str, entry: Any) -> Any:
    """Returns the checked value of an entry of a list or mapping. Messages show the entry as `shown`."""
    try:
        return check(entry)
    except ValueError as wrong:
        raise ValueError(f"holds {shown}, which {wrong}") from None


@means("number", "0, 1/n or 1")
def gpu_share(value: Any) -> float:
    """Accepts the number of GPUs of a Ray actor: 0, 1/n or 1, which Ray schedules reliably. 0.33 counts as 1/3.

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
# What scenarios know about the names of methods, models and partitions, and about their options.

REQUIRED: Any = ...  # the default of an option that a scenario must set


class Needs(NamedTuple):
    """The condition under which a key of a scenario has an effect: a second key must have one of certain values.

    Attributes:
        key: Dotted name of the second key. `.kind` is the key `kind` of the same section.
        values: The values of the second key with which the first key has an effect.

    Example:
        >>> Needs(".kind", ("step",)).of("server.schedule.at").key
        'server.schedule.kind'
    """

    key: str
    values: tuple[Any, ...]

    def of(self, key: str) -> "Needs":
        """Returns this condition for the first key `key`, with the full name of the second key in place of `.kind`."""
        return self._replace(key=key.rpartition(".")[0] + self.key) if self.key.startswith(".") else self


class Option(NamedTuple):
    """One option of a method, data set, model or partition.

    Attributes:
        default: The value in scenarios that do not set the option. None means that the option is absent. `REQUIRED`
            means that every scenario must set it.
        check: The check of the value. If `sections` is true, the check takes a `ReadSections` as its second argument.
        text: Meaning of the option. Only options of methods have a text.
        needs: The condition under which the option has an effect. None means always.
        sections: Whether the value consists of parts with keys of their own, such as a part for each network.
    """

    default: Any
    check: Callable[..., Any]
    text: str = ""
    needs: Needs | None = None
    sections: bool = False


class ReadSections(NamedTuple):
    """The functions that read sections inside an option.

    Attributes:
        network: A function that reads a network. It takes the section's key, the section (with keys as in `model`), and
            checks of further keys. It returns the section with its defaults.
        classifier: A function that reads a scikit-learn classifier. It takes the section's key and the section. It
            returns the section with its defaults, or None if the section names no classifier.
        classifiers: Names of the classifiers.
    """

    network: Callable[[str, Mapping[str, Any], Mapping[str, Check]], dict[str, Any]]
    classifier: Callable[[str, Mapping[str, Any]], dict[str, Any] | None]
    classifiers: Collection[str]


class Section(NamedTuple):
    """A section of a scenario or a sweep.

    Attributes:
        kind: The dataclass with the section's keys.
        many: `list` for a list of such sections, `dict` for several sections with names, None for one section.
        example: Keys and values that a message suggests to a user who gave a single value in place of the section. If
            the user's value is a number, it replaces the last value of the example.
        what: Words for the section in messages, such as `a sweep`. It is empty for the sections of scenarios.
    """

    kind: Any
    many: type | None = None
    example: Mapping[str, Any] = {}
    what: str = ""


def key(default: Any, check: Check, needs: Needs | None = None) -> Any:
    """Returns the dataclass field for a key of a scenario or a sweep. The arguments are fields of `Option`."""
    option = {"key": Option(default, check, needs=needs)}
    if default is REQUIRED:
        return field(metadata=option)
    if isinstance(default, list | dict):
        return field(default_factory=partial(copy, default), metadata=option)
    return field(default=default, metadata=option)


def section(kind: Any, default: Any = ..., *, example: Mapping[str, Any] = {}, what: str = "") -> Any:
    """Returns the dataclass field for a section of a scenario or a sweep.

    Args:
        kind: The dataclass with the section's keys.
        default: None means that the section may be absent. A list means a list of sections. A dict means several
            sections with names. Without this argument there is one section, and its keys have their defaults if a
            scenario leaves the section out.
        example: See `Section.example`.
        what: See `Section.what`.
    """
    many = type(default) if isinstance(default, list | dict) else None
    made = {"section": Section(kind, many, example, what)}
    if default is None:
        return field(default=None, metadata=made)
    return field(default_factory=many or kind, metadata=made)


OptionSpecs = Mapping[str, Option]


@dataclass(frozen=True)
class NameSpec:
    """A model or a partition that scenarios can name.

    Attributes:
        text: One line for `fedray list`.
        options: The options. They are keys in the same section as the name.
        more: Whether the section may have other keys. The model or partition gets them unchanged.

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
    """The facts that scenarios need about a method. Each method's file in `fedray/methods/` sets these fields.

    Attributes:
        text: One line for `fedray list methods` and the table of all methods.
        family: The method's group in the table of methods.
        models: Possible numbers of models: any number (`any`), one (`one`), or one per client (`clients`).
        options: The options of the method, which are keys of the section `method`.
        defaults: Settings of the method's paper, as a tree of scenario keys. A scenario may change them.
        clients: Number of clients, N, if neither the scenario nor the data set determines it.
        classes: Whether the method needs data with classes.
        fixed: What keys of a scenario cannot change. With `robust`, `server.robust` cannot replace the mean of the
            uploads. With `optimizer`, `server.optimizer` cannot act on the mean delta. With `averages`, uploads of
            several clients are not averaged, and `server.weighting` has no effect. With `coefficients`,
            `server.coefficients` cannot weigh the tiers in the mean. With `schedules`, the method and not
            `schedule.kind` decides which clients train which models.
        pooled: Whether one client holds all samples. Such methods are not federated, and serve for comparison.
        walks: Whether models move from client to client along a graph, without a server.
        trains: Whether clients train in rounds. If not, `local`, `compress` and `server` have no effect.
        downloads: Whether clients download anything. If not, `downlink` of `clients.tiers` has no effect.
        samples: Whether a prediction is an average of several predictions, even if the method trains one model.
        splits: Whether layers of the network may stay with the clients (`local.private`).
        own_models: Whether a client of the run predicts with its own models. If so, `predict.gamma` has no effect.
        all_models: Whether every participant trains all K models. `models_per_round` of tiers then has no effect.
        in_rounds: Reason why the method cannot be trained asynchronously. In messages, the text follows the method's
            name. Empty means that this field gives no reason. `walks`, `pooled` and `models` may still give a reason.
        private: A description of the state that clients keep between rounds and never send. Empty means that clients
            keep no state.
        parts: Whether the method is a stack. A stack has several trainings, one after the other.
        asks: Whether clients compute predictions of the received models before they train.
        fits: What each round adds to the ensemble, if clients fit learners such as trees. With `one`, it adds one
            learner. With `each`, it adds each client's learner. With `committee`, it adds one voter that consists of
            all learners. Empty means that clients train a network.
        network: A function that takes the scenario's network, the options, the shape of an input and the network's
            name. It returns the module that is trained. None means the scenario's network.
        slices: A function that takes the network, the widths of the tiers, one input, the options and the method's
            name. It returns for each tier a `TierNet`: the part of the network that the tier trains. `width` of
            `clients.tiers` has an effect only with this function. None means that all tiers train the whole network.
        stack: A function that takes the network, the numbers of clients, classes and rounds, and the options. It
            returns a `Stack`: the clients' own networks, and the model or rule that combines their predictions. None
            means that the method is no stack.
        draws: Whether the networks that predict are drawn from a model's Gaussian. The option `samples` sets how many.
        sparse: Whether uploads may be sparse (`compress.kind` topk or randomk).
        sampled: Whether a model consists of several samples of a client's posterior. An option sets the number of
            samples.
        server_steps: Whether the server makes training steps. If not, `server.seconds_per_step` and
            `server.seconds_per_sample` have no effect.
        step: Name of the option that is the method's own step size. A large step size can make training diverge. Empty
            means no such option.
    """

    text: str
    family: str = ""
    models: Literal["any", "one", "clients"] = "any"
    options: OptionSpecs = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    clients: int = 100
    classes: bool = False
    fixed: tuple[Literal["robust", "optimizer", "averages", "coefficients", "schedules"], ...] = ()
    pooled: bool = False
    walks: bool = False
    trains: bool = True
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
    stack: Callable[..., Any] | None = None
    draws: bool = False
    sparse: bool = True
    sampled: bool = False
    server_steps: bool = False
    step: str = ""


# ---------------------------------------------------------------------------------------------------------------------
# The options for reading a user's own data.


class ReadOptions(NamedTuple):
    """The options for reading a user's own data.

    Attributes:
        target: Name of the column to predict. None means that the form of the data fixes the target.
        input: Names of the input columns: one column of images, lists or text, or several columns of numbers, truth
            values and categories. None means that the form of the data fixes the inputs. The inputs of a table are then
            all columns that are neither target nor group nor in `exclude`.
        exclude: Names of columns of a table that are no inputs. They may be given only if `input` is None.
        group: Name of the column with the client of each sample.
        test: The test samples in the same form as the data, or the name of the part of the data that holds them. None
            means the test part of the data. If the data have no test part, test samples are drawn from all samples.
        test_fraction: Fraction of all samples that becomes test samples, if the data have no test part. If whole
            clients are test clients (`data.test_clients`), the default is 0.
        task: `auto`, `classification` or `regression`.
        missing: Treatment of missing values. `refuse` raises an error. `mean` replaces a missing number by the mean of
            the training samples, and makes missing text a category. `drop` leaves out samples with missing values.
        tokenizer: The tokenizer of text: a function, a tokenizer object, its file, or its name in the user's cache.
        length: Number of tokens in a sample. Shorter samples are filled up with zeros. None means the length of the
            longest sample, at most 256.
        size: Height and width in pixels to which pictures are resized. None means that pictures keep their size. They
            must then all have the same size.
        input_key: The name that messages use for the option `input`.
    """

    target: Any = None
    input: Any = None
    exclude: Any = None
    group: str | None = None
    test: Any = None
    test_fraction: float = 0.2
    task: str = "auto"
    missing: str = "refuse"
    tokenizer: Any = None
    length: int | None = None
    size: int | None = None
    input_key: str = "input"


CHECKS: dict[
    str, Check
] = {  # for scenarios; in Python `target`, `input`, `exclude`, `test` and `tokenizer` may be more
    "target": column_name,
    "input": list_of(column_name, 65_536, scalar=True),
    "exclude": list_of(column_name, 65_536, scalar=True),
    "group": column_name,
    "test": text,
    "test_fraction": real("[0, 1)"),
    "task": one_of("auto", "classification", "regression"),
    "missing": one_of("refuse", "mean", "drop"),
    "tokenizer": text,
    "length": whole(1, 100_000),
    "size": whole(1, 4096),
}
NUMBERS_AND_WORDS = ("test_fraction", "task", "missing", "length", "size")


def options_of(names: str) -> OptionSpecs:
    """Returns some fields of `ReadOptions` as options of a data set.

    `names` are the fields, separated by spaces.

    Example:
        >>> options_of("task size")["task"].default
        'auto'
    """
    return {name: Option(ReadOptions._field_defaults[name], CHECKS[name]) for name in names.split()}
