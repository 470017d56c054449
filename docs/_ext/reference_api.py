"""The pages of the Python API: every public name of `fedray`, `fedray.data` and `fedray.methods`."""

from __future__ import annotations

import inspect
from importlib import import_module
from types import GenericAlias

from fedray.methods import METHOD_SPECS

MODULES = {
    "fedray": "Running scenarios, reading results, sweeps.",
    "fedray.data": "Data of your own.",
    "fedray.methods": "Methods of your own, and those of papers.",
}
PARTS = {  # what is not imported from the packages above, but appears in what they take and return
    "fedray": ("fedray.tuning.tune.TrialResult", "fedray.experiments.results.Comparison"),
    "fedray.data": (),
    "fedray.methods": (
        "fedray.features.correction.Correction",
        "fedray.components.schedule",
        "fedray.components.compression",
        "fedray.core.rng",
    ),
}


def list_names(module: str) -> list[str]:
    """Returns the public names of a module, dotted."""
    return [f"{module}.{name}" for name in import_module(module).__all__]


def _write_name(dotted: str) -> str:
    module, _, name = dotted.rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except AttributeError:
        found = import_module(dotted)
    if inspect.ismodule(found):
        return f".. automodule:: {dotted}\n   :members:\n"
    if inspect.isclass(found):
        kind = "exception" if issubclass(found, Exception) else "class"
        return f".. auto{kind}:: {dotted}\n   :members:\n"
    if callable(found) and not hasattr(found, "__origin__"):
        return f".. autofunction:: {dotted}\n"
    if type(found) is GenericAlias:  # autodoc would print the docstring of `dict`
        return f".. py:data:: {dotted}\n\n   Alias of `{found}`.\n"
    return f".. autodata:: {dotted}\n   :no-value:\n"


def _write_page(module: str) -> str:
    names = list_names(module)
    papers = [name for name in names if name.rpartition(".")[2] in METHOD_SPECS]
    blocks = [_write_name(name) for name in names if name not in papers]
    parts = [f"# `{module}`", MODULES[module], "```{eval-rst}\n" + "\n".join(blocks) + "\n```"]
    if PARTS[module]:
        parts += ["## Parts", "```{eval-rst}\n" + "\n".join(map(_write_name, PARTS[module])) + "\n```"]
    if papers:
        told = "Each is a function from a `Setting` to a `Method`; [Methods](../methods/index.md) has the algorithms."
        parts += ["## The papers", told, "```{eval-rst}\n" + "\n".join(map(_write_name, papers)) + "\n```"]
    return "\n\n".join(parts) + "\n"


def write_pages() -> dict[str, str]:
    """Returns the pages of the API by their paths below `docs/reference/generated`."""
    pages = {f"api/{module}.md": _write_page(module) for module in MODULES}
    listed = "\n".join(MODULES)
    told = "What these pages list is public; other names may change."
    index = f"# Python API\n\n{told}\n\n```{{toctree}}\n\n{listed}\n```\n"
    return {**pages, "api/index.md": index}
