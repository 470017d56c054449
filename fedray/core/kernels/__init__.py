"""Holds the C sources of the compiled kernels, and the program that builds them. `fedray.core.sums` loads them."""
