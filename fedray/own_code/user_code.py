"""A user's own code that raises: the exception as one line with the line of their code, and no traceback of fedray."""

from __future__ import annotations

import importlib
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from fedray.core.errors import BadInput, FedrayError
from fedray.own_code.source_code import hash_file, is_own_module, list_code

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
