"""Trains many clients at the same time, in one batched computation (a block). Each client is one lane of the block."""
