"""Holds the components of methods: schedules, compression, servers, distillation and walks over graphs."""
