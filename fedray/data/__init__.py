"""Data sets, partitions of their rows, and the stores from which clients take samples."""

from fedray.data.adaptation import adapt
from fedray.data.types import Dataset, Split, classification, regression

__all__ = ["Dataset", "Split", "adapt", "classification", "regression"]
