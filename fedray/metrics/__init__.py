"""Scores predictions of classes, of real targets, and of ensembles."""
