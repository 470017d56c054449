"""Calls a user's own functions: checks arguments and results, and reports an exception as one line."""

from __future__ import annotations

import copy
import importlib
import inspect
import math
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from fedray.core.errors import BadInput, FedrayError, quote_value, suggest_nearest
from fedray.own_code.source_code import hash_file, is_own_module, list_code

# ---------------------------------------------------------------------------------------------------------------------
# A user's own code that raises: the exception as one line with the line of their code, and no traceback of fedray.

MOST_TEXT = 300  # characters of an exception's text
_INSTALLED = ("site-packages", "dist-packages")


@contextmanager
def blame_user_code(what: str, of_none: str = "") -> Iterator[None]:
    """Says in one line what the user's code in the block raised, and where; fedray's own errors pass.

    Args:
        what: The user's object, such as `method.name = mine`.
        of_none: What follows where their code took None for something else.

    Raises:
        FedrayError: The block raised something else. The exception is its cause.

    Example:
        >>> def load():
        ...     raise ValueError("no such folder")
        >>> with blame_user_code("data.name = mine"):
        ...     load()
        Traceback (most recent call last):
        fedray.core.errors.FedrayError: data.name = mine raised ValueError: no such folder
    """
    try:
        yield
    except FedrayError:
        raise
    except Exception as error:
        remedy = of_none if "NoneType" in str(error) else ""
        raise FedrayError(f"{what} raised {describe_exception(error)}{remedy}") from error


def describe_exception(error: BaseException) -> str:
    """Returns the type, the text and the place of an exception in one line.

    Example:
        >>> describe_exception(KeyError("target"))
        "KeyError: 'target'"
    """
    text = " ".join(str(error).split())[:MOST_TEXT]
    line = find_user_line(error)
    return f"{type(error).__name__}{': ' if text else ''}{text}{'' if line is None else f' ({line})'}"


def find_user_line(error: BaseException) -> str | None:
    """Returns the file and the line of the user's code that an exception came through last; None where it met none.

    The file is relative to the working directory if it is below it. What is installed, Python itself and fedray are not
    the user's code; an installed package is, if an exception met nothing else.
    """
    found = None
    for frame, number in traceback.walk_tb(error.__traceback__):
        if _is_users(frame.f_code.co_filename):
            found = f"{_shorten_path(frame.f_code.co_filename)}:{number}"
    if found is None and isinstance(error, SyntaxError) and error.filename and _is_users(error.filename):
        found = f"{_shorten_path(error.filename)}:{error.lineno}"
    return found


def name_type(value: Any) -> str:
    """Returns what a value is, with its article, for a message: "None", "a tuple", "the class Dataset".

    Example:
        >>> name_type(None), name_type((1, 2)), name_type(int), name_type(3)
        ('None', 'a tuple', 'the class int', 'an int')
    """
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeio' else 'a'} {name}"


def takes_positional(thing: Callable[..., Any], number: int, keywords: Iterable[str] = ()) -> bool:
    """Whether a thing can be called with so many positional arguments, and keywords; True where nothing says it.

    Args:
        thing: A function, a class, a partial, or an object that can be called.
        number: Of positional arguments.
        keywords: Names of further arguments.

    Example:
        >>> takes_positional(lambda x, y: ..., 2), takes_positional(lambda x, *, y: ..., 1)
        (True, False)
    """
    try:
        inspect.signature(thing).bind(*[None] * number, **dict.fromkeys(keywords))
    except TypeError:
        return False
    except ValueError:  # a built-in function does not say what it takes
        return True
    return True


def explain_uncallable(
    thing: Any, arguments: str, keywords: Iterable[str] = (), *, classes: bool = False
) -> str | None:
    """Why a user's function cannot be called as fedray does, behind the words "it" or its name; None where it can.

    Args:
        thing: What stands in the place of the function.
        arguments: What it is called with, such as "state, stats, t"; empty: nothing.
        keywords: Names of further arguments.
        classes: Whether a class will do, whose objects are what is wanted.

    Example:
        >>> explain_uncallable(lambda outputs, targets: ..., "outputs, targets, context")
        'does not take (outputs, targets, context)'
        >>> explain_uncallable(int, "scored"), explain_uncallable(print, "round, scores, models")
        ('is the class int', None)
    """
    if not callable(thing) or (isinstance(thing, type) and not classes):
        return f"is {name_type(thing)}"
    names, known = arguments.split(", ") if arguments else [], list(keywords)
    if takes_positional(thing, len(names), known):
        return None
    names += [f"{name}=..." for name in known]
    return f"does not take ({', '.join(names)})" if names else "cannot be called without arguments"


