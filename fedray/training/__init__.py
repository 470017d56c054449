"""Local training, many clients side by side: lanes of one batched computation."""
