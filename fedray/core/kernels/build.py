"""Builds the library of compiled kernels from the C files in this folder.

`pip install` runs this file through `setup.py`. After changing a C file, run `python fedray/core/kernels/build.py`.
"""

import hashlib
import importlib.util
import itertools
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
LIBRARY = "libfedray.dylib" if sys.platform == "darwin" else "libfedray.so"
FLAGS = (
    "-std=gnu11",
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-fPIC",
)
BITS = (32, 64)  # float and double


class BuildFailed(Exception):
    """Raised if no compiler can build the library."""


class InstructionSet(NamedTuple):
    """A set of a processor's vector instructions. Each kernel (C function) is built once for each set.

    Attributes:
        name: Name of the set. The names of the functions that are built for the set end with this name.
        bytes: Length of a vector register in bytes.
        cpu: Name that zig gives to processors with this set.
        flags: Flags for compilers other than zig.
    """

    name: str
    bytes: int
    cpu: str
    flags: tuple[str, ...]


class Compiler(NamedTuple):
    """A C compiler.

    Attributes:
        name: Name of the compiler in messages.
        command: The words that start the compiler on a command line.
        is_zig: Whether the compiler is zig, which has its own names for processors.
    """

    name: str
    command: tuple[str, ...]
    is_zig: bool


X86 = (
    InstructionSet("avx2", 32, "x86_64_v3", ("-march=x86-64-v3",)),
    InstructionSet("avx512", 64, "x86_64_v4", ("-march=x86-64-v4", "-mprefer-vector-width=512")),
)
ARM = (InstructionSet("neon", 16, "baseline", ()),)


def find_sources() -> list[Path]:
    """Returns the paths of all C files."""
    return sorted(FOLDER.glob("*.c"))


def hash_sources() -> str:
    """Returns a digest of all C files and of all flags for compilers.

    The digest is the same on every machine. A library with a different digest is out of date.
    """
    digest = hashlib.sha256(repr((FLAGS, X86, ARM)).encode())
    for path in sorted([*find_sources(), *FOLDER.glob("*.h")]):
        digest.update(f"{path.name}\n".encode() + path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()[:16]


def find_compilers() -> list[Compiler]:
    """Returns the compilers of this machine. The preferred compiler comes first."""
    found = []
    if importlib.util.find_spec("ziglang") is not None and _zig_target() is not None:
        found.append(Compiler("zig", (sys.executable, "-m", "ziglang", "cc", "-target", str(_zig_target())), True))
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            found.append(Compiler(name, (path,), False))
    return found


def _machine() -> str:
    """Returns the processor family that Python was built for."""
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def _zig_target() -> str | None:
    """Returns zig's name for this kind of machine.

    The name includes an old version of the C library, so that the build runs on all current systems.
    """
    system = {"linux": "linux", "darwin": "macos"}.get(sys.platform)
    if system is None or _machine() not in ("x86_64", "aarch64"):
        return None
    glibc = "gnu.2.17" if platform.libc_ver()[0] == "glibc" else "musl"
    return f"{_machine()}-{system}-" + {"linux": glibc, "macos": "none"}[system]


def compile_library(out: Path, compiler: Compiler, more: Sequence[str] = ()) -> Path:
    """Compiles all sources for all instruction sets of this processor family into the library `out`.

    `more` are additional flags for the compiler, for example for sanitizers.

    Raises:
        BuildFailed: The compiler refused the sources, or there are no kernels for this processor.
    """
    sets = {"x86_64": X86, "aarch64": ARM}.get(_machine())
    if sets is None:
        raise BuildFailed(f"there are no kernels for {_machine()} processors")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(folder / "zig"), "ZIG_LOCAL_CACHE_DIR": str(folder / "zig")}
        shared = (*compiler.command, *FLAGS, *more)
        jobs = [(*shared, f'-DFEDRAY_DIGEST="{hash_sources()}"', "-c", str(FOLDER / "cpu.c"), "-o", f"{folder}/cpu.o")]
        kernels = [path for path in find_sources() if path.name != "cpu.c"]
        for each, bits, path in itertools.product(sets, BITS, kernels):
            cpu = (f"-mcpu={each.cpu}",) if compiler.is_zig else each.flags
            macros = (f"-DVECTOR={each.bytes}", f"-DREAL_BITS={bits}", f"-DBUILD={each.name}")
            jobs.append((*shared, *cpu, *macros, "-c", str(path), "-o", f"{folder}/{path.stem}{bits}{each.name}.o"))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda job: _call(job, env), jobs))
        _call((*shared, "-shared", "-s", *sorted(map(str, folder.glob("*.o"))), "-o", str(folder / LIBRARY)), env)
        fresh = out.with_name(f".{out.name}.{os.getpid()}")
        shutil.copy(folder / LIBRARY, fresh)
        fresh.replace(out)  # in one step, because other processes may be loading the library
    return out


def _call(command: Sequence[str], env: dict[str, str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        raise BuildFailed(f"{' '.join(command)}\n{done.stderr.strip()}")


def build_library(out: Path) -> str:
    """Builds the library `out` with the first compiler that succeeds. Returns the compiler's name.

    Raises:
        BuildFailed: No compiler succeeds. The message gives one reason per compiler.
    """
    why = []
    for compiler in find_compilers():
        try:
            compile_library(out, compiler)
        except (BuildFailed, OSError) as error:
            why.append(f"{compiler.name}: {error}")
        else:
            return compiler.name
    raise BuildFailed("\n".join(why) or "there is no C compiler: install the package ziglang, or gcc or clang")


if __name__ == "__main__":
    print(f"{FOLDER / LIBRARY}: built by {build_library(FOLDER / LIBRARY)}")
