"""Trains many clients at the same time. Each client's training is a lane of one batched computation (a block)."""