@cache
def _is_users(file: str) -> bool:
    """Whether a file, or what stands for one, is a user's."""
    if file.startswith("<"):
        return file.startswith(("<stdin", "<string", "<ipython"))
    path, paths = Path(file), sysconfig.get_paths()
    if any(part in _INSTALLED for part in path.parts) or path.is_relative_to(Path(__file__).parent.parent):
        return False
    return not any(path.is_relative_to(paths[name]) for name in ("stdlib", "platstdlib"))


def _shorten_path(file: str) -> str:
    """Returns a path relative to the working directory, where it is below it."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return file


# ---------------------------------------------------------------------------------------------------------------------
# A user's own modules, which register names for scenario files: `fedray run --import MODULE`, or `--import FILE.py`.


def import_modules(modules: Iterable[str]) -> None:
    """Imports modules in this process, those of the working directory too; without any, the import path stays as it is.

    Args:
        modules: Names, such as `mine` or `package.mine`, or files, such as `code/mine.py`. A file that is not there is
            looked for by its name, as on another machine.

    Raises:
        BadInput: a module cannot be imported.

    Example:
        >>> import_modules(["json"])
        >>> import_modules(["no_such_module"])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedray.core.errors.BadInput: --import no_such_module: ModuleNotFoundError: ...
    """
    if not (modules := list(modules)):
        return
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    for name in modules:
        path = Path(name).expanduser()
        is_file = name.endswith(".py")
        if is_file and path.is_file() and (folder := str(path.absolute().parent)) not in sys.path:
            sys.path.insert(0, folder)
        try:
            module = importlib.import_module(path.stem if is_file else name)
        except FedrayError:
            raise
        except Exception as error:
            remedy = "give the name of a module that Python can import, or its file"
            raise BadInput(f"--import {name}: {describe_exception(error)}: {remedy}") from error
        known = Path(module.__file__ or "")  # a copy, as Ray makes it, will do
        if is_file and path.is_file() and (not known.is_file() or path.read_bytes() != known.read_bytes()):
            raise BadInput(f"--import {name}: Python knows another module {path.stem} ({known}): rename yours")


def hash_files(modules: Iterable[str], things: Iterable[Any]) -> dict[str, str]:
    """SHA-256 of the file of each of the user's modules that a process needs for what is given, by the module's name.

    Comments and docstrings do not count, nor does a script that is started: it says `run` today and `resume` tomorrow.

    Args:
        modules: as `import_modules` takes them.
        things: functions, classes and objects.
    """
    code = [one for thing in things for one in list_code(thing) if one.__module__ != "__main__"]
    files = {name: hash_file(sys.modules[name].__file__) for name in _list_modules(modules, code) if name != "__main__"}
    return {name: digest for name, digest in sorted(files.items()) if digest is not None}


def find_module_places(modules: Iterable[str], things: Iterable[Any] = ()) -> list[Path]:
    """Returns the files and package folders of the user that a process without them would miss.

    They are those of modules that are imported here, of the modules that functions and objects come from, and of all
    modules of the user's that these name.

    Args:
        modules: names or files, as `import_modules` takes them.
        things: functions, classes and objects.

    Example:
        >>> find_module_places(["json"], [len])  # of Python itself
        []
    """
    names = _list_modules(modules, things)
    return sorted({_find_place(name) for name in names if name != "__main__"})  # a script's code is sent by its value


def _list_modules(modules: Iterable[str], things: Iterable[Any]) -> set[str]:
    """Lists the user's imported modules that things come from, and those that these modules name."""
    waiting = [Path(name).stem if name.endswith(".py") else name for name in modules]
    waiting += [str(getattr(thing, "__module__", None) or type(thing).__module__) for thing in things]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        module = sys.modules.get(name)
        if module is None or name in seen or not is_own_module(name):
            continue
        seen.add(name)
        for value in list(vars(module).values()):
            named = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            waiting += [named] if isinstance(named, str) else []
    return seen


def _find_place(name: str) -> Path:
    """Returns the file of a module, or the folder of its package."""
    top = sys.modules.get(name.partition(".")[0])
    folders = list(getattr(top, "__path__", ()))
    return Path(folders[0] if folders else str(getattr(sys.modules[name], "__file__", ""))).absolute()


