"""Reads and writes files that other people and processes use, too. Checks their sizes and checksums."""
