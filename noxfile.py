#!/usr/bin/env -S uv run --script
# /// script
# dependencies = ["nox>=2025.2.9"]
# ///
"""The work on fedray, each in an environment of its own: `nox -s lint tests docs build`, or `nox --list`.

`nox --no-venv` uses the environment that is active, and needs no network.
"""

from __future__ import annotations

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
NEAR_THE_API = [
    "tests/test_api.py",
    *(f"tests/{room}" for room in ("scenario", "cli", "experiments", "storage", "tuning")),
]
PYTHONS = nox.project.python_versions(nox.project.load_toml("pyproject.toml"))


@nox.session
def lint(session: nox.Session) -> None:
    """Style and types."""
    session.install("-e", ".[test]", "pre-commit")
    session.run("pre-commit", "run", "--all-files", *session.posargs)
    session.run("mypy")


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """The tests, on every Python that is there."""
    session.install(".[test]")
    session.run("python", "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", *session.posargs)


@nox.session(python=PYTHONS[0], default=False)
def lowest(session: nox.Session) -> None:
    """The tests near the public API, with the lowest versions that `pyproject.toml` allows."""
    session.install("--constraint", "constraints/lowest.txt", ".[test]")
    quiet = ["-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning"]  # old packages warn of newer ones
    session.run("python", "-m", "pytest", "-q", *quiet, *(session.posargs or NEAR_THE_API))


@nox.session(default=False)
def docs(session: nox.Session) -> None:
    """The site, into docs/_build/html; warnings are errors."""
    session.install(".[docs]")
    session.run("python", "-m", "sphinx", "-W", "--keep-going", "-b", "html", "docs", "docs/_build/html")


@nox.session(default=False)
def build(session: nox.Session) -> None:
    """Wheel and sdist, into dist, with the checks of their contents."""
    session.install("build", "twine", "check-wheel-contents")
    session.run("python", "-m", "build")
    session.run("check-wheel-contents", "dist")
    session.run("bash", "-c", "twine check --strict dist/*", external=True)


if __name__ == "__main__":
    nox.main()
