"""Digests of the source of a user's own functions, and of the values that they read."""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import sys
import textwrap
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial
from itertools import islice
from numbers import Number
from pathlib import Path
from types import (
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# ---------------------------------------------------------------------------------------------------------------------
# The source of a user's own functions and classes as a digest, which tells that it was changed between two calls.

# ---------------------------------------------------------------------------------------------------------------------
# What is given counts, with all of the user's functions and classes that it holds (in a partial, a closure, a default
# value, an attribute) or names, directly or through others: a network's `forward` may call a function of the same
# file, or of another file of the user's. What names do not tell (a function that is looked up in a table) is in the
# file of a module, which counts as a whole (`fedray.own_code.contract.hash_files`).
#
# Comments, docstrings and the place of the code in its file do not count, nor does the code of installed packages.
# Values are the concern of `fedray.own_code.source_code`; files that code reads are not seen.

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


# ---------------------------------------------------------------------------------------------------------------------
# What a user's code reads beside its source, as digests, and what it can reach and change.

# ---------------------------------------------------------------------------------------------------------------------
# What code reads beside its source: arguments of a partial, attributes of an object, and values of the closure, of
# the module and of default arguments, also those that functions read which it calls. Tensors and arrays count by
# their bytes, tables and the user's own objects by what they hold, objects of other kinds by their kind alone.

MOST_DEPTH = 4  # of tables and objects in one another
MOST_VALUES = 10_000  # of a table
_PLAIN_VALUES = bool | int | float | complex | str | bytes | np.generic


def hash_values(*things: Any) -> dict[str, str]:
    """SHA-256 of each value that functions, classes and objects read, or functions that they call, by its name there.

    Args:
        things: functions, classes, partials, or objects that can be called.

    Returns:
        Of an object of the user's own class also the source of this, as "class Config of config"; empty without any.

    Example:
        >>> def make(weights):
        ...     return lambda outputs: outputs * weights["a"]
        >>> hash_values(make({"a": 1.0})) == hash_values(make({"a": 2.0})), list(hash_values(make({"a": 1.0})))
        (False, ['weights'])
    """
    found, classes = dict[str, list[str]](), dict[str, str]()
    parts = {id(part): part for thing in things for part in (*list_nested(thing), *list_code(thing))}
    for part in parts.values():
        for name, value in _list_read(part):
            found.setdefault(name, []).append(_write(value, 0))
            if is_own_module(type(value).__module__):
                source = hash_source(type(value))
                classes |= {f"class {called} of {name}": digest for called, digest in source.items()}
    texts = {name: "\n".join(each) for name, each in sorted(found.items())}
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()} | classes


def _list_read(thing: Any) -> list[tuple[str, Any]]:
    """Names and values that a thing by itself reads; without functions, classes and modules, which count by source."""
    if isinstance(thing, partial):
        read = [*((f"argument {place}", one) for place, one in enumerate(thing.args)), *thing.keywords.items()]
    elif isinstance(thing, MethodType):
        read = _list_read(thing.__self__)
    elif isinstance(thing, FunctionType):
        known, defaults = thing.__globals__, (*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values())
        named = [(name, known[name]) for name in sorted(set(list_names(thing.__code__))) if name in known]
        read = [*read_closure(thing).items(), *named, *(("default", value) for value in defaults)]
    elif inspect.isclass(thing):
        read = [(name, one) for name, one in vars(thing).items() if name[0] != "_" and isinstance(one, _PLAIN_VALUES)]
    else:
        read = [("network", thing)] if isinstance(thing, nn.Module) else list(getattr(thing, "__dict__", {}).items())
    return [(name, value) for name, value in read if not isinstance(value, FunctionType | ModuleType | type)]


def _write(value: Any, depth: int) -> str:
    """Returns a value as text; the name of its kind for what cannot be compared."""
    if isinstance(value, Tensor | np.ndarray):
        return _write_array(value)
    if value is None or isinstance(value, _PLAIN_VALUES | Number | torch.dtype | torch.device):
        return repr(value)
    if depth < MOST_DEPTH:
        if isinstance(value, partial):
            return _write([*value.args, value.keywords], depth)
        if isinstance(value, MethodType):
            return _write(value.__self__, depth + 1)
        if isinstance(value, nn.Module):
            return f"{write_object(value)} {_write(value.state_dict(), depth + 1)}"
        if isinstance(value, Mapping):
            pairs = [
                (_write(key, depth + 1), _write(one, depth + 1)) for key, one in islice(value.items(), MOST_VALUES)
            ]
            return f"{{{', '.join(f'{key}: {one}' for key, one in sorted(pairs))}}} {len(value)}"
        if isinstance(value, list | tuple | set | frozenset):
            each = [_write(one, depth + 1) for one in islice(value, MOST_VALUES)]
            return f"[{', '.join(sorted(each) if isinstance(value, set | frozenset) else each)}] {len(value)}"
        if isinstance(value, SimpleNamespace | Namespace) or is_own_module(type(value).__module__):
            return f"{type(value).__qualname__} {_write(getattr(value, '__dict__', {}), depth + 1)}"
    return type(value).__name__


