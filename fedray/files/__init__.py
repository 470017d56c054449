"""Reads and writes files with limits and checksums, because other people and processes use these files, too."""
