"""The code of a user's own functions and classes as a digest: what can tell that they were changed between two calls.

Comments, docstrings and the place of the code in its file do not count. Default values, plain values of the closure and
constants of the module (in capitals) do. The functions that it calls are the concern of `fedray.own_code.called_code`,
tensors, tables and other values that of `fedray.own_code.read_values`; files that it reads are not seen.

Example:
    >>> from textwrap import dedent
    >>> name_callable(dedent)
    'textwrap.dedent'
    >>> len(hash_code(dedent)), hash_code(len)
    (64, None)
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from contextlib import suppress
from functools import partial
from types import FunctionType, MethodType
from typing import Any

MOST_DEPTH = 4  # of functions inside closures and partials


def name_callable(thing: Any) -> str:
    """The module and the qualified name of a function or a class, or of an object's class."""
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
