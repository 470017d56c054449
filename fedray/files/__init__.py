"""Reads and writes files that other people or processes may use, with limits and checksums."""
