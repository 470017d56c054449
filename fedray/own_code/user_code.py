"""Imports users' modules, computes digests of their source, and turns exceptions in their code into one line."""

import ast
import dis
import hashlib
import importlib
import inspect
import sys
import sysconfig
import textwrap
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from fedray.core.errors import BadInput, FedrayError

# ---------------------------------------------------------------------------------------------------------------------
# Digests of the source of a user's functions and classes, which change when the source changes.
#
# A digest covers the given object and all of the user's functions and classes that the object holds or names, directly
# or through other code. The object may hold them in a partial, a closure, a default value or an attribute. For example,
# a network's `forward` may call a function in the same file, or in a different file of the user. Some code is not
# named, such as a function that is looked up in a table. `hash_files` covers this code, because it hashes whole files
# of modules. Digests do not depend on comments, docstrings, the position of the code in its file, or the code of
# installed packages. `fedray.own_code.contract.hash_values` covers values. Files that the code opens are not covered.

INSTALLED = {"site-packages", "dist-packages"}  # folders of installed packages
MOST_PARTS = 1_000  # parts of an object that are searched


def name_callable(thing: Any) -> str:
    """Returns the module and the qualified name of a function or a class.

    Any other object gets the name of its class.

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
    """Returns a dict from the qualified names of functions and classes to SHA-256 digests of their source.

    The dict covers the given code, and the user's code that the given code uses. The digest of a function or class is
    an empty text if there is no source. This happens for built-in functions, code typed into an interpreter, and two
    lambdas in the same line.

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
    """Lists the functions and classes of an object, and the user's code that they use, directly or through other code.

    The object is a function, a class, a partial, or an object that can be called.

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
    """Returns the function or class that a partial, a method or a callable object calls."""
    while isinstance(thing, partial):
        thing = thing.func
    if isinstance(thing, MethodType):
        return thing.__func__
    return thing if isinstance(thing, FunctionType) or inspect.isclass(thing) else type(thing)


def _list_parts(thing: Any) -> list[Any]:
    """Lists the functions and classes of which an object (such as a partial) consists."""
    parts = [thing, *list_nested(thing)]
    owners = [part.__self__ for part in parts if isinstance(part, MethodType)]
    arguments = [one for part in parts if isinstance(part, partial) for one in (*part.args, *part.keywords.values())]
    return [_unwrap(part) for part in (*parts, *owners, *(one for one in arguments if inspect.isclass(one)))]


def _list_held(thing: Any) -> list[Any]:
    """Returns the functions and classes that a function or class contains or refers to, and the bases of a class."""
    if inspect.isclass(thing):
        functions = [function for value in vars(thing).values() for function in _functions_of(value)]
        return [*thing.__mro__[1:], *(held for function in functions for held in _list_held(function))]
    if not isinstance(thing, FunctionType):
        return []
    defaults = [*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
    values = [*read_closure(thing).values(), *defaults, *_list_globals(thing)]
    return [one for one in values if isinstance(one, FunctionType | MethodType | partial) or inspect.isclass(one)]


def _list_globals(function: FunctionType) -> list[Any]:
    """Returns the globals that a function names.

    If a global is a user's module, the result also has the attributes of this module that the function names.
    """
    values = [function.__globals__.get(name) for name in sorted(set(list_names(function.__code__)))]
    modules = [value for value in values if isinstance(value, ModuleType) and is_own_module(value.__name__)]
    attributes = sorted(set(list_names(function.__code__, attributes=True))) if modules else []
    values += [vars(module).get(name) for module in modules for name in attributes]
    return [getattr(value, "__wrapped__", value) for value in values]


def _functions_of(attribute: Any) -> list[Any]:
    """Returns the functions in a class attribute, which may be a method, a class method or a property."""
    if isinstance(attribute, property):
        return [attribute.fget, attribute.fset, attribute.fdel]
    return [getattr(attribute, "__func__", attribute)]


def list_names(code: CodeType, attributes: bool = False) -> Iterator[str]:
    """Yields the names of globals in the code of a function and of its inner functions.

    If `attributes` is True, also yields the names of attributes.

    Example:
        >>> list(list_names((lambda path: sys.path + path.parts).__code__))
        ['sys']
    """
    steps = (step for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    yield from code.co_names if attributes else (step.argval for step in steps)
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from list_names(value, attributes)


def read_closure(function: FunctionType) -> dict[str, Any]:
    """Returns the values of a function's closure by name. Leaves out variables that are not set yet.

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
    """Returns the source of a function or class in a uniform format. Comments and docstrings are left out."""
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
    """Removes the docstrings from a syntax tree in place, and returns the tree."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module
    for node in ast.walk(tree):
        if isinstance(node, kinds) and ast.get_docstring(node, False):
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def hash_file(path: str | None) -> str | None:
    """Returns a SHA-256 digest of a Python file, or None if it cannot be read. Comments and docstrings do not count."""
    try:
        tree = None if path is None else ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    return None if tree is None else hashlib.sha256(ast.dump(strip_docstrings(tree)).encode()).hexdigest()


def is_own_module(name: str) -> bool:
    """Returns whether a module is the user's: its file is not part of Python, fedray or an installed package."""
    if name == "__main__":
        return True
    if name.partition(".")[0] in (*sys.stdlib_module_names, "fedray"):
        return False
    path = getattr(sys.modules.get(name), "__file__", None)
    return path is not None and path.endswith(".py") and not INSTALLED & set(Path(path).parts)


