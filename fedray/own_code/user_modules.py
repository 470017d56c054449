"""A user's own modules, which register names for scenario files: `fedray run --import MODULE`, or `--import FILE.py`.

Example:
    >>> import_modules(["json"])
    >>> import_modules(["no_such_module"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    fedray.core.errors.BadInput: --import no_such_module: ModuleNotFoundError: ...
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from fedray.core.errors import BadInput
from fedray.own_code.source_code import hash_file, is_own_module, list_code
from fedray.own_code.user_code import describe_exception, is_raised_by_user


def import_modules(modules: Iterable[str]) -> None:
    """Imports modules in this process, those of the working directory too; without any, the import path stays as it is.

    Args:
        modules: Names, such as `mine` or `package.mine`, or files, such as `code/mine.py`. A file that is not there is
            looked for by its name, as on another machine.

    Raises:
        BadInput: a module cannot be imported.
    """
    if not (modules := list(modules)):
        return
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    for name in modules:
        path = Path(name).expanduser() if name.endswith(".py") else None
        try:
            module = importlib.import_module(name if path is None else _find_stem(name, path))
        except (Exception, SystemExit) as error:
            if isinstance(error, BadInput) or (isinstance(error, SystemExit) and not is_raised_by_user(error)):
                raise
            remedy = "correct it" if _is_found(error, name) else "give the name of an importable module, or its file"
            raise BadInput(f"--import {name}: {describe_exception(error)}: {remedy}") from error
        if path is not None and path.is_file():
            _require_file(name, path, module)


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


def _find_stem(name: str, path: Path) -> str:
    """Returns the name under which a file can be imported; its folder is added to the import path."""
    if path.is_file():
        folder = str(path.absolute().parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)
    if not path.stem.isidentifier():
        raise BadInput(f"--import {name}: {path.stem} cannot be the name of a module: use letters, digits and _")
    return path.stem


def _is_found(error: BaseException, name: str) -> bool:
    """Whether a module was found, and failed by itself."""
    missing = getattr(error, "name", None)
    return not isinstance(error, ModuleNotFoundError) or missing not in (name.partition(".")[0], Path(name).stem, name)


def _require_file(name: str, path: Path, module: ModuleType) -> None:
    """Refuses a file in whose place Python knows another module of the same name; a copy, as Ray makes it, will do."""
    known = getattr(module, "__file__", None)
    if known is None or not Path(known).exists() or path.read_bytes() != Path(known).read_bytes():
        where = known or "a built-in one"
        raise BadInput(f"--import {name}: Python knows another module {path.stem} ({where}): rename yours")
