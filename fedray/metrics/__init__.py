"""Scores of predictions: of classes, of real targets, of ensembles."""
