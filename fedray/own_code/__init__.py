"""Handles users' code: finds its modules, computes its digests, checks it, and explains its errors."""
