"""C sources of the compiled kernels, and what builds them; `fedray.core.sums` loads the library."""
