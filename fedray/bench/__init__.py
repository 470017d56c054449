"""`fedray bench`: measures the cost of fedray against a plain PyTorch loop in the same run.

The result is a table. `rows.py` names its rows, measures each row in a process of its own, and prints the table.
`works.py` has what the rows measure.
"""
