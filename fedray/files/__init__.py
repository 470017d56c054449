"""Reads and writes files that other people or processes may write or read, with limits and checksums."""
