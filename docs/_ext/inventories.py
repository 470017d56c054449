"""Small inventories for intersphinx, so that the site links to other projects and is built without network.

Each has the names that our pages and type hints use. A name that is not here is shown without a link.

Example:
    >>> list_targets("torch")["torch.Tensor"]
    ('class', 'tensors.html#$')
"""

from __future__ import annotations

import zlib
from pathlib import Path

SITES = {
    "python": "https://docs.python.org/3/",
    "numpy": "https://numpy.org/doc/stable/",
    "torch": "https://docs.pytorch.org/docs/stable/",
    "ray": "https://docs.ray.io/en/latest/",
    "optuna": "https://optuna.readthedocs.io/en/stable/",
    "pandas": "https://pandas.pydata.org/docs/",
    "pyarrow": "https://arrow.apache.org/docs/",
    "matplotlib": "https://matplotlib.org/stable/",
}
_TARGETS: dict[str, dict[str, tuple[str, str]]] = {  # name -> kind and place; $ stands for the name
    "python": {
        **{f"collections.abc.{name}": ("class", "library/collections.abc.html#$")
           for name in ("Callable", "Iterable", "Iterator", "Mapping", "Sequence")},
        **dict.fromkeys(("bool", "float", "int", "object", "type"), ("class", "library/functions.html#$")),
        **dict.fromkeys(("bytes", "dict", "list", "str", "tuple"), ("class", "library/stdtypes.html#$")),
        **dict.fromkeys(("Exception", "ValueError", "KeyError"), ("exception", "library/exceptions.html#$")),
        "None": ("data", "library/constants.html#$"),
        "pathlib.Path": ("class", "library/pathlib.html#$"),
        "typing.Any": ("data", "library/typing.html#$"),
        "typing.NamedTuple": ("class", "library/typing.html#$"),
    },
    "numpy": {
        "numpy.ndarray": ("class", "reference/generated/numpy.ndarray.html#$"),
        "numpy.float64": ("class", "reference/arrays.scalars.html#$"),
        "numpy.int64": ("class", "reference/arrays.scalars.html#$"),
        "numpy.random.Generator": ("class", "reference/random/generator.html#$"),
    },
    "torch": {
        "torch.Tensor": ("class", "tensors.html#$"),
        "torch.nn.Module": ("class", "generated/torch.nn.Module.html#$"),
        "torch.optim.AdamW": ("class", "generated/torch.optim.AdamW.html#$"),
        "torch.func.vmap": ("function", "generated/torch.func.vmap.html#$"),
    },
    "ray": {
        "ray.init": ("function", "ray-core/api/doc/ray.init.html#$"),
        "ray.util.placement_group": ("function", "ray-core/api/doc/ray.util.placement_group.html#$"),
    },
    "optuna": {
        "optuna.study.Study": ("class", "reference/generated/optuna.study.Study.html#$"),
        "optuna.samplers.TPESampler": ("class", "reference/samplers/generated/optuna.samplers.TPESampler.html#$"),
        "optuna.samplers.GridSampler": ("class", "reference/samplers/generated/optuna.samplers.GridSampler.html#$"),
        "optuna.pruners.MedianPruner": ("class", "reference/generated/optuna.pruners.MedianPruner.html#$"),
    },
    "pandas": {
        "pandas.DataFrame": ("class", "reference/api/pandas.DataFrame.html#$"),
        "pandas.read_parquet": ("function", "reference/api/pandas.read_parquet.html#$"),
    },
    "pyarrow": {
        "pyarrow.Table": ("class", "python/generated/pyarrow.Table.html#$"),
        "pyarrow.parquet.read_table": ("function", "python/generated/pyarrow.parquet.read_table.html#$"),
    },
    "matplotlib": {"matplotlib.figure.Figure": ("class", "api/figure_api.html#$")},
}  # fmt: skip
_ALIASES = {  # where a name is defined -> where it is documented
    "torch.nn.modules.module.Module": "torch.nn.Module",
    "torch._tensor.Tensor": "torch.Tensor",
    "pyarrow.lib.Table": "pyarrow.Table",
    "pandas.core.frame.DataFrame": "pandas.DataFrame",
    "numpy.random._generator.Generator": "numpy.random.Generator",
    "pathlib._local.Path": "pathlib.Path",
}


def list_targets(project: str) -> dict[str, tuple[str, str]]:
    """Returns kind and place of each name of a project, with aliases."""
    known = _TARGETS[project]
    more = {name: (known[to][0], known[to][1].replace("$", to)) for name, to in _ALIASES.items() if to in known}
    return known | more


def write_inventory(project: str, file: Path) -> Path:
    """Writes an inventory in the format of Sphinx, version 2.

    Args:
        project: One of `SITES`.
        file: The new file; its folder is made.
    """
    lines = [f"{name} py:{kind} 1 {place} -" for name, (kind, place) in list_targets(project).items()]
    head = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n"
    head += "# The remainder of this file is compressed using zlib.\n"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(head.encode() + zlib.compress("\n".join([*lines, ""]).encode()))
    return file


def make_mapping(folder: Path) -> dict[str, tuple[str, str]]:
    """Returns `intersphinx_mapping`, and writes its inventories to a folder."""
    return {
        project: (site, str(write_inventory(project, folder / f"{project}.inv"))) for project, site in SITES.items()
    }
