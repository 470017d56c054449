"""Holds data sets, the partitions that deal samples to clients, and the stores of samples."""

from fedray.data.adaptation import adapt
from fedray.data.types import Dataset, Split, classification, regression

__all__ = ["Dataset", "Split", "adapt", "classification", "regression"]
