"""A user's own code: its modules, its digest, and its exceptions as one line."""
