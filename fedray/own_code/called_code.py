"""What a user's function or class calls: digests of the functions beside it, and of the file of its module.

A network's `forward` may call a function of the same file, or of another file of the user's. A change of such a
function changes the results, so its code counts: every function and class of the user's that is named in the code,
directly or through others. What names do not tell (a function that is looked up in a table) is in the file of the
module, which counts as a whole; a script that is started (`__main__`) does not, because it says `run` today and
`resume` tomorrow.

The code of installed packages does not count.

Example:
    >>> from fractions import Fraction
    >>> list_called(Fraction), hash_module_file(Fraction)  # of Python itself, and so not a user's
    ([], None)
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from fedray.own_code.source_code import hash_code, name_callable, strip_docstrings

INSTALLED = {"site-packages", "dist-packages"}  # folders of packages that others wrote


def list_called(thing: Any) -> list[Any]:
    """The user's functions and classes that a function or class names, directly or through others, by their names.

    Args:
        thing: a function, a class, a partial, or an object that can be called.
    """
    found: dict[str, Any] = {}
    begin = _unwrap(thing)
    waiting = [begin]
    while waiting:
        for named in _list_named(waiting.pop()):
            name = name_callable(named)
            if named is not begin and name not in found:
                found[name] = named
                waiting.append(named)
    return [found[name] for name in sorted(found)]


def hash_called(thing: Any) -> str:
    """SHA-256 of the code of what a function or class calls; empty where the source of a part is not to be had."""
    each = [hash_code(called) for called in list_called(thing)]
    return "" if None in each else hashlib.sha256(" ".join(map(str, each)).encode()).hexdigest()


def hash_module_file(thing: Any) -> str | None:
    """SHA-256 of the file of a user's module, without comments and docstrings; None of a script and of others' code."""
    name = _module_name(_unwrap(thing))
    return None if name == "__main__" or not is_own_module(name) else hash_file(sys.modules[name].__file__)


def hash_file(path: str | None) -> str | None:
    """SHA-256 of a file of Python code, without comments and docstrings; None where it cannot be read."""
    try:
        tree = None if path is None else ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    return None if tree is None else hashlib.sha256(ast.dump(strip_docstrings(tree)).encode()).hexdigest()


def _unwrap(thing: Any) -> Any:
    """The function or class behind a partial, a method or an object that can be called."""
    while isinstance(thing, partial):
        thing = thing.func
    if isinstance(thing, MethodType):
        return thing.__func__
    return thing if isinstance(thing, FunctionType) or inspect.isclass(thing) else type(thing)


def _list_named(thing: Any) -> Iterator[Any]:
    """The user's functions and classes that one function or class names in its code."""
    if inspect.isclass(thing):
        yield from (base for base in thing.__mro__[1:] if is_own_module(base.__module__))
        functions = [inner for value in vars(thing).values() for inner in _functions_of(value)]
    else:
        functions = [thing]
    for function in functions:
        if isinstance(function, FunctionType):
            values = _list_values(function)
            yield from (value for value in values if _is_code(value) and is_own_module(_module_name(value)))


def _list_values(function: FunctionType) -> list[Any]:
    """The globals that a function names, and what it may name of the user's modules among them."""
    names = sorted(set(_list_names(function.__code__)))
    values = [function.__globals__.get(name) for name in names]
    modules = [value for value in values if isinstance(value, ModuleType) and is_own_module(value.__name__)]
    values += [vars(module).get(name) for module in modules for name in names]
    return [getattr(value, "__wrapped__", value) for value in values]


def _functions_of(attribute: Any) -> list[Any]:
    """The functions of an attribute of a class: a method, a class method, a property."""
    if isinstance(attribute, property):
        return [attribute.fget, attribute.fset, attribute.fdel]
    return [getattr(attribute, "__func__", attribute)]


def _list_names(code: CodeType) -> Iterator[str]:
    """The names of globals and attributes in a function's code, also in functions inside it."""
    yield from code.co_names
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _list_names(value)


def _is_code(value: Any) -> bool:
    return isinstance(value, FunctionType) or inspect.isclass(value)


def _module_name(thing: Any) -> str:
    return str(getattr(thing, "__module__", None))


def is_own_module(name: str) -> bool:
    """Whether a module is the user's: a file that is no part of Python, of fedray or of an installed package."""
    if name == "__main__":
        return True
    if name.partition(".")[0] in (*sys.stdlib_module_names, "fedray"):
        return False
    path = getattr(sys.modules.get(name), "__file__", None)
    return path is not None and path.endswith(".py") and not INSTALLED & set(Path(path).parts)
