"""The nouns, addressed random numbers, exact sums, and small helpers for files and text. No torch until it is used."""
