"""Trains many clients together, in one batched computation (a block). Each lane of a block is one client."""
