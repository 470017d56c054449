"""One simulated run: the round loop, the study it reads, virtual time, the parts of a stack."""
