"""Trains many clients at the same time, as lanes of one batched computation (a block)."""
