"""Holds the data types of fedray, random numbers, exact sums, compiled kernels, and errors."""
