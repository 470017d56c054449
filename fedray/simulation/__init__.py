"""One simulated run: the round loop, the study of the run, virtual time, and the parts of a stack."""
