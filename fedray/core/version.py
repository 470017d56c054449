"""The version of this package, in one place.

Example:
    >>> __version__.count(".")
    2
"""

__version__ = "0.1.0"
