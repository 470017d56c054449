"""The nouns, addressed random numbers, exact sums, compiled kernels, and text. No torch until it is used."""
