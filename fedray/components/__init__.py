"""Holds what methods share: schedules, compression, servers, distillation, Gaussians over weights, random walks."""
