"""The compiled kernels under the address and undefined-behavior sanitizers of the system's compiler."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedray.core import sums as native
from fedray.core.kernels import build

FLAGS = ("-g", "-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
BEGIN = """
import sys
sys.path[:0] = [{helpers!r}, {tests!r}]
from pathlib import Path
from fedray.core import sums as native
library = native.open_library(Path({path!r}), {instructions!r})
native.load_library = lambda: library
"""
RunCode = Callable[[str, str], None]  # (Python code that trains, set of instructions): fails where a check fails


@pytest.fixture(scope="session")
def run_checked(tmp_path_factory: pytest.TempPathFactory) -> RunCode:
    """Runs code in a process whose kernels are checked; they are compiled once, in about a minute on two idle cores."""
    compiler = next((one for one in build.find_compilers() if not one.is_zig), None)
    command = ["gcc", "-print-file-name=libasan.so"]
    runtime = shutil.which("gcc") and subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if compiler is None or not runtime or not Path(runtime).is_file():
        pytest.skip("the system has no compiler with sanitizers")
    path = build.compile_library(tmp_path_factory.mktemp("checked") / "checked.so", compiler, FLAGS)
    tests = Path(__file__).parent
    env = {**os.environ, "LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}

    def run(code: str, instructions: str) -> None:
        library = native.load_library()
        assert isinstance(library, native.Library)
        if library.instructions == "neon" or instructions > library.instructions:
            pytest.skip("this processor has other instructions")
        names = {"helpers": str(tests.parent / "helpers"), "tests": str(tests)}
        code = BEGIN.format(**names, path=str(path), instructions=instructions) + code
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=600)
        assert done.returncode == 0 and "fine" in done.stdout, done.stderr[-3000:]

    return run
