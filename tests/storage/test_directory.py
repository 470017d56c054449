"""A run directory that goes on somewhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedray.storage.directory import LOCK, adopt_run


@pytest.mark.parametrize(("keys", "kept"), [("rounds: 2", {"identity.json", "manifest.json"}), ("rounds: 3", set())])
def test_a_run_that_goes_on_under_other_keys_forgets_whose_it_was(tmp_path: Path, keys: str, kept: set[str]) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    (source / "checkpoints").mkdir(parents=True)
    (source / "scenario.yaml").write_text("rounds: 2")
    for name in ("identity.json", "manifest.json", LOCK, "checkpoints/part"):
        (source / name).write_text(name)
    adopt_run(source, out, keys)
    assert (out / "scenario.yaml").read_text() == keys
    assert {path.name for path in out.iterdir()} == {"scenario.yaml", "checkpoints", *kept}
    assert (out / "checkpoints" / "part").is_file()
