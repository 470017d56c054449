"""Options that record which of them are read, so that an option that nothing reads can be refused.

Example:
    >>> options = RecordedOptions({"sigma": 0.1, "tau": 2})
    >>> options["sigma"], options.get("rho", 1)
    (0.1, 1)
    >>> options.unread(), sorted(options.asked)
    (['tau'], ['rho', 'sigma'])
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fedray.core.errors import BadInput
from fedray.core.text import quote_value, suggest_nearest


class RecordedOptions:
    """A mapping that records which keys are asked for; whoever walks over it has read all."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Records reads of `options`."""
        self.options = dict(options)
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return self.options[key]

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return key in self.options

    def __iter__(self) -> Iterator[str]:
        self.asked.update(self.options)
        return iter(self.options)

    def __len__(self) -> int:
        return len(self.options)

    def get(self, key: str, default: Any = None) -> Any:
        """Returns the value of a key, or a default."""
        self.asked.add(key)
        return self.options.get(key, default)

    def keys(self) -> Any:
        """All keys, which are then read."""
        return dict.fromkeys(self).keys()

    def values(self) -> Any:
        """All values, which are then read."""
        return [self.options[key] for key in self]

    def items(self) -> Any:
        """All pairs, which are then read."""
        return [(key, self.options[key]) for key in self]

    def unread(self) -> list[str]:
        """Returns the keys that nobody asked for."""
        return [key for key in self.options if key not in self.asked]


def refuse_unread(section: str, name: str, options: RecordedOptions) -> None:
    """Refuses options that a user's function did not read when it was called.

    Args:
        section: Where the options stand, such as `method`.
        name: Of the function.
        options: What it was called with.

    Raises:
        BadInput: Names the first option that it did not read.
    """
    for key in options.unread():
        otherwise = "leave it out, or declare it in fedray.register"
        remedy = suggest_nearest(key, tuple(options.asked), otherwise, prefix=f"{section}.")
        raise BadInput(f"{section}.{key} = {quote_value(options.options[key])}, but {name} does not read it: {remedy}")
