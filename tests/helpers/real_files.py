"""Tests on the real data sets are skipped where the files of a set are not on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fedray.core.errors import BadInput


def is_missing(error: BadInput) -> bool:
    """Returns whether an error says that files of a data set are missing, and nothing else."""
    return "FEDRAY_DATA" in str(error)


@contextmanager
def skipping_without_files() -> Iterator[None]:
    """Skips the test where a data set that it opens has no files here; any other complaint is a failure."""
    try:
        yield
    except BadInput as error:
        if not is_missing(error):
            raise
        pytest.skip(str(error))
