"""The source of a user's own functions and classes as a digest, which tells that it was changed between two calls."""

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
# What is given counts, with all of the user's functions and classes that it holds (in a partial, a closure, a default
# value, an attribute) or names, directly or through others: a network's `forward` may call a function of the same
# file, or of another file of the user's. What names do not tell (a function that is looked up in a table) is in the
# file of a module, which counts as a whole (`fedray.own_code.user_code.hash_files`).
#
# Comments, docstrings and the place of the code in its file do not count, nor does the code of installed packages.
# Values are the concern of `fedray.own_code.read_values`; files that code reads are not seen.

INSTALLED = {"site-packages", "dist-packages"}  # folders of packages that others wrote
MOST_PARTS = 1_000  # of an object


def name_callable(thing: Any) -> str:
    """Returns the module and the qualified name of a function or a class, or of an object's class.

    Example:
        >>> from textwrap import dedent
        >>> name_callable(dedent)
        'textwrap.dedent'
    """
    inner = thing.func if isinstance(thing, partial) else thing
    if getattr(inner, "__qualname__", None) is None:
        inner = type(inner)
    return f"{inner.__module__}.{inner.__qualname__}"


def hash_source(*things: Any) -> dict[str, str]:
    """SHA-256 of the source of functions, classes and objects that can be called, and of the user's that they use.

    Returns:
        By qualified name; empty text where no source is to be had: built-in functions, code typed into an interpreter,
        two lambdas of one line.

    Example:
        >>> from textwrap import dedent
        >>> len(hash_source(dedent)["dedent"]), hash_source(lambda: 0, lambda: 1)
        (64, {'<lambda>': ''})
    """
    found: dict[str, set[str]] = {}
    for one in (code for thing in things for code in list_code(thing)):
        found.setdefault(one.__qualname__, set()).add(_read_source(one) or "")
    texts = {name: "" if "" in each else "\n".join(sorted(each)) for name, each in sorted(found.items())}
    return {name: text and hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def list_code(thing: Any) -> list[Any]:
    """Lists the functions and classes of a thing, and the user's that these hold or name, through others too.

    Args:
        thing: a function, a class, a partial, or an object that can be called.

    Example:
        >>> from fractions import Fraction
        >>> [one.__name__ for one in list_code(Fraction)]  # what it names is of Python itself, and so not a user's
        ['Fraction']
    """
    given, found = _unwrap(thing), list[Any]()
    waiting = [given, *_list_parts(thing)]
    while waiting:
        one = waiting.pop(0)
        if all(one is not each for each in found) and (one is given or is_own_module(str(one.__module__))):
            found.append(one)
            waiting += [part for held in _list_held(one) for part in _list_parts(held)]
    return found


def _unwrap(thing: Any) -> Any:
    """Returns the function or class behind a partial, a method or an object that can be called."""
    while isinstance(thing, partial):
        thing = thing.func
    if isinstance(thing, MethodType):
        return thing.__func__
    return thing if isinstance(thing, FunctionType) or inspect.isclass(thing) else type(thing)


def _list_parts(thing: Any) -> list[Any]:
    """The functions and classes that a function, a class, a partial or an object that can be called consists of."""
    parts = [thing, *list_nested(thing)]
    owners = [part.__self__ for part in parts if isinstance(part, MethodType)]
    arguments = [one for part in parts if isinstance(part, partial) for one in (*part.args, *part.keywords.values())]
    return [_unwrap(part) for part in (*parts, *owners, *(one for one in arguments if inspect.isclass(one)))]


def _list_held(thing: Any) -> list[Any]:
    """Returns the code that a function or a class holds or names; of a class also its bases."""
    if inspect.isclass(thing):
        functions = [function for value in vars(thing).values() for function in _functions_of(value)]
        return [*thing.__mro__[1:], *(held for function in functions for held in _list_held(function))]
    if not isinstance(thing, FunctionType):
        return []
    defaults = [*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
    values = [*read_closure(thing).values(), *defaults, *_list_globals(thing)]
    return [one for one in values if isinstance(one, FunctionType | MethodType | partial) or inspect.isclass(one)]


def _list_globals(function: FunctionType) -> list[Any]:
    """Returns the globals that a function names, and what it may name of the user's modules among them."""
    names = sorted(set(list_names(function.__code__)))
    values = [function.__globals__.get(name) for name in names]
    modules = [value for value in values if isinstance(value, ModuleType) and is_own_module(value.__name__)]
    values += [vars(module).get(name) for module in modules for name in names]
    return [getattr(value, "__wrapped__", value) for value in values]


def _functions_of(attribute: Any) -> list[Any]:
    """Returns the functions of an attribute of a class: a method, a class method, a property."""
    if isinstance(attribute, property):
        return [attribute.fget, attribute.fset, attribute.fdel]
    return [getattr(attribute, "__func__", attribute)]


def list_names(code: CodeType) -> Iterator[str]:
    """Returns the names of globals and attributes in a function's code, also in functions inside it."""
    yield from code.co_names
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from list_names(value)


def read_closure(function: FunctionType) -> dict[str, Any]:
    """Returns the values of a closure by name, without those that are not set yet.

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


def _read_source(thing: Any) -> str | None:
    """Returns the source of a function or class in one spelling, without comments and docstrings."""
    try:
        if isinstance(thing, FunctionType) and thing.__name__ == "<lambda>":
            lines, _ = inspect.findsource(thing)
            line = thing.__code__.co_firstlineno
            found = [node for node in ast.walk(ast.parse("".join(lines))) if isinstance(node, ast.Lambda)]
            here = [node for node in found if node.lineno == line]
            tree: ast.AST | None = here[0] if len(here) == 1 else None
        else:
            tree = ast.parse(textwrap.dedent(inspect.getsource(thing)))
    except (OSError, TypeError, SyntaxError, ValueError, RecursionError):
        return None
    return None if tree is None else ast.unparse(strip_docstrings(tree))


def strip_docstrings(tree: ast.AST) -> ast.AST:
    """Returns a syntax tree without its docstrings; the tree is changed in place."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module
    for node in ast.walk(tree):
        if isinstance(node, kinds) and ast.get_docstring(node, False):
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def hash_file(path: str | None) -> str | None:
    """SHA-256 of a file of Python code, without comments and docstrings; None where it cannot be read."""
    try:
        tree = None if path is None else ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    return None if tree is None else hashlib.sha256(ast.dump(strip_docstrings(tree)).encode()).hexdigest()


def is_own_module(name: str) -> bool:
    """Whether a module is the user's: a file that is no part of Python, of fedray or of an installed package."""
    if name == "__main__":
        return True
    if name.partition(".")[0] in (*sys.stdlib_module_names, "fedray"):
        return False
    path = getattr(sys.modules.get(name), "__file__", None)
    return path is not None and path.endswith(".py") and not INSTALLED & set(Path(path).parts)


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
