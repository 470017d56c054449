"""`fedray bench`: measures the cost of fedray against a plain PyTorch loop in the same run.

`rows.py` names the rows of the table, measures each row in a process of its own, and prints the table.
"""
