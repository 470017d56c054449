"""Holds the C sources of the compiled kernels, and the program that builds them. `core.sums` loads the kernels."""
