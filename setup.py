"""Builds the compiled kernels beside the package's sources; everything else is in `pyproject.toml`.

Where no compiler works the package is installed without them, and the torch engines do their work.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

KERNELS = Path("fedray", "core", "kernels")
SHIPPED = ("scenarios", "tune")  # YAML files that `fedray scenarios` lists


def load_build() -> ModuleType:
    """`fedray/core/kernels/build.py`, without importing the package: its requirements are not installed yet."""
    spec = importlib.util.spec_from_file_location("build_kernels", Path(__file__).parent / KERNELS / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BuildWithKernels(build_py):
    """Copies Python and scenario files, and builds the library: into the wheel, or beside the sources that are used."""

    def run(self) -> None:
        """Never fails because of the library."""
        build_py.run(self)
        if not self.editable_mode:  # an editable package reads the folders themselves
            for folder in SHIPPED:
                shutil.copytree(folder, Path(self.build_lib, "fedray", "shipped", folder), dirs_exist_ok=True)
        build = load_build()
        folder = Path(__file__).parent if self.editable_mode else Path(self.build_lib)
        try:
            name = build.build_library(folder / KERNELS / build.LIBRARY)
        except build.BuildFailed as error:
            print(f"fedray: the compiled kernels were not built, so training will be several times slower.\n{error}")
        else:
            print(f"fedray: the compiled kernels were built by {name}")


class PlatformWheel(bdist_wheel):
    """A wheel for one platform and every Python: the library does not know Python's interface."""

    def get_tag(self) -> tuple[str, str, str]:
        """`py3-none-PLATFORM`."""
        return ("py3", "none", bdist_wheel.get_tag(self)[2])


class PlatformDistribution(Distribution):
    """Its wheel belongs to a platform, though it has no extension modules."""

    def has_ext_modules(self) -> bool:
        """It holds a library."""
        return True


setup(distclass=PlatformDistribution, cmdclass={"build_py": BuildWithKernels, "bdist_wheel": PlatformWheel})
