"""Trains many clients side by side, as lanes of one batched computation."""
