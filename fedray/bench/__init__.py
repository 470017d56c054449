"""`fedray bench`: what fedray costs, measured against a plain PyTorch loop in the same run.

`rows.py` names the rows, each runs in a process of its own; `table.py` prints them.
"""