# ---------------------------------------------------------------------------------------------------------------------
# Holds every function of a user's own to its arguments and results, and to the same ones when it is asked again.

# ---------------------------------------------------------------------------------------------------------------------
# What every function of a user's own is held to: its arguments, its results, and the same ones when it is asked
# again.

Returns = Callable[..., str | None]  # (what a function returned, its arguments) -> what is wrong with it, or None
_CLOSE = 1e-6  # of the largest number: libraries may round otherwise where the same numbers lie elsewhere
_FROM_ONE = ("models", "lr_decay_every", "batch_size", "epochs", "steps", "numbers", "rows")  # fields that are never 0


def contract(
    where: str,
    function: Callable[..., Any],
    returns: Returns | None = None,
    *,
    arguments: str | None = None,
    again: bool = False,
    remedy: str = "",
) -> Callable[..., Any]:
    """Wraps a user's function: its exceptions and wrong results are one line, and equal calls must return the same.

    A function that decides results has to be one of its arguments alone: each of the machines of a run asks it, and so
    does a run that goes on. So the first call in each process is made twice, with copies of the arguments.

    Args:
        where: what messages begin with.
        function: the user's.
        returns: says what is wrong with a result.
        arguments: what it is called with, such as "state, stats, t"; None: that was looked at before.
        again: whether the result has to depend on the arguments alone.
        remedy: what follows in the message where their code took None for something else.

    Raises:
        BadInput: it cannot be called with these arguments; and later, where it breaks the contract.
        FedrayError: later, where it raises.

    Example:
        >>> seen = []
        >>> def count(number):
        ...     seen.append(number)
        ...     return len(seen)
        >>> contract("method mine: sizes", count, again=True)(3)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedray.core.errors.BadInput: method mine: sizes, asked again, returns something else, so that no run could ...
        >>> def returns(found, number):
        ...     return None if found > number else f"{found}: return more than {number}"
        >>> contract("method mine: grow", lambda number: number + 1, returns, arguments="number")(3)
        4
        >>> contract("method mine: grow", lambda number: number - 1, returns, arguments="number")(3)
        Traceback (most recent call last):
        fedray.core.errors.BadInput: method mine: grow returned 2: return more than 3
    """
    if arguments is not None and (wrong := explain_uncallable(function, arguments)) is not None:
        raise BadInput(f"{where} {wrong}: give a function ({arguments})")
    asked: list[bool] = []

    def ask(given: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        with blame_user_code(where, remedy):
            found = function(*given, **named)
        if returns is not None and (wrong := returns(found, *given)) is not None:
            raise BadInput(f"{where} returned {wrong}")
        return found

    def call(*given: Any, **named: Any) -> Any:
        copied = copy.deepcopy((given, named)) if again and not asked else None
        found = ask(given, named)
        if copied is not None:
            asked.append(True)
            if not is_alike(found, ask(*copied)):
                raise BadInput(
                    f"{where}, asked again, returns something else, so that no run could be repeated: draw from its "
                    "generator, or from (seed, t), alone, and keep nothing outside the state"
                )
        return found

    return call


def is_alike(one: Any, other: Any) -> bool:
    """Whether two results are the same, but for the rounding of numbers; functions among them count as the same.

    Example:
        >>> is_alike({"a": np.ones(2)}, {"a": np.ones(2)}), is_alike((1, [2.0]), (1, [2.5]))
        (True, False)
    """
    if isinstance(one, Tensor | np.ndarray | np.generic | float):
        return type(one) is type(other) and _are_close(_to_array(one), _to_array(other))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(is_alike(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(is_alike, one, other))
    if is_dataclass(one) and not isinstance(one, type):
        return all(is_alike(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    return not isinstance(one, int | str | bytes | range | set | frozenset | None) or bool(one == other)


def _to_array(value: Any) -> np.ndarray[Any, Any]:
    """Returns the numbers of a tensor, an array or a number."""
    if isinstance(value, Tensor):
        value = (value.float() if value.dtype == torch.bfloat16 else value).detach().cpu().numpy()
    return np.asarray(value)


def _are_close(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays have one shape and nearly the same numbers."""
    if one.dtype.kind != "f" or one.shape != other.shape or one.dtype != other.dtype:
        return one.dtype == other.dtype and np.array_equal(one, other)
    largest = float(np.abs(one).max(initial=0, where=np.isfinite(one)))
    return bool(np.allclose(one, other, rtol=0, atol=_CLOSE * largest, equal_nan=True))


def check_fields(where: str, thing: Any, path: str = "") -> None:
    """Refuses a field of a dataclass or a named tuple that is no part, number or word of those its type hint says.

    Numbers are finite and at least 0, and at least 1 where nothing is done without them.

    Args:
        where: what messages begin with.
        thing: the dataclass or named tuple; its functions are held to `contract`.
        path: where it stands, with a dot at its end; empty: it is what `where` names.

    Raises:
        BadInput: one line.
    """
    for name, hint in _read_hints(thing.__class__).items():
        value, kinds = getattr(thing, name), get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if (value is None and type(None) in kinds) or any(get_origin(kind) is Callable for kind in kinds):
            continue
        kinds, words = tuple(kind for kind in kinds if kind is not type(None)), get_args(hint)
        if get_origin(hint) is Literal:
            if value not in words:
                raise BadInput(f"{where}: {path}{name} = {value!r}: choose {', '.join(words[:-1])} or {words[-1]}")
        elif kinds[0] in (int, float):
            _check_number(where, f"{path}{name}", value, kinds[0], int(name in _FROM_ONE))
        elif get_args(hint)[:1] == (int,) and isinstance(value, tuple | list):
            for one in value:
                _check_number(where, f"{path}{name}", one, int, 0)
        else:
            parts = tuple(get_origin(kind) or kind for kind in kinds)
            if not any(part in (bool, str, Any) for part in parts) and not isinstance(value, parts):
                wanted = " or ".join(part.__name__ for part in parts)
                raise BadInput(f"{where}: {path}{name} is {name_type(value)}: give a {wanted}")


def _check_number(where: str, path: str, value: Any, kind: type, least: int) -> None:
    """Refuses what is no finite number of a kind, or a smaller one."""
    fits = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    if not fits or not math.isfinite(value) or value < least:
        what = "whole number" if kind is int else "number"
        raise BadInput(f"{where}: {path} = {value!r}: give a {what} of at least {least}")


@cache
def _read_hints(kind: Any) -> dict[str, Any]:
    """Returns the type hints of the fields of a dataclass or a named tuple."""
    hints = get_type_hints(kind, localns={"Tensor": Tensor, "Sequence": Sequence})
    return {name: hint for name, hint in hints.items() if get_origin(hint) is not ClassVar}


# ---------------------------------------------------------------------------------------------------------------------
# Options that record which of them are read, so that an option that nothing reads can be refused.


class RecordedOptions:
    """A mapping that records which keys are asked for; whoever walks over it has read all.

    Example:
        >>> options = RecordedOptions({"sigma": 0.1, "tau": 2})
        >>> options["sigma"], options.get("rho", 1)
        (0.1, 1)
        >>> options.unread(), sorted(options.asked)
        (['tau'], ['rho', 'sigma'])
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Records reads of `options`."""
        self.options = dict(options)
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return self.options[key]

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return key in self.options

    def __iter__(self) -> Iterator[str]:
        self.asked.update(self.options)
        return iter(self.options)

    def __len__(self) -> int:
        return len(self.options)

    def get(self, key: str, default: Any = None) -> Any:
        """Returns the value of a key, or a default."""
        self.asked.add(key)
        return self.options.get(key, default)

    def keys(self) -> Any:
        """All keys, which are then read."""
        return dict.fromkeys(self).keys()

    def values(self) -> Any:
        """All values, which are then read."""
        return [self.options[key] for key in self]

    def items(self) -> Any:
        """All pairs, which are then read."""
        return [(key, self.options[key]) for key in self]

    def unread(self) -> list[str]:
        """Returns the keys that nobody asked for."""
        return [key for key in self.options if key not in self.asked]


def refuse_unread(section: str, name: str, options: RecordedOptions) -> None:
    """Refuses options that a user's function did not read when it was called.

    Args:
        section: Where the options stand, such as `method`.
        name: Of the function.
        options: What it was called with.

    Raises:
        BadInput: Names the first option that it did not read.
    """
    for key in options.unread():
        otherwise = "leave it out, or declare it in fedray.register"
        remedy = suggest_nearest(key, tuple(options.asked), otherwise, prefix=f"{section}.")
        raise BadInput(f"{section}.{key} = {quote_value(options.options[key])}, but {name} does not read it: {remedy}")
