"""Data sets, partitions, and the stores that clients read."""

from fedray.data.adaptation import adapt
from fedray.data.types import Dataset, Split, classification, regression

__all__ = ["Dataset", "Split", "adapt", "classification", "regression"]
