"""Handles the code that users write: finds its modules, computes digests of it, checks it, and explains its errors."""
