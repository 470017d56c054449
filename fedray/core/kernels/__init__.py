"""C sources of the compiled kernels, and what builds them; `fedray.core.native` loads the library."""
