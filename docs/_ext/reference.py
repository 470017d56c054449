"""The pages that are made from the code; `python docs/_ext/reference.py` writes them without Sphinx."""

from __future__ import annotations

from pathlib import Path

import reference_api
import reference_keys
import reference_methods
import reference_metrics

GENERATED = Path(__file__).parents[1] / "reference" / "generated"


def write_reference() -> dict[str, str]:
    """Returns every page that is made from the code, by its path below `docs/reference/generated`."""
    makers = (reference_keys, reference_methods, reference_metrics, reference_api)
    return {path: text for maker in makers for path, text in maker.write_pages().items()}


def save_reference(folder: Path = GENERATED) -> None:
    """Writes the pages that have changed, and removes those that are no longer made."""
    pages = write_reference()
    for old in folder.rglob("*.md"):
        if str(old.relative_to(folder)) not in pages:
            old.unlink()
    for path, text in pages.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.is_file() or file.read_text() != text:
            file.write_text(text)


if __name__ == "__main__":
    save_reference()
