"""Files that somebody else may have written or may be reading: writers, bounded readers, and what vouches for them."""
