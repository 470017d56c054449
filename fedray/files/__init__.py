"""Writers and bounded readers of files that other people or processes may write or read, and their checksums."""
