"""The code of a user's own functions and classes as a digest, which tells that they were changed between two calls."""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

# ---------------------------------------------------------------------------------------------------------------------
# Comments, docstrings and the place of the code in its file do not count. Default values, plain values of the closure
# and constants of the module (in capitals) do. The functions that it calls are the concern of
# `fedray.own_code.source_code`, tensors, tables and other values that of `fedray.own_code.read_values`; files that it
# reads are not seen.

MOST_DEPTH = 4  # of functions inside closures and partials


def name_callable(thing: Any) -> str:
    """The module and the qualified name of a function or a class, or of an object's class.

    Example:
        >>> from textwrap import dedent
        >>> name_callable(dedent)
        'textwrap.dedent'
        >>> len(hash_code(dedent)), hash_code(len)
        (64, None)
    """
    inner = thing.func if isinstance(thing, partial) else thing
    if getattr(inner, "__qualname__", None) is None:
        inner = type(inner)
    return f"{inner.__module__}.{inner.__qualname__}"


def hash_code(thing: Any) -> str | None:
    """SHA-256 of the code of a function, a class, a partial or an object that can be called.

    Returns:
        None where no source is to be had: built-in functions, code typed into an interpreter.
    """
    parts = _parts(thing, 0)
    return None if parts is None else hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _parts(thing: Any, depth: int) -> list[str] | None:
    """The source without comments, and the plain values that belong to it."""
    if depth > MOST_DEPTH:
        return []
    if isinstance(thing, partial):
        inner = _parts(thing.func, depth + 1)
        values = [*thing.args, *(value for pair in sorted(thing.keywords.items()) for value in pair)]
        return None if inner is None else [*inner, *(_value(value, depth) for value in values)]
    if isinstance(thing, MethodType):
        inner, owner = _parts(thing.__func__, depth + 1), _parts(thing.__self__, depth + 1)
        return None if inner is None else [*inner, *(owner or [])]
    if isinstance(thing, FunctionType):
        source = _read_source(thing)
        return None if source is None else [source, *_values_of_function(thing, depth)]
    source = _read_source(thing if inspect.isclass(thing) else type(thing))
    fields = {} if inspect.isclass(thing) else dict(getattr(thing, "__dict__", {}))
    return None if source is None else [source, *(f"{key} {_value(fields[key], depth)}" for key in sorted(fields))]


def _values_of_function(function: FunctionType, depth: int) -> list[str]:
    """Default values, values of the closure, and constants of the module that the function names."""
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    held, known = read_closure(function), function.__globals__
    cells = [f"{name} {_value(held[name], depth)}" if name in held else name for name in function.__code__.co_freevars]
    constants = [f"{n} {_value(known[n], depth)}" for n in function.__code__.co_names if n.isupper() and n in known]
    return [*(_value(value, depth) for value in defaults), *cells, *constants]


def read_closure(function: FunctionType) -> dict[str, Any]:
    """The values of a closure by name, without those that are not set yet.

    Example:
        >>> def make(mu):
        ...     return lambda x: mu * x
        >>> read_closure(make(0.5))
        {'mu': 0.5}
    """
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # not set yet
            found[name] = cell.cell_contents
    return found


def _value(value: Any, depth: int) -> str:
    """A value as text, if it is plain and cannot change; else what kind of thing it is."""
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, tuple):
        return f"({', '.join(_value(inner, depth) for inner in value)})"
    if isinstance(value, FunctionType | partial) or inspect.isclass(value):
        return "\n".join(_parts(value, depth + 1) or [name_callable(value)])
    return type(value).__name__


def _read_source(thing: Any) -> str | None:
    """The source of a function or class in one spelling, without comments and docstrings."""
    try:
        if isinstance(thing, FunctionType) and thing.__name__ == "<lambda>":
            tree: ast.AST | None = _find_lambda(thing)
        else:
            tree = ast.parse(textwrap.dedent(inspect.getsource(thing)))
    except (OSError, TypeError, SyntaxError, ValueError, RecursionError):
        return None
    return None if tree is None else ast.unparse(strip_docstrings(tree))


def strip_docstrings(tree: ast.AST) -> ast.AST:
    """A syntax tree without its docstrings; the tree is changed in place."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module
    for node in ast.walk(tree):
        if isinstance(node, kinds) and ast.get_docstring(node, False):
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def _find_lambda(function: FunctionType) -> ast.AST | None:
    """The expression of a lambda; None where its line has several of them."""
    lines, _ = inspect.findsource(function)
    line = function.__code__.co_firstlineno
    found = [node for node in ast.walk(ast.parse("".join(lines))) if isinstance(node, ast.Lambda)]
    here = [node for node in found if node.lineno == line]
    return here[0] if len(here) == 1 else None


# ---------------------------------------------------------------------------------------------------------------------
# What a user's function or class calls: digests of the functions beside it, and of the file of its module.
#
# A network's `forward` may call a function of the same file, or of another file of the user's. A change of such a
# function changes the results, so its code counts: every function and class of the user's that is named in the code,
# directly or through others. What names do not tell (a function that is looked up in a table) is in the file of the
# module, which counts as a whole; a script that is started (`__main__`) does not, because it says `run` today and
# `resume` tomorrow.
#
# The code of installed packages does not count.

INSTALLED = {"site-packages", "dist-packages"}  # folders of packages that others wrote


def list_called(thing: Any) -> list[Any]:
    """The user's functions and classes that a function or class names, directly or through others, by their names.

    Args:
        thing: a function, a class, a partial, or an object that can be called.

    Example:
        >>> from fractions import Fraction
        >>> list_called(Fraction), hash_module_file(Fraction)  # of Python itself, and so not a user's
        ([], None)
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


# ---------------------------------------------------------------------------------------------------------------------
# What an object consists of: the functions and the objects that can be called which its fields hold.

MOST_PARTS = 1_000


def list_nested(thing: Any) -> list[Any]:
    """An object and what it calls by its fields, directly or through lists, tables and partials; without classes.

    Args:
        thing: a function, a partial, or an object that can be called, such as a chain of transforms.

    Example:
        >>> from functools import partial
        >>> class Both:
        ...     def __init__(self, *steps):
        ...         self.steps = steps
        ...     def __call__(self, x):
        ...         return [step(x) for step in self.steps]
        >>> both = Both(abs, partial(round, ndigits=1))
        >>> [part is one for part, one in zip(list_nested(both), (both, abs))]
        [True, True]
        >>> len(list_nested(both))
        4
    """
    found: list[Any] = []
    seen, waiting = set[int](), [thing]
    while waiting and len(seen) < MOST_PARTS:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, list | tuple | set | frozenset):
            waiting += one
        elif isinstance(one, dict):
            waiting += one.values()
        elif callable(one) and not inspect.isclass(one):
            found.append(one)
            inner = [one.func, *one.args, one.keywords] if isinstance(one, partial) else []
            waiting += [*inner, *getattr(one, "__dict__", {}).values()]
    return found
