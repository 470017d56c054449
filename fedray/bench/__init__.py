"""Compares the cost of fedray with the cost of a plain PyTorch loop (`fedray bench`).

The result is a table. `rows.py` measures each row in a separate process, and prints the table. `works.py` has the code
that is measured.
"""
