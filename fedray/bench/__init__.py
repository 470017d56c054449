"""Compares the cost of fedray with the cost of a plain PyTorch loop in the same run (`fedray bench`).

The result is a table. `rows.py` names the rows, measures each row in a separate process, and prints the table.
`works.py` has the code that is measured.
"""
