"""The scores in `rounds.parquet` and `summary.json`, with their units.

Example:
    >>> describe_score("hold_out_rmse_mean")[1:3]
    ('target units', 'mean over the members: root mean squared error; on held-out rows')
    >>> describe_score("nothing_of_ours") is None  # a metric of your own, or a mistake
    True
"""

from __future__ import annotations

from collections.abc import Mapping

from fedray.core import scores
from fedray.files.columns import COLUMNS, Column, ColumnKind

PREFIXES = ("hold_out_", "member_")  # beginnings of names that fedray writes itself
_COURSE = ("rounds_to_target", "seconds_to_target", "bytes_to_target")  # of a summary
_LISTS = ("conformal_coverage_class",)
SCORES: Mapping[str, Column] = {
    name: Column("numbers" if name in _LISTS else "number", one.unit, one.text) for name, one in scores.SCORES.items()
}


def describe_score(name: str) -> Column | None:
    """Unit and meaning of a score; None where no evaluation of fedray makes it.

    Args:
        name: as in `rounds.parquet`: with `hold_out_` before it on held-out rows, with `member_` as a list of the
            members' scores, with `_min`, `_mean` or `_max` behind it over the members.
    """
    inner = name.removeprefix("hold_out_")
    where = "; on held-out rows" if inner != name else ""
    listed = inner.startswith("member_")
    inner = inner.removeprefix("member_")
    kind: ColumnKind = "numbers" if listed or inner in _LISTS else "number"
    each = "of each member, a list: " if listed else ""
    found = scores.find_score(inner)
    return None if found is None else Column(kind, found.unit, f"{each}{found.text}{where}", needed=False)


def is_fedrays(name: str) -> bool:
    """Whether a name in `rounds.parquet` or `summary.json` is fedray's own: no metric of a user's may have it.

    Example:
        >>> [is_fedrays(name) for name in ("round", "nll", "rounds_to_target", "hold_out_margin", "margin")]
        [True, True, True, True, False]
    """
    known = name in COLUMNS["rounds"] or name in _COURSE or describe_score(name) is not None
    return known or name.startswith(PREFIXES)
