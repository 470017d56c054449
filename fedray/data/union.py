"""Several data sets as one, whose column `domain` says which of them a row is of.

Example:
    >>> from fedray.data.types import Split, classification
    >>> x, y = np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1])
    >>> parts = [classification(name, Split(x, y), Split(x, y), ("no", "yes")) for name in ("north", "south")]
    >>> both = join_datasets(parts, apart=True)
    >>> both.class_names, both.train.y.tolist()
    (('north no', 'north yes', 'south no', 'south yes'), [0, 1, 0, 1, 2, 3, 2, 3])
    >>> both.columns["domain"].tolist()[::4]
    ['north', 'south']
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedray.core.errors import BadInput
from fedray.data.origins import add_back
from fedray.data.types import Dataset, Split, classification


def join_datasets(parts: Sequence[Dataset], apart: bool = False) -> Dataset:
    """One data set of the rows of several, in their order; inputs are standardized together.

    Args:
        parts: With classes, stored rows, and inputs of one shape and type.
        apart: Whether each has classes of its own; otherwise class c of each is the same class.

    Raises:
        BadInput: They cannot be joined.
    """
    names = [part.name for part in parts]
    if len(parts) < 2 or len(set(names)) < len(names):
        raise BadInput(f"data.sets = {', '.join(names)}: give two data sets at least, each once")
    first = parts[0]
    for part in parts:
        if not part.classes or part.population or part.folds:
            raise BadInput(f"data.sets: {part.name} has no classes, or no stored training and test rows: leave it out")
        if part.input_shape != first.input_shape or part.train.x.dtype != first.train.x.dtype:
            shapes = [f"{one.name} {' x '.join(map(str, one.input_shape))}" for one in (first, part)]
            raise BadInput(f"data.sets: the inputs of {' and '.join(shapes)} differ: join sets of the same inputs")
        if not apart and part.classes != first.classes:
            raise BadInput(
                f"data.sets: {first.name} has {first.classes} classes and {part.name} {part.classes}: write "
                "data.classes: apart"
            )
    shift = np.cumsum([0, *(part.classes for part in parts[:-1])]) * apart
    splits = [
        Split(
            np.concatenate([add_back(getattr(part, side).x, part.origin) for part in parts]),
            np.concatenate([getattr(part, side).y + more for part, more in zip(parts, shift, strict=True)]),
        )
        for side in ("train", "test")
    ]
    classes = (
        tuple(f"{part.name} {name}" for part in parts for name in part.class_names) if apart else first.class_names
    )
    joined = classification(" + ".join(names), train=splits[0], test=splits[1], names=classes)
    return joined._replace(columns={"domain": np.repeat(names, [len(part.train.y) for part in parts])})
