"""The components of which methods are composed: schedules, compression, servers, distillation, walks."""