def list_nested(thing: Any) -> list[Any]:
    """Lists an object and the callable objects in its attributes. Classes are left out.

    Objects inside lists, dicts and partials are included, at any depth.

    Args:
        thing: A function, a partial, or an object that can be called, such as a chain of transforms.

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
# Exceptions in a user's own code become an error of one line that names the line of this code, without a traceback.

MOST_TEXT = 300  # characters of an exception's text


@contextmanager
def blame_user_code(what: str, of_none: str = "") -> Iterator[None]:
    """Turns an exception in the `with` block into a one-line error. Errors of fedray are raised unchanged.

    Args:
        what: The user's object in words, such as `method.name = mine`.
        of_none: The end of the message if the user's code used None where a value is required.

    Raises:
        FedrayError: The block raised an exception, which is the cause of this error.

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
    """Describes an exception in one line: its type, its text, and the line of the user's code that raised it.

    For a `FedrayError` the result is its text.

    Example:
        >>> describe_exception(KeyError("target"))
        "KeyError: 'target'"
    """
    if isinstance(error, FedrayError):
        return str(error)
    text = " ".join(str(error).split())[:MOST_TEXT]
    line = find_user_line(error)
    return f"{type(error).__name__}{': ' if text else ''}{text}{'' if line is None else f' ({line})'}"


def find_user_line(error: BaseException) -> str | None:
    """Returns the innermost file and line of the user's code in an exception's traceback, or None without such code.

    The path of a file below the working directory is relative to this directory. Installed packages, Python itself and
    fedray are not the user's code.
    """
    found = None
    for frame, number in traceback.walk_tb(error.__traceback__):
        if _is_users(frame.f_code.co_filename):
            found = f"{_shorten_path(frame.f_code.co_filename)}:{number}"
    if found is None and isinstance(error, SyntaxError) and error.filename and _is_users(error.filename):
        found = f"{_shorten_path(error.filename)}:{error.lineno}"
    return found


def name_type(value: Any) -> str:
    """Returns words for the type of a value, such as "None", "a tuple" or "the class Dataset".

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
    """Returns whether an object takes `number` positional arguments and the given keywords.

    If the signature of the object is unknown, the result is True.

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
    """Returns why fedray cannot call a user's function, or None if it can.

    The result continues a sentence whose subject is "it" or a name. `arguments` has the positional arguments of the
    call, such as "state, stats, t". It is empty if there are none. `classes` says whether a class is accepted, too. A
    call of a class makes an object of this class.

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
    """Returns whether a file name in a traceback belongs to the user's code.

    Code that was typed into an interpreter counts, too.
    """
    if file.startswith("<"):
        return file.startswith(("<stdin", "<string", "<ipython"))
    path, paths = Path(file), sysconfig.get_paths()
    if INSTALLED & set(path.parts) or path.is_relative_to(Path(__file__).parent.parent):
        return False
    return not any(path.is_relative_to(paths[name]) for name in ("stdlib", "platstdlib"))


def _shorten_path(file: str) -> str:
    """Returns a path relative to the working directory. A path outside of this directory stays as it is."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return file


# ---------------------------------------------------------------------------------------------------------------------
# Imports of a user's modules, which register names for scenarios (`fedray run --import MODULE`, or `--import FILE.py`).


def import_modules(modules: Iterable[str], where: str = "--import") -> None:
    """Imports the user's modules in this process, also from the working directory.

    If there are modules, the working directory is added to the import path. `modules` has names, such as `mine` or
    `package.mine`, or files, such as `code/mine.py`. If a file does not exist (for example, on a different machine),
    Python looks for a module with the name of the file.

    Raises:
        BadInput: A module cannot be imported.

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
            raise BadInput(f"{where} {name}: {describe_exception(error)}: {remedy}") from error
        known = Path(module.__file__ or "")  # an equal copy, such as a copy made by Ray, is accepted
        if is_file and path.is_file() and (not known.is_file() or path.read_bytes() != known.read_bytes()):
            raise BadInput(f"{where} {name}: Python knows another module {path.stem} ({known}): rename yours")


def hash_files(modules: Iterable[str], things: Iterable[Any]) -> dict[str, str]:
    """Returns a dict of SHA-256 digests by module name, for the user's modules that the given code needs.

    Digests do not depend on comments and docstrings. The started script (`__main__`) is left out, because a resumed run
    may have a different script.
    """
    code = [one for thing in things for one in list_code(thing) if one.__module__ != "__main__"]
    files = {name: hash_file(sys.modules[name].__file__) for name in _list_modules(modules, code) if name != "__main__"}
    return {name: digest for name, digest in sorted(files.items()) if digest is not None}


def find_module_places(modules: Iterable[str], things: Iterable[Any] = ()) -> list[Path]:
    """Returns the user's files and package folders that a different process needs to run the given code.

    These are the given modules, the modules with the given code, and all of the user's modules that they import.

    Example:
        >>> find_module_places(["json"], [len])  # of Python itself
        []
    """
    places = set[Path]()
    for name in _list_modules(modules, things) - {"__main__"}:  # Ray sends the code of a script itself
        folders = list(getattr(sys.modules.get(name.partition(".")[0]), "__path__", ()))
        places.add(Path(folders[0] if folders else str(getattr(sys.modules[name], "__file__", ""))).absolute())
    return sorted(places)


def _list_modules(modules: Iterable[str], things: Iterable[Any]) -> set[str]:
    """Lists `modules`, the modules in which `things` are defined, and all of the user's modules that they import."""
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