def write_object(thing: Any) -> str:
    """Returns what an object says of itself, without its place in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(thing))


def _write_array(value: Tensor | np.ndarray[Any, Any]) -> str:
    """Kind, shape and a digest of the numbers of a tensor or an array."""
    kind = f"{value.dtype} {list(value.shape)}"
    try:
        if isinstance(value, Tensor):
            value = value.detach().cpu().reshape(-1).view(torch.uint8).numpy()
    except (RuntimeError, NotImplementedError, TypeError):  # sparse, quantized
        return kind
    return kind if value.dtype.hasobject else f"{kind} {hashlib.sha256(value.tobytes()).hexdigest()}"


# ---------------------------------------------------------------------------------------------------------------------
# What code can reach and change: variables of closures, tensors, arrays and tables.

_TABLES = (Tensor, np.ndarray, dict, list, set)
_MOST_COMPARED = 100_000  # values of an array, evenly spread, of which a change is noticed


def find_changeable(thing: Any, skipped: type | tuple[type, ...] = ()) -> dict[int, tuple[str, Any]]:
    """Returns the variables of closures, tensors, arrays and tables that code can reach, with their names, by identity.

    Args:
        thing: Functions, or what holds them.
        skipped: Kinds of objects that are not looked into.

    Example:
        >>> def make(table):
        ...     return lambda x: table[x]
        >>> found = find_changeable(make({"a": 1}))
        >>> [(name, type(one).__name__) for name, one in found.values()]
        [('table', 'cell'), ('table', 'dict')]
    """
    found: dict[int, tuple[str, Any]] = {}
    for name, one in _walk(thing, skipped):
        if isinstance(one, FunctionType):
            cells = zip(one.__code__.co_freevars, one.__closure__ or (), strict=True)
            found.update((id(cell), (free, cell)) for free, cell in cells)
        elif isinstance(one, _TABLES):
            found[id(one)] = (name, one)
    return found


def mark(thing: Any) -> Any:
    """Returns what tells later whether one of `find_changeable` was changed: see `is_changed`."""
    if isinstance(thing, CellType):
        try:
            return thing.cell_contents
        except ValueError:  # not set yet
            return None
    if isinstance(thing, Tensor):
        return thing._version
    if isinstance(thing, np.ndarray):
        return _identify(thing.ravel()[:: 1 + thing.size // _MOST_COMPARED]) if thing.dtype != object else None
    return dict(thing) if isinstance(thing, dict) else list(thing) if isinstance(thing, list) else None


def is_changed(thing: Any, before: Any) -> bool:
    """Whether a thing holds other values than when it was marked; a table to which something was added does not.

    Args:
        thing: One of `find_changeable`.
        before: What `mark` has returned.
    """
    now = mark(thing)
    if isinstance(thing, dict):
        return any(key not in now or now[key] is not value for key, value in before.items())
    if isinstance(thing, list):
        return len(now) < len(before) or any(one is not other for one, other in zip(now, before, strict=False))
    return before is not now if isinstance(thing, CellType) else before != now


def _walk(thing: Any, skipped: type | tuple[type, ...]) -> Iterator[tuple[str, Any]]:
    """Everything that can be reached, by the names that it has there; other things than plain values once."""
    seen: dict[int, Any] = {}  # which also keeps what is made here, so that no identity is given twice
    waiting: list[tuple[str, Any]] = [("", thing)]
    while waiting:
        name, one = waiting.pop()
        plain = one is None or isinstance(one, _PLAIN_VALUES)
        if not plain and id(one) in seen:
            continue
        yield name, one
        if not plain:
            seen[id(one)] = one
            waiting += [] if isinstance(one, skipped) else [(n or name, value) for n, value in _look_into(one) or []]


def _look_into(thing: Any) -> list[tuple[str, Any]] | None:
    """Returns what a thing holds, by names; None where it is a thing by itself."""
    if isinstance(thing, FunctionType):
        defaults = [*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
        known = thing.__globals__ if is_own_module(thing.__module__) else {}
        tables = [(name, known[name]) for name in thing.__code__.co_names if isinstance(known.get(name), _TABLES)]
        return [*read_closure(thing).items(), *tables, *(("default", value) for value in defaults)]
    if isinstance(thing, partial):
        return [("", thing.func), *((str(i), value) for i, value in enumerate(thing.args)), *thing.keywords.items()]
    if isinstance(thing, MethodType):
        return [("", thing.__func__), ("self", thing.__self__)]
    if isinstance(thing, Mapping):
        return [(repr(key), value) for key, value in thing.items()]
    if isinstance(thing, tuple | list):
        return [(str(i), value) for i, value in enumerate(thing)]
    if is_dataclass(thing) and not isinstance(thing, type):
        return [(field.name, getattr(thing, field.name)) for field in fields(thing)]
    wrapped = getattr(thing, "__wrapped__", None)  # of functools.cache
    return None if wrapped is None else [("", wrapped)]


def _identify(thing: Any) -> Any:
    """Returns what makes a thing the same as another one: the bytes of an array, the identity of all others."""
    if isinstance(thing, Tensor):
        thing = thing.detach().cpu().numpy()
    if isinstance(thing, np.ndarray) and thing.dtype != object:
        return thing.shape, str(thing.dtype), hashlib.sha256(thing.tobytes()).digest()
    return id(thing)
