"""`fedray bench`: what fedray costs, measured against a plain PyTorch loop in the same run.

`rows.py` names the rows, runs each in a process of its own, and prints their table.
"""
