"""What only some methods have in a client's job, one file each: pieces, which the rooms know by their verbs alone."""
